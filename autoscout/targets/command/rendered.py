"""Reads the files that a launch uses (`launch.render`), and renders them for a configuration."""

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
    """Returns a function that looks up a current setting: a flag of the line, or a path in its files (yaml:a.b). The
    function returns None if the setting is not set, True for a flag without a value or for a path that leads to a
    section, and a list as text."""

    def value_of(sets: str) -> Value | None:
        if not sets.startswith(NESTED):
            return line.value(sets)
        found = nested.at(settings, sets.partition(":")[2])
        return True if isinstance(found, dict) else str(found) if isinstance(found, list) else found

    return value_of


def of_accelerate(line: Line, folder: Path = Path()) -> dict[str, Any]:
    """Returns the parallelism settings of accelerate from a line's `--config_file`; {} if the file is missing or has no
    such settings."""
    return {name: value for name, value in _accelerates(line, folder).items() if name == "parallelism_config"}


def apart_from_accelerate(line: Line, flag: str) -> Iterator[str]:
    """Yields a note if the line's `flag` (gradient accumulation steps) and accelerate's file disagree. Trainers use the
    value in the line."""
    name, given = flag.strip("-="), line.value(flag) if flag else None
    other = _accelerates(line, Path()).get(name)
    if given is not None and other is not None and str(other) != str(given):
        file = line.value("--config_file")
        yield f"launch.current: {name} is {given} on the line but {other} in {file}; the line takes precedence"


def _accelerates(line: Line, folder: Path) -> dict[str, Any]:
    named = line.value("--config_file")
    try:
        return yaml_text.settings((folder / str(named)).read_text()) if named else {}
    except (OSError, ValueError):
        return {}


def settings_of(job: Job) -> dict[str, Any]:
    """Returns the merged settings of files that runs read unchanged. Errors: AutoscoutError (exit 2)."""
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
    """Returns path → content. `settings`: settings of knobs and of the preset; those that are not paths in files are
    ignored. `names`: placeholder → value. Errors: AutoscoutError (exit 2)."""
    made: dict[str, str] = {}
    for each in job.launch.render:
        text = template(job, each.origin)
        to = filled(each.to, names, "launch.render.to")
        made[to] = text if each.plain else filled(text, names, each.origin, dollars=True)
    return put_into(made, settings)


def unchangeable(job: Job, settings: Mapping[str, Value | None]) -> Iterator[str]:
    """Yields a sentence for each of `settings` that cannot be set, because its file is read unchanged."""
    if not job.launch.render or not all(each.plain for each in job.launch.render):
        return
    made = {each.origin: template(job, each.origin) for each in job.launch.render}
    for sets, value in settings.items():
        try:
            put_into(made, {sets: value})
        except AutoscoutError as error:
            yield str(error)


def put_into(made: Mapping[str, str], settings: Mapping[str, Value | None]) -> dict[str, str]:
    """Returns the files with these settings written. Each setting is written to the file (of its kind, YAML or JSON)
    that already has it, else to the first file of this kind.

    Errors: AutoscoutError (exit 2) for a setting without a suitable file."""
    inside: dict[str, dict[str, Value | None]] = {}
    for sets, value in settings.items():
        kind, _, path = sets.partition(":")
        if f"{kind}:" not in NESTED:
            continue
        of_kind = [name for name in made if nested.KINDS.get(Path(name).suffix) == kind]
        if not of_kind or (len(of_kind) > 1 and kind != "yaml"):
            raise AutoscoutError(
                f"a knob sets {sets}, so launch.render needs exactly one {kind} file, but has {len(of_kind)}", 2
            )
        saying = [name for name in of_kind if len(of_kind) > 1 and _says(made[name], path, name)]
        # a preset has the text "null", because TOML has no null
        inside.setdefault((saying or of_kind)[0], {})[path] = None if value == "null" else value
    texts = {name: nested.put(made[name], nested.KINDS[Path(name).suffix], new, name) for name, new in inside.items()}
    return {**made, **texts}


def _says(text: str, path: str, where: str) -> bool:
    """Whether a file has an entry for the first key of a path."""
    return nested.at(settings_in(text, where), path.partition(".")[0]) is not None
