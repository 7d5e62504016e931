"""Converts the user's current launch (`[launch] current`) to a configuration, by inverting the mapping from
configurations to flags. Missing flags have the engine's defaults."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from autoscout.job.words import listed
from autoscout.line.containers import RUN
from autoscout.line.flags import NUMBER
from autoscout.line.launch_line import Flags, Line, read
from autoscout.space.explain import explain
from autoscout.space.graph import Space
from autoscout.space.network import distance
from autoscout.targets.recipes import all_devices
from kb.records import AutoscoutError, Configuration, Job, Value

Mapped = Callable[[Configuration], Mapping[str, object]]  # returns flag → value; True for a flag without a value

PLACE_CHILDREN = (*RUN, "srun", "numactl", "taskset")  # programs that choose the CPUs of the processes they start
_SAME_RUN = "the same run as"  # in the reason of each rule against a value that acts like a different one
_FOR_A_SHELL = re.compile(
    r"\$\(|`|\$\w+|\$\{\w+(?:\[[^\]]*\])?\}"
)  # matches shell variables and substitutions, but not ${a.b}, which refers to another setting


def line_of(job: Job) -> Line:
    """Returns the parsed launch.current. Errors: AutoscoutError (exit 2) for an unclosed quote."""
    return read(job.launch.current, "launch.current")


def command_line(job: Job) -> Line:
    """Returns the parsed launch.command (it may have placeholders) if set, else launch.current. Errors:
    AutoscoutError (exit 2) for an unclosed quote."""
    return read(job.launch.command or job.launch.current, "launch.command")


def left_to_a_shell(line: Line) -> list[str]:
    """Returns the line's shell variables and command substitutions, which stay literal because no shell interprets the
    line."""
    shells = (i for i, name in enumerate(line.names) if name in ("bash", "sh"))
    mine = line.words[: next(shells, None)]  # stop at a shell inside the line, which expands its own arguments
    return shell_syntax(mine)


def shell_syntax(words_of_a_line: Iterable[str]) -> list[str]:
    """Returns the distinct shell variables and command substitutions in some texts."""
    return sorted({"$(…)" if n in ("$(", "`") else n for word in words_of_a_line for n in _FOR_A_SHELL.findall(word)})


def for_a_shell(line: Line) -> list[str]:
    """Returns a list with one sentence if the line has variables or command substitutions that no shell would expand;
    else []."""
    if not (found := left_to_a_shell(line)):
        return []
    return [f"the launch line has {listed(found)}, which no shell expands here; write the value, or no run will start"]


def whole_number(flags: Flags, flag: str) -> int | None:
    """Returns the value of a flag if it is a whole number, else None."""
    words = flags.get(flag) or [""]
    return int(words[0]) if words[0].isdecimal() else None


def contradictions(flags: Flags, of_job: Mapping[str, object]) -> Iterator[str]:
    """Yields a sentence for each number that differs between the line and the job. `of_job`: flag → the job's value."""
    for flag, value in of_job.items():
        there = " ".join(flags.get(flag, ()))
        if NUMBER.fullmatch(there) and float(there) != float(str(value)):
            yield f"launch.current has {flag} {there}, but the job has {value}; make them agree"


class Wished(msgspec.Struct, frozen=True):
    """The knob values that the line's flags imply. `knobs`: active knob → the value whose flags agree best with the
    line. `heard`: knob → the line's flags that determine its value."""

    knobs: dict[str, Value]
    heard: dict[str, set[str]]


