"""The YAML files of settings that a line names, as they are here; JSON is a part of YAML."""

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
_LARGEST = 2**20  # bytes; a file of data is none of settings
_REFERENCE = re.compile(r"\$\{([\w.]+)\}")  # OmegaConf's, to another setting


def named(line: Line, folders: Iterable[str]) -> dict[int, Path]:
    """By the place of the word that names it. `folders`: flags of the folder in which they lie."""
    inside = line.first_said(folders)
    folder = "" if inside is None else str(inside)
    found: dict[int, Path] = {}
    for at, word in enumerate(line.words):
        path = Path(folder, word.rpartition("=")[2])
        if folder and not path.suffix:  # GPT-NeoX finds 125M.yml by the name 125M
            path = path.with_name(path.name + ".yml") if path.name else path
        if path.suffix in _SUFFIXES and os.path.isfile(path) and path.stat().st_size <= _LARGEST:
            found[at] = path
    return found


def read(paths: Iterable[Path]) -> dict[str, Any]:
    """What the files say together; a value that refers to another (${a.b}) is that one.

    Errors: AutoscoutError (exit 2) for one that cannot be read."""
    found = dict[str, Any]()
    for path in paths:
        try:
            found |= settings(path.read_text(encoding="utf-8-sig"))
        except (OSError, ValueError) as error:
            raise AutoscoutError(f"{path}: cannot be read ({error})", 2) from error
    return _resolved(found, found)


def have(line: Line, folders: Iterable[str], paths: Iterable[str]) -> bool:
    """Whether the files of a line say something at all of these paths."""
    try:
        said_there = read(named(line, folders).values())
    except AutoscoutError:
        return False
    return bool(said_there) and all(nested.at(said_there, path) is not None for path in paths)


def _resolved(tree: Any, whole: Mapping[str, Any]) -> Any:
    if isinstance(tree, dict):
        return {str(name): _resolved(value, whole) for name, value in tree.items()}
    found = _REFERENCE.fullmatch(tree) if isinstance(tree, str) else None
    return nested.at(whole, found[1]) if found else tree
