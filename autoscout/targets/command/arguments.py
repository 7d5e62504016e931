"""Converts (job, configuration) to a command, for experiments as well as exports.

The result has the command line with placeholders filled in and the knobs' flags set, the job's environment variables,
and the files that the command reads."""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from autoscout.line.flags import as_switch, is_flag, switch
from autoscout.line.launch_line import Line
from autoscout.running.cluster.devices import device_kind, used_nodes
from autoscout.running.warm_run import startable
from autoscout.space.attributes import attributes_of, device_counts
from autoscout.space.declared import kinds_of
from autoscout.space.knob import KnobEntry
from autoscout.space.language.expression import Expression
from autoscout.space.language.template import filled, names_in
from autoscout.targets.command import rendered, same_batch, under_load
from autoscout.targets.command.preset import Preset, preset_of
from autoscout.targets.command.rendered import NESTED, ValueOf
from autoscout.targets.current_launch import command_line
from autoscout.targets.jobs import declared
from kb.records import AutoscoutError, Configuration, Job, Value

EXPORT_FOLDER, EXPORT_PORT, ITERATIONS = "autoscout-run", "29500", "@iterations@"


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where and how a command runs. `folder`: where its files are written. `port`: a free port. `iterations`: number of
    iterations. On several hosts, `node` is the host's index, `head` the first host's address, and `ranks` the host's
    number of ranks ("": all). `measuring`: whether the run is an experiment, which may change the user's launch (no
    checkpoints, fewer iterations)."""

    folder: str
    port: str
    iterations: str
    measuring: bool = True
    node: str = "0"
    head: str = "localhost"
    ranks: str = ""


def export_place(job: Job | None = None) -> Place:
    """Returns the place of an exported launch: files relative to its folder, all iterations, all hosts of the job."""
    place = Place(folder=EXPORT_FOLDER, port=EXPORT_PORT, iterations=ITERATIONS, measuring=False)
    if job is None or not job.cluster.hosts:
        return place
    counts = {node.count for node in job.cluster.nodes}
    ranks = str(counts.pop()) if len(counts) == 1 else "RANKS"
    return msgspec.structs.replace(place, node="NODE", head="HEAD", ranks=ranks)


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """A command to run. `files`: path → content of files to write before the start. `by_kind`: kind of device → values
    of the placeholders that depend on a host's kind of device, so each host fills them in."""

    line: Line
    environment: dict[str, str]
    files: dict[str, str]
    by_kind: dict[str, dict[str, str]] = {}

    @property
    def words(self) -> list[str]:
        return [*self.line.words]


def started(job: Job, configuration: Configuration, place: Place) -> Started:
    """Returns the command that runs a configuration. Errors: AutoscoutError (exit 2) for an unknown placeholder, an
    unreadable template, or a flag without a placeholder in a command that needs a shell."""
    preset = preset_of(job)
    entries, by_kind = _of_all_kinds(job, declared(job).knob, configuration)
    knobs = {e.name: configuration.knobs.get(e.name, e.off) for e in entries}
    knobs |= {name: f"@{name}@" for name in kinds_by_knob(job)}
    names = names_of(job, configuration, knobs, place)
    environment = {
        **preset.environment,
        **{n: filled(text, names, f"launch.environment.{n}") for n, text in job.launch.environment.items()},
    }
    for entry in entries:
        if entry.sets.startswith("env:") and knobs[entry.name] is not None:
            environment[entry.sets[4:]] = filled("{value}", {"value": knobs[entry.name]}, entry.name)
    acting = [each for each in entries if not preset.idle or each.name in configuration.knobs]
    settings = _settings(job, acting, knobs, names, preset, place)
    files = rendered.files(job, settings, names)
    for name in kinds_by_knob(job):
        if any(f"@{name}@" in content for content in files.values()):
            why = "has by_kind, but a rendered file is the same on all hosts; pass the knob by a flag or a variable"
            raise AutoscoutError(f"launch.render: knob '{name}' {why}", 2)
    return Started(
        line=_line(job, entries, settings, names, preset, place),
        environment=environment,
        files=files,
        by_kind=by_kind,
    )


def probe_line(
    job: Job,
    configuration: Configuration,
    experiment: Path,
    mapping: Callable[[Job, Configuration, Place], Started] = started,
) -> str:
    """Returns the shell command of one experiment, with its environment variables."""
    place = msgspec.structs.replace(
        export_place(job), folder=str(experiment.parent), iterations=str(job.launch.iterations), measuring=True
    )
    run = mapping(job, configuration, place)
    variables = [f"{name}={value}" for name, value in run.environment.items()]
    return shlex.join([*(["env", *variables] if variables else []), *run.words])