def wished(space: Space, given: Flags, mapped: Mapped, usual: Mapping[str, Value]) -> Wished:
    """Finds the value of each knob, in the space's order. `usual`: the engine's defaults for knobs whose catalog entry
    has no default."""
    wanted: dict[str, Value] = dict(all_devices(space))
    deciders: dict[str, set[str]] = {}
    for knob in space.knobs:
        env = space.environment(wanted)
        if knob.layer == "devices" or (knob.when is not None and not knob.when(env)):
            continue
        if knob.implied is not None:
            implied, before = knob.implied(env), mapped(Configuration(wanted))
            wanted[knob.name] = min(knob.values, key=lambda v, w=implied: distance(w, v))
            deciders[knob.name] = {
                flag for flag, v in mapped(Configuration(wanted)).items() if before.get(flag) != v
            } & given.keys()
            continue
        flags = [mapped(Configuration({**wanted, knob.name: value})) for value in knob.values]
        # The flags without this knob are also compared, because a knob may have only one value.
        others = [*flags, mapped(Configuration(wanted))]
        deciding = {flag for each in flags for flag in each if any(other.get(flag) != each[flag] for other in others)}
        heard, unheard = deciding & given.keys(), deciding - given.keys()
        far = [sum(apart(given[flag], each.get(flag)) for flag in heard) for each in flags]
        added = [len(unheard & each.keys()) for each in flags]  # prefer values without flags that the line lacks
        default = usual.get(knob.name, knob.values[0] if knob.default is None else knob.default)
        from_default = [distance(value, default) for value in knob.values]
        at = min(range(len(flags)), key=list(zip(far, added, from_default, strict=True)).__getitem__)
        wanted[knob.name] = knob.values[at]
        deciders[knob.name] = heard
    return Wished(wanted, deciders)


def configuration(
    space: Space, given: Flags, mapped: Mapped, usual: Mapping[str, Value]
) -> tuple[Configuration, list[str]]:
    """Returns (the valid configuration nearest to the flags, notes on its differences from the flags). `usual`: see
    `wished`."""
    found = wished(space, given, mapped, usual)
    wanted, implied = found.knobs, {knob.name for knob in space.knobs if knob.implied is not None}
    decided = [name for name, heard in found.heard.items() if heard and name not in implied]
    nearest = space.nearest(wanted, given=decided)
    if nearest is None:
        raise AutoscoutError("no configuration of this job is valid; relax [space] or change the cluster", 3)
    there, heard_of = mapped(nearest), set[str]().union(*found.heard.values())
    other = [flag for flag in given if flag in heard_of and apart(given[flag], there.get(flag))]
    before = mapped(Configuration({**wanted, **{n: v for n, v in nearest.knobs.items() if n in implied}}))
    other += [flag for flag in there if flag not in given and there[flag] != before.get(flag)]
    if not other:
        return nearest, []
    moved = listed([f"{flag} {' '.join(_words(there.get(flag, 'left out')))}" for flag in other])
    # If the nearest configuration agrees with the whole line, a default is invalid, so defaults are explained, too.
    of_line = decided if any(flag in given for flag in other) else wanted
    asked = {name: wanted[name] for name in of_line if nearest.knobs.get(name) != wanted[name]}
    found_wrong = [violation.sentence for violation in explain(space, asked, nearest).violations]
    broken = "; ".join(found_wrong)
    if broken and all(_SAME_RUN in sentence for sentence in found_wrong):
        return nearest, [f"launch.current is measured with {moved}: {broken}"]
    why = f" ({broken})" if broken else ""
    near = f"the nearest valid configuration is used instead, with {moved}{why}"
    return nearest, [f"launch.current is not valid: {near}"]


def apart(there: Sequence[str], value: object) -> float:
    """Returns the distance between a flag's values in the line (`there`) and in a configuration (`value`, None if not
    set): 0 if equal, below 1 for similar numbers, else 1."""
    here = None if value is None else _words(value)
    if here == list(there):
        return 0.0
    numbers = [float(word) for words in (here or (), there) for word in words if NUMBER.fullmatch(word)]
    if here and len(here) == len(there) == 1 and len(numbers) == 2 and min(numbers) > 0:
        ratio = abs(math.log2(numbers[0] / numbers[1]))
        return ratio / (1 + ratio)
    return 1.0


def _words(value: object) -> list[str]:
    if value is True:
        return []
    return [str(each) for each in value] if isinstance(value, list | tuple) else [str(value)]
