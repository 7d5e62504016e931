"""Classifies the arguments of a serve line, using the table of vLLM's arguments (line/arguments/vllm.csv)."""

from collections.abc import Iterator, Sequence

from autoscout.job.words import listed
from autoscout.line.kinds import arguments, refused, unknown, unnamed
from autoscout.line.launch_line import Line
from autoscout.targets.current_launch import apart, line_of
from autoscout.targets.jobs import catalog_of
from autoscout.targets.target import shipped
from autoscout.targets.vllm.line_flags import flag_of, flags_of, given_flags
from kb.records import Job

PROGRAM = "vllm"
# Arguments for which the user gets no note, because [model] and [traffic] cover them, or because they have the same
# effect in all configurations.
_OF_THE_JOB = {"--model", "--dtype", "--max-model-len", "--load-format", "--revision", "--code-revision"}

# Arguments that make a step many times longer, but that no simulator models: weights kept in host memory.
_UNPRICED = ("--cpu-offload-gb",)


def unpriced(job: Job) -> str:
    """Returns the line's first argument that prevents predictions; "" if there is none."""
    known = arguments(PROGRAM)
    given = _by_names(line_of(job))
    return next((name for name in _UNPRICED if name in given and known[name].changes(given[name])), "")


def not_had(line: Line) -> str:
    """Returns the end of a sentence on arguments of the line for other tasks than generating text, such as embeddings;
    "" if there are none."""
    found = [*refused(PROGRAM, _by_names(line))]
    if not found:
        return ""
    return (
        f"has {listed(found)}, which serves something other than generated text; target = 'vllm' has no load for "
        "that, so set target = 'command' and use your own load generator"
    )


def notes(job: Job) -> list[str]:
    """Returns notes on arguments that predictions ignore, and on unknown ones that launch.neutral does not list."""
    given = _by_names(line_of(job))
    known = arguments(PROGRAM)
    closed = catalog_of(job).closed
    of_line = [knob for knob in shipped("vllm").knob if "launch.current" in closed.get(knob.name, "")]
    knobs, own = ({flag_of(k.sets.partition(".")[0]) for k in some} for some in (shipped("vllm").knob, of_line))
    predicted = (knobs - own) | _OF_THE_JOB | ({"--quantization"} if job.model.stored else set())
    unpredicted = [
        name
        for name, words in given.items()
        if name in known
        and known[name].kind in ("knob", "model", "numerics")
        and known[name].changes(words)
        and name not in (*predicted, *_UNPRICED)
    ]
    strange = [name for name in unknown(PROGRAM, given) if name.startswith("--") and name not in job.launch.neutral]
    found = [*_otherwise(job)]
    if unpredicted:
        found.insert(0, f"predictions ignore {listed(unpredicted)}, but experiments and exports keep them")
    return found + unnamed(
        "vLLM", strange, "exported as you wrote it, and used in experiments if the installed version accepts it"
    )


def _otherwise(job: Job) -> Iterator[str]:
    """Yields a sentence for each knob that the job fixes to a value different from the line's."""
    given = given_flags(job)
    for knob in shipped("vllm").knob:
        words, fixed = given.get(flag_of(knob.sets)), job.space.fix.get(knob.name)
        if words and fixed is not None and apart(words, fixed):
            yield (
                f"launch.current has {flag_of(knob.sets)} {' '.join(words)}, but experiments and exports have "
                f"space.fix {knob.name} = {fixed!r}: make them agree"
            )


def _by_names(line: Line) -> dict[str, Sequence[str]]:
    """Returns the line's flags by their names in the table: --no-x as --x, and nested flags without the field's
    name."""
    found: dict[str, Sequence[str]] = {}
    for flag, words in flags_of(line).items():
        name = flag.partition(".")[0]
        on = f"--{name.removeprefix('--no-')}"
        found[on if name.startswith("--no-") and on in arguments(PROGRAM) else name] = words
    return found
