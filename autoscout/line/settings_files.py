"""Reads the YAML settings files that a launch line names. JSON files are read too, since JSON is a subset of YAML."""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from autoscout.job.yaml_text import settings
from autoscout.line import nested
from autoscout.line.launch_line import Line
from kb.records import AutoscoutError

_SUFFIXES = (".yaml", ".yml")
_LARGEST = 2**20  # bytes; a larger file holds data, not settings
_NO_LINE = Line()
_REFERENCE = re.compile(r"\$\{([\w.]+)\}")  # an OmegaConf reference to a different setting


def named(line: Line, folders: Iterable[str]) -> dict[int, Path]:
    """Returns index of the word → existing settings file that this word names. `folders`: flags that set the folder of
    the files."""
    inside = line.first_value(folders)
    folder = "" if inside is None else str(inside)
    found: dict[int, Path] = {}
    for at, word in enumerate(line.words):
        if not (folder or word.endswith(_SUFFIXES)):
            continue
        path = Path(folder, word.rpartition("=")[2])
        if folder and not path.suffix:  # GPT-NeoX accepts 125M as the name of 125M.yml
            path = path.with_name(path.name + ".yml") if path.name else path
        if path.suffix in _SUFFIXES and os.path.isfile(path) and path.stat().st_size <= _LARGEST:
            found[at] = path
    return found


def read(paths: Iterable[Path], line: Line = _NO_LINE) -> dict[str, Any]:
    """Returns the merged contents of the files, with references between settings (${a.b}) resolved. `line`: the line
    whose script may write them.

    Errors: AutoscoutError (exit 2) for a file that cannot be read."""
    found = dict[str, Any]()
    for path in paths:
        try:
            found |= settings(line.text_of(str(path)))
        except (OSError, ValueError) as error:
            raise AutoscoutError(f"{path}: cannot be read ({error})", 2) from error
    return _resolved(found, found)


def have(line: Line, folders: Iterable[str], paths: Iterable[str]) -> bool:
    """Whether the settings files of a line set all of these paths."""
    try:
        settings = read(named(line, folders).values())
    except AutoscoutError:
        return False
    return bool(settings) and all(nested.at(settings, path) is not None for path in paths)


def _resolved(tree: Any, whole: Mapping[str, Any]) -> Any:
    if isinstance(tree, dict):
        return {str(name): _resolved(value, whole) for name, value in tree.items()}
    found = _REFERENCE.fullmatch(tree) if isinstance(tree, str) else None
    return nested.at(whole, found[1]) if found else tree
