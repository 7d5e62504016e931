"""Renders the files that a launch reads (`launch.render`): their current contents, and those for a configuration."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from autoscout.job import yaml_text
from autoscout.line import nested
from autoscout.line.launch_line import Line
from autoscout.space.language.template import filled
from kb.records import AutoscoutError, Job, Value

NESTED = ("json:", "yaml:", "toml:")
ValueOf = Callable[[str], Value | None]


def template(job: Job, name: str) -> str:
    """Returns a file's text. Errors: AutoscoutError (exit 2) if it cannot be read."""
    path = Path(job.launch.path or ".") / name
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise AutoscoutError(f"launch.render: cannot read {path} ({error})", 2) from error


def values_of(line: Line, settings: Mapping[str, Any]) -> ValueOf:
    """Returns a lookup of the current settings: flags of the line, or paths in its files (yaml:a.b). None if not set;
    True for a flag without a value, or a path with entries below it; a list as text."""

    def value_of(sets: str) -> Value | None:
        if not sets.startswith(NESTED):
            return line.value(sets)
        found = nested.at(settings, sets.partition(":")[2])
        return True if isinstance(found, dict) else str(found) if isinstance(found, list) else found

    return value_of


def of_accelerate(line: Line, folder: Path = Path()) -> dict[str, Any]:
    """The parallelism settings of accelerate from a line's `--config_file`; {} if the file is missing or has none."""
    named = line.value("--config_file")
    try:
        found = yaml_text.settings((folder / str(named)).read_text()) if named else {}
    except (OSError, ValueError):
        return {}
    return {name: value for name, value in found.items() if name == "parallelism_config"}


def settings_of(job: Job) -> dict[str, Any]:
    """Merges the settings of files that are read unchanged. Errors: AutoscoutError (exit 2)."""
    found = dict[str, Any]()
    for each in job.launch.render:
        if each.plain:
            found |= settings_in(template(job, each.origin), each.origin)
    return found


def settings_in(text: str, where: str) -> dict[str, Any]:
    """Parses a YAML file (or JSON, a subset of YAML). Errors: AutoscoutError (exit 2)."""
    try:
        return yaml_text.settings(text)
    except ValueError as error:
        raise AutoscoutError(f"{where}: {error}", 2) from error


def files(job: Job, settings: Mapping[str, Value | None], names: Mapping[str, Any]) -> dict[str, str]:
    """Returns path → content. `settings`: those of knobs and presets; only those in files are used. `names`:
    placeholders' values. Errors: AutoscoutError (exit 2)."""
    made: dict[str, str] = {}
    for each in job.launch.render:
        text = template(job, each.origin)
        to = filled(each.to, names, "launch.render.to")
        made[to] = text if each.plain else filled(text, names, each.origin, dollars=True)
    return put_into(made, settings)


def unchangeable(job: Job, settings: Mapping[str, Value | None]) -> Iterator[str]:
    """Yields a sentence for each of these settings that cannot be set in the files, because they are read unchanged."""
    if not job.launch.render or not all(each.plain for each in job.launch.render):
        return
    made = {each.origin: template(job, each.origin) for each in job.launch.render}
    for sets, value in settings.items():
        try:
            put_into(made, {sets: value})
        except AutoscoutError as error:
            yield str(error)


def put_into(made: Mapping[str, str], settings: Mapping[str, Value | None]) -> dict[str, str]:
    """Returns the files with these settings. Each is set in the file of its kind that has it now, else in the first
    file of its kind.

    Errors: AutoscoutError (exit 2) for a setting without a suitable file."""
    inside: dict[str, dict[str, Value | None]] = {}
    for sets, value in settings.items():
        kind, _, path = sets.partition(":")
        if f"{kind}:" not in NESTED:
            continue
        of_kind = [name for name in made if nested.KINDS.get(Path(name).suffix) == kind]
        if not of_kind or (len(of_kind) > 1 and kind != "yaml"):
            raise AutoscoutError(
                f"a knob sets {sets}, but launch.render has {len(of_kind)} files of that kind instead of one", 2
            )
        saying = [name for name in of_kind if len(of_kind) > 1 and _says(made[name], path, name)]
        # a preset is TOML, which has no null and writes "null" instead
        inside.setdefault((saying or of_kind)[0], {})[path] = None if value == "null" else value
    texts = {name: nested.put(made[name], nested.KINDS[Path(name).suffix], new, name) for name, new in inside.items()}
    return {**made, **texts}


def _says(text: str, path: str, where: str) -> bool:
    """Whether a file has an entry at a path, or at least its first key."""
    return nested.at(settings_in(text, where), path.partition(".")[0]) is not None
