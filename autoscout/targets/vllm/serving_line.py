"""A person's present `vllm serve` command (`[launch] current`): what it says, as a configuration has it."""

from collections.abc import Iterator, Mapping

from autoscout.space.graph import Space
from autoscout.targets import current_launch
from autoscout.targets.vllm.arguments import engine_arguments, flags
from autoscout.targets.vllm.expert import batches
from kb import door
from kb.records import AutoscoutError, Configuration, Job

_ALIASES = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-O": "--compilation-config",
    "-cc": "--compilation-config",
}


def problems(job: Job) -> Iterator[str]:
    """What of the line cannot be read."""
    try:
        said = _said(job)
    except AutoscoutError as error:
        yield str(error)
        return
    if not said:
        yield "launch.current has none of vLLM's flags; write the whole line of `vllm serve`, without variables"


def launched(space: Space, job: Job) -> tuple[Configuration, list[str]]:
    """The configuration that the line serves with, or the nearest valid one, and what a person should know of that."""

    def mapped(configuration: Configuration) -> Mapping[str, object]:
        found: dict[str, object] = {}
        for flag, value in flags(engine_arguments(job, configuration)).items():
            found |= {flag: value} if value is True else _spread(flag, str(value))
        return found

    found, moved = current_launch.configuration(space, _said(job), mapped, batches(space.attributes, 1))
    return found, current_launch.note(moved)


def _said(job: Job) -> dict[str, list[str]]:
    """The line's flags by their long names."""
    said: dict[str, list[str]] = {}
    for flag, words in current_launch.said_of(job.launch.current).items():
        name = _ALIASES.get(flag, flag.replace("_", "-"))
        said |= {n: [str(value)] for n, value in _spread(name, " ".join(words)).items()} if words else {name: []}
    return said


def _spread(flag: str, text: str) -> dict[str, object]:
    """A flag whose value is JSON as one flag a field, which is another way to write it."""
    if not text.startswith("{"):
        return {flag: text}
    try:
        fields = door.parsed_json(text)
    except ValueError as error:
        raise AutoscoutError(f"launch.current: {flag} {text} is no JSON: {error}", 2) from error
    return {f"{flag}.{name}": value for name, value in fields.items()}
