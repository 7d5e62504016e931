"""Combines a trainer's line with its settings file: values of the preset's knobs and of batch settings in the file
become arguments of the line."""

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from autoscout.job.strict import read_toml
from autoscout.line import nested, settings_files
from autoscout.line.containers import CONTAINERS
from autoscout.line.flags import setting, written
from autoscout.line.launch_line import Line
from autoscout.space.language.template import as_text
from autoscout.targets.command.preset import Preset
from kb.records import AutoscoutError


def with_settings(line: Line, known: Preset, unread: str) -> tuple[Line, dict[str, str]]:
    """Returns (the line with settings of its file as arguments, all scalar settings of the file). `unread`: a file that
    is not on this machine.

    Errors: AutoscoutError (exit 2) for a file that cannot be read, or that the line must name but does not."""
    return _overridden(line, known) if known.overrides else _with_config(line, known, unread)


def _overridden(line: Line, known: Preset) -> tuple[Line, dict[str, str]]:
    """Returns (line, the file's scalar settings). The line has additional arguments that repeat the YAML file's values
    of the preset's knobs and batch settings. A `--` before a launcher's words is removed, because everything after it
    would be passed to the program. Flags are spelled as in the preset, a-b for a_b."""
    begins = _begins(line, known)
    given = [word for word in line.words[begins + 1 :] if word != "--"]
    file = file_of(line, known) or _among_packages(known, line.words[:begins], line.of(given).value("--config"))
    if file is None:
        how = f" ('{known.copies} NAME FILE.yaml' copies one)" if known.copies else ""
        raise AutoscoutError(
            f"'{str(line)[:80]}' names no YAML file with settings; put the settings into a YAML file{how}", 2
        )
    settings = _settings(file)
    if known.batch and known.batch.instead in settings:
        raise AutoscoutError(
            f"{file}: gives {known.batch.instead}, which excludes {setting(known.batch.flag)}; use "
            f"{setting(known.batch.flag)} (micro batches per step) instead",
            2,
        )
    ours = {setting(flag): flag.rstrip("=") for flag in [*_flags(known), *known.where_said]}
    for i, word in enumerate(given):
        name, sign, value = word.partition("=")
        given[i] = f"{ours.get(setting(name), name)}{sign}{value}" if name.startswith("--") else word
    more = [f"{flag}={value}" for flag, value in _only_there(ours.values(), settings, line.of(given))]
    return line.of([*line.words[: begins + 1], *given, *more]), settings


def with_copies(line: Line, known: Preset) -> tuple[Line, list[dict[str, Any]], dict[str, Any]]:
    """For a preset whose settings are only in files: returns (line, `launch.render`, the files' settings). The line
    names the copies that `launch.render` creates for each run. Errors: AutoscoutError (exit 2)."""
    named = settings_files.named(line, known.folder) if known.files else {}
    paths = [*dict.fromkeys(named.values())]
    alike = {path for path in paths if [other.name for other in paths].count(path.name) > 1}
    made = {path: f"{{folder}}/{f'{i}-' * (path in alike)}{path.name}" for i, path in enumerate(paths, 1)}
    copies = {at: made[path] for at, path in named.items()}
    parts = (word.rpartition("=") for word in line.words)
    line = line.of(f"{name}{sign}{copies.get(at, value)}" for at, (name, sign, value) in enumerate(parts))
    for flag in known.folder if named else ():
        line = line.without(flag)
    render = [{"from": str(path), "to": to, "plain": True} for path, to in made.items()]
    return line, render, settings_files.read(named.values())


def file_of(line: Line, known: Preset) -> Path | None:
    """Returns the YAML settings file that a line names; None if it names none."""
    if known.overrides:
        given = line.of(line.words[_begins(line, known) + 1 :])
        return next(map(Path, given.settings_files), None)
    named = _config(line, known)
    return Path(named) if named.endswith((".yaml", ".yml")) or (known.first and named) else None


def _config(line: Line, known: Preset) -> str:
    """Returns the name of the line's settings file, if flags override it; "" if there is none."""
    if known.first:
        begins = _program(line, known)
        after = "" if begins is None else "".join(line.words[begins + 1 : begins + 2])
        return after if after.endswith((".yaml", ".yml", ".json")) else ""
    named = line.value(known.config) if known.config else None
    return named if isinstance(named, str) else ""


def _begins(line: Line, known: Preset) -> int:
    """Returns the index of the program's name, after its launcher."""
    found = _program(line, known)
    if found is not None:
        return found
    return next((at - 1 for at in settings_files.named(line, known.folder)), len(line.launcher.words))


def _program(line: Line, known: Preset) -> int | None:
    last = {text.split()[-1] for text in known.recognises}
    return next((i for i, name in enumerate(line.names) if name in last), None)


def in_a_container(line: Line, known: Preset) -> str:
    """Returns the settings file, from `--config` or the first word, if it exists only in a container; "" if the line
    runs on this machine or the file exists here."""
    named = _config(line, known)
    return named if {*line.names} & {*CONTAINERS} and not os.path.isfile(named) else ""


def _with_config(line: Line, known: Preset, unread: str) -> tuple[Line, dict[str, str]]:
    """Returns (line, the file's scalar settings). The line has additional flags that repeat the `--config` file's
    values of the preset's knobs, batch settings and evaluation settings."""
    named = _config(line, known)
    # Where the program's first word may name a settings file, the name may also end in .json.
    if unread or not (named.endswith((".yaml", ".yml", ".toml")) or (known.first and named)):
        return line, {}
    settings = _settings(Path(named))
    more = _only_there([*_flags(known), *known.where_said], settings, line)
    words = [word for flag, value in more for word in written(flag, "", value)]
    return line.of([*line.words, *words]), settings


def _flags(known: Preset) -> list[str]:
    return [
        *(knob.sets for knob in known.knob),
        *([known.batch.flag] if known.batch else []),
        *(flag for flags in known.line.values() for flag in flags.split("|")),
    ]


def _only_there(flags: Iterable[str], settings: Mapping[str, str], line: Line) -> list[tuple[str, str]]:
    """Returns the flags that are set only in the settings file, with their values."""
    names = {flag: setting(flag) for flag in flags}
    return [(flag, settings[name]) for flag, name in names.items() if name in settings and line.value(flag) is None]


def _settings(file: Path) -> dict[str, str]:
    """Returns the settings of a YAML or TOML file, with names that include their sections.

    Errors: AutoscoutError (exit 2) for an unreadable file."""
    content = read_toml(file, "settings file") if file.suffix == ".toml" else settings_files.read([file])
    scalars = ((name, value) for name, value in nested.leaves(content) if not isinstance(value, list))
    return {name: as_text(value) for name, value in scalars if value is not None}


def _among_packages(known: Preset, program: Sequence[str], name: object) -> Path | None:
    """Returns the settings file `name` in the program's package; None if the program is not installed here."""
    found = shutil.which(program[-1]) if known.configs and program else None
    places = Path(found).parent.parent.glob("lib/python*/site-packages") if found else ()
    return next((path for place in places if (path := place / known.configs / f"{name}.yaml").is_file()), None)