def kinds_by_knob(job: Job) -> dict[str, dict[str, str]]:
    """Returns the user's knobs that have a separate value for each kind of device: name in [[space.knob]] → kind of
    device → name of the knob for this kind."""
    return {knob.name: kinds for knob in job.space.knob if (kinds := kinds_of(job, knob))}


def _of_all_kinds(
    job: Job, entries: list[KnobEntry], configuration: Configuration
) -> tuple[list[KnobEntry], dict[str, dict[str, str]]]:
    """Replaces the knobs that exist once per kind of device (see `kinds_by_knob`) by a single knob each. Returns (all
    knobs, kind of device → placeholder → value)."""
    by_kind: dict[str, dict[str, str]] = {}
    for name, kinds in kinds_by_knob(job).items():
        one = next(entry for entry in entries if entry.name in kinds.values())
        entries = [msgspec.structs.replace(one, name=name), *(e for e in entries if e.name not in kinds.values())]
        for kind, of_kind in kinds.items():
            if (value := configuration.knobs.get(of_kind, one.off)) is not None:
                by_kind.setdefault(kind, {})[f"@{name}@"] = filled("{value}", {"value": value}, of_kind)
    return entries, by_kind


def names_of(job: Job, configuration: Configuration, knobs: Mapping[str, Value | None], place: Place) -> dict[str, Any]:
    """Returns the values of all placeholders by name. `knobs`: the knobs' values as passed to the command."""
    used = used_nodes(job, configuration)
    ranks = sum(node.count for node in used)
    names = {
        **attributes_of(job),
        **{kind: configuration.knobs[kind] for kind in device_counts(job) if kind in configuration.knobs},
        "gpus": ranks,
        "nodes": len(used),
        "hosts": "localhost",
        "port": place.port,
        "folder": place.folder,
        "iterations": int(place.iterations) if place.iterations.isdecimal() else place.iterations,
        "node": place.node,
        "head": place.head,
        "ranks": place.ranks or ranks,
        **knobs,
    }
    for name, text in declared(job).derived.items():
        expression = Expression(text, declared(job).derived)
        if all(names.get(n) is not None for n in expression.names):
            names[name] = expression(names)
    return names


def not_on_hosts(job: Job) -> str:
    """Returns why the command cannot be started on several hosts; "" if it can."""
    placeholders = spoken(job)
    if not job.cluster.hosts or ({"node", "head"} <= placeholders and placeholders & {"ranks", "gpus"}):
        return ""
    return (
        "launch.command is started once on each of cluster.hosts, so it needs the number of its host and the "
        "first host's address: torchrun --nnodes {nodes} --node-rank {node} --nproc-per-node {ranks} "
        "--master-addr {head} --master-port {port} …"
    )


def command_of(job: Job) -> str:
    """Returns launch.command (it may have placeholders) if set, else launch.current (the line that the user runs
    today)."""
    return job.launch.command or job.launch.current


def spoken(job: Job) -> set[str]:
    """Returns the placeholders in the command and in its environment variables."""
    return set().union(*map(names_in, [command_of(job), *job.launch.environment.values()]))


def currently(job: Job) -> dict[str, Value]:
    """Returns the knobs' values in the command as written, or in the files that it reads."""
    line, now = command_line(job), today(job)
    found = {}
    for entry in declared(job).knob:
        if line.for_shell if is_flag(entry.sets) else not entry.sets.startswith(NESTED):
            continue
        value = as_switch(now(entry.sets), entry.values)
        on, off = switch(entry.sets)
        if value is None and isinstance(entry.values, list) and set(entry.values) == {True, False}:
            set_ = off or on.endswith("=") or not is_flag(entry.sets)
            value = None if set_ else False  # a switch without an off-flag is off if it is absent
        if value is not None:
            found[entry.name] = value
    return found


def unfilled(job: Job) -> dict[str, str]:
    """Returns flag → shell variable, for flags that affect experiments and have a shell variable as value."""
    line = _readable(job)
    ours = [knob.sets for knob in declared(job).knob if is_flag(knob.sets)]
    values = {flag: line.value(flag) for flag in (*ours, *preset_of(job).line.values())}
    asked = {value for knob in job.space.knob if isinstance(knob.values, list) for value in knob.values}
    return {f: v for f, v in values.items() if isinstance(v, str) and re.search("[$`]", v) and v not in asked}


def today(job: Job) -> ValueOf:
    """Returns a function that looks up a setting's value in the command as written and in its files. Errors:
    AutoscoutError (exit 2)."""
    line = _readable(job)
    return rendered.values_of(
        line, rendered.of_accelerate(line, Path(job.launch.path or ".")) | rendered.settings_of(job)
    )


def _readable(job: Job) -> Line:
    """Returns the parsed command; an empty line if it needs a shell."""
    line = command_line(job)
    return Line() if line.for_shell else line


