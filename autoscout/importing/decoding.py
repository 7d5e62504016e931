"""Parses a tool's file into trees (nested tables, lists and scalars) one at a time, so that memory use does not grow
with the number of rows."""

import contextlib
import json
import re
import string
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from autoscout.importing import event_files, optuna, paths
from autoscout.importing.columnar import read_csv
from kb import door
from kb.sources import sqlite_rows

Tree = dict[str, Any]
Documents = Iterator[tuple[str, Tree, str]]  # (position in the file, tree, error message)
_SPACE = string.whitespace.encode()
_shallow = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NOTHING = msgspec.Raw(b"[]")
_WHOLE, _LINE = 2**26, 2**28  # size limits in bytes: of a file that is parsed as a whole, and of a line


def documents(
    path: Path,
    kind: str,
    query: str = "",
    repair: str = "",
    wanted: set[str] | None = None,
    patterns: Mapping[str, str] | None = None,
) -> Documents:
    """Yields the trees in a file. `wanted`: the keys of a JSON object whose lists are needed (None: all); other lists
    may be left empty. `patterns`: see Where in tool_file.py. Errors: ValueError, OSError or the parser's exception for
    a damaged file; AutoscoutError (exit 2) for SQLite and CSV."""
    match kind:
        case "json":
            yield from _json(path, wanted, repair)
        case "csv":
            yield from ((row.where, row.cells, row.problem) for row in read_csv(path).rows)
        case "csv steps":
            yield "", {"series": _columns(path)}, ""
        case "yaml":
            yield "", _table(yaml.safe_load(path.read_bytes())), ""
        case "sqlite":
            yield from ((f"row {i}", row, "") for i, row in enumerate(sqlite_rows(path, query), 1))
        case "tfevents":
            yield "", event_files.tensorboard(path), ""
        case "wandb":
            yield "", event_files.wandb(path), ""
        case "optuna journal":
            yield from optuna.trials(path)
        case "text":
            yield "", _matches(path, patterns or {}), ""
        case "mllog":
            yield "", _events(path, wanted), ""


def _columns(path: Path) -> dict[str, list[float]]:
    """Returns column → numbers. Errors: ValueError for a row that does not match the table."""
    found: dict[str, list[float]] = {}
    for row in read_csv(path).rows:
        if row.problem:
            raise ValueError(f"{row.where} {row.problem}")
        for name, cell in row.cells.items():
            with contextlib.suppress(ValueError):
                found.setdefault(name, []).append(float(cell))
    return found


def _matches(path: Path, patterns: Mapping[str, str]) -> dict[str, Any]:
    """Returns column → the value at the first line that its pattern matches; a number where it is one."""
    found: dict[str, Any] = {}
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            for name, pattern in patterns.items():
                if name not in found and (match := re.search(pattern, line)):
                    found[name] = match[1]
    for name, text in found.items():
        with contextlib.suppress(ValueError):
            found[name] = float(text)
    return found


def _events(path: Path, wanted: set[str] | None) -> Tree:
    """Returns key → events with this key, in the order of a log in MLCommons' format, whose lines contain ":::MLLOG"
    and a JSON object."""
    found: Tree = {}
    with open(path, "rb") as file:
        for line in iter(lambda: file.readline(_LINE), b""):
            _, tag, text = line.partition(b":::MLLOG ")
            if not tag:
                continue
            event = paths.flat(_table(_parsed(text)))
            key = str(event.get("key"))
            if wanted is None or key in wanted:
                found.setdefault(key, []).append(event)
    return found


def _json(path: Path, wanted: set[str] | None, repair: str) -> Documents:
    """Reads a file with one object, a list of objects, or one object per line. Large files must have one object per
    line."""
    with open(path, "rb") as file:
        content = file.read(_WHOLE + 1)
        if len(content) <= _WHOLE:
            try:
                yield from _of_whole(content, wanted, repair)
                return
            except ValueError:
                if b"\n{" not in content.strip():
                    raise
        file.seek(0)
        for i, line in enumerate(iter(lambda: file.readline(_LINE), b""), 1):
            if line.strip():
                yield _of_line(i, line, wanted)


def _of_line(number: int, line: bytes, wanted: set[str] | None) -> tuple[str, Tree, str]:
    try:
        return f"line {number}", _object(line, wanted), ""
    except ValueError as error:
        return f"line {number}", {}, f"the file is not JSON, or is truncated ({error})"


def _of_whole(content: bytes, wanted: set[str] | None, repair: str) -> Documents:
    try:
        if content.lstrip()[:1] == b"[":
            yield from ((f"[{i}]", _table(each), "") for i, each in enumerate(_parsed(content)))
        else:
            yield "", _object(content, wanted), ""
    except ValueError:
        if not repair:
            raise
        yield "", _table(_parsed(content.rstrip().removesuffix(b",") + repair.encode())), ""


def _object(text: bytes, wanted: set[str] | None) -> Tree:
    """Parses an object without unneeded lists, since a serving result has long lists with the times of every
    request."""
    try:
        found = _shallow.decode(text)
    except msgspec.DecodeError:  # not JSON, or JSON with NaN and Infinity, as Python's json module writes it
        return _table(_parsed(text))
    if not _once(text, found):
        return _table(_parsed(text))
    passed = (key for key, raw in found.items() if wanted is not None and key not in wanted and bytes(raw)[:1] == b"[")
    try:
        return {key: msgspec.json.decode(raw) for key, raw in {**found, **dict.fromkeys(passed, _NOTHING)}.items()}
    except msgspec.DecodeError:
        return _table(_parsed(text))


def _once(text: bytes, found: dict[str, msgspec.Raw]) -> bool:
    """Whether no key occurs twice, judged by the lengths of the text and of the entries `found`, which has only the
    last value of a duplicate key. Escaped keys are treated as duplicates."""
    # each entry has the form "key":value,
    length = sum(len(key) + len(memoryview(raw)) + 4 for key, raw in found.items())
    # json.dumps adds a space after each colon and comma
    if length + 2 * len(found) == len(text) - text.endswith(b"\n"):
        return True
    packed = sum(len(key.encode()) + len(_packed(bytes(raw))) + 4 for key, raw in found.items())
    return packed + (1 if found else 2) == len(_packed(text))


def _packed(text: bytes) -> bytes:
    return bytes(text).translate(None, _SPACE)


def _parsed(text: bytes) -> Any:
    def once(pairs: list[tuple[str, Any]]) -> Tree:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            raise ValueError(f"the key {next(k for k in keys if keys.count(k) > 1)} appears twice")
        return found

    return door.parsed_json(text, once)


def _table(found: Any) -> Tree:
    if not isinstance(found, dict):
        raise ValueError("the file contains no table of results")
    return found


def text_beside(path: Path) -> Any:
    """Returns the tree of a companion file (of JSON lines, the last object), or its text if it is not structured; None
    if there is no such file."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    readers: dict[str, Callable[[bytes], Any]] = {".json": _last, ".yaml": yaml.safe_load, ".yml": yaml.safe_load}
    try:
        return readers.get(path.suffix, lambda text: text.decode(errors="replace"))(content)
    except (ValueError, yaml.YAMLError):
        return None


def _last(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        lines = content.strip().splitlines()
        return json.loads(lines[-1]) if lines else None