def not_warm(job: Job) -> str:
    """Returns why the command cannot run in a warm interpreter (running/warm_run.py); "" if it can."""
    line = command_line(job)
    if line.for_shell or job.launch.command_prefix:
        return "a command that needs a shell or a prefix cannot be started warm"
    if device_kind(job) == "cuda":
        return "warm starts work on CPUs only"
    return startable(line)


def unused(job: Job) -> list[str]:
    """Returns the knobs that neither the command, the environment nor a rendered file uses."""
    used = spoken(job)
    for each in job.launch.render:
        if not each.plain:
            used |= names_in(rendered.template(job, each.origin), dollars=True)
        used |= names_in(each.to)
    derived = declared(job).derived
    for name in list(used & derived.keys()):
        used |= set(Expression(derived[name], derived).names)
    placed = [e for e in declared(job).knob if not is_flag(e.sets) and not e.sets.startswith(("env:", *NESTED))]
    return [e.name for e in placed if not {e.name, e.sets.strip("{}")} & used]


def while_measured(now: ValueOf, preset: Preset) -> dict[str, Value]:
    """Returns the settings that experiments change in the user's own launch, such as fewer iterations and no
    checkpoints."""
    there = {sets: value for sets, value in preset.where_said.items() if now(sets) is not None}
    return {**preset.measuring, **there}


def unchangeable(job: Job, free: list[str]) -> Iterator[str]:
    """Yields a sentence for each setting that a run must change, although its file cannot be rewritten. `free`:
    settings of knobs with several values."""
    preset = preset_of(job)
    batch = [preset.batch.flag] if preset.batch else []
    yield from rendered.unchangeable(
        job, {**dict.fromkeys([*free, *batch], "another value"), **while_measured(today(job), preset)}
    )


def no_place(job: Job) -> list[str]:
    """Returns the knobs whose flags have no placeholder in a command that needs a shell."""
    placeholders = names_in(command_of(job))
    return [entry.name for entry in declared(job).knob if is_flag(entry.sets) and entry.name not in placeholders]


def _settings(
    job: Job,
    entries: list[KnobEntry],
    knobs: Mapping[str, Value | None],
    names: Mapping[str, Any],
    preset: Preset,
    place: Place,
) -> dict[str, Value | None]:
    """Returns the settings of the knobs and of the preset: flag, or path in a settings file → value."""
    now, line = today(job), command_line(job)
    known = {knob.name for knob in preset.knob if not preset.overrides} - {knob.name for knob in job.space.knob}
    found: dict[str, Value | None] = {}
    for entry in entries:
        # A preset's knob that has its default value is not written to the command, since the line may imply a different
        # default or the program may lack the flag.
        itself = entry.name in known and knobs[entry.name] == entry.default and now(entry.sets) is None
        inert = knobs[entry.name] is None and not is_flag(entry.sets)
        if not itself and not inert and (is_flag(entry.sets) or entry.sets.startswith(NESTED)):
            found[entry.sets] = knobs[entry.name]
    if line.for_shell:
        return found
    for name, more in preset.follows.items():
        knob = next((entry for entry in entries if entry.name == name), None)
        current = None if knob is None else knob.default if now(knob.sets) is None else now(knob.sets)
        acts = knob is not None and knobs[name] not in (None, knob.off, current)
        for sets, value in more.items() if acts else ():
            found[sets] = filled(value, names, "preset") if isinstance(value, str) else value
    kept = same_batch.flag_for(job, line, names) | same_batch.flag_of_model(job, now, currently(job), knobs)
    # The flag that keeps the global batch constant is omitted if its value is 1, which is the program's default.
    found |= {sets: value for sets, value in kept.items() if not (preset.files and value == 1 and now(sets) is None)}
    if place.measuring:
        for sets, value in while_measured(now, preset).items():
            found[sets] = filled(value, names, "preset") if isinstance(value, str) else value
    return found


def _line(
    job: Job,
    entries: list[KnobEntry],
    settings: Mapping[str, Value | None],
    names: Mapping[str, Any],
    preset: Preset,
    place: Place,
) -> Line:
    where, text, line = "launch.command", command_of(job), command_line(job)
    if line.for_shell:
        script = filled(text, names, where, quoted=shlex.quote)
        for entry in entries:
            if is_flag(entry.sets) and entry.name not in names_in(text):
                raise AutoscoutError(
                    f"{where} needs a shell, so AutoScout cannot add the flag of knob '{entry.name}': write "
                    f"{switch(entry.sets)[0]} {{{entry.name}}} into the command",
                    2,
                )
        return Line(("bash", "-c", script))
    line = line.of(filled(word, names, where) for word in line.words)
    for sets, value in settings.items():
        if not sets.startswith(NESTED):
            line = line.with_(sets, value)
    if place.measuring:
        line = under_load.script(job, line, preset, names)
    return line.of([*job.launch.command_prefix, *line.words])
