"""Reads a user's own JSON as a table: a list of objects, or one object per line. Nested objects become columns with
dots, such as config.tp. A single object may be a file of settings, so only `--reader json` reads it as a row."""

from collections.abc import Iterator
from pathlib import Path

from autoscout.importing import paths
from autoscout.importing.decoding import documents
from autoscout.importing.mapped import BROKEN
from autoscout.targets.found import Reader, Row, RowSource
from kb.records import AutoscoutError

_SUFFIXES = (".json", ".jsonl", ".ndjson")


def read_json(path: Path) -> RowSource:
    """Reads a JSON table. Errors: AutoscoutError (exit 2) for a file without rows; ValueError for a damaged file."""
    columns = list(dict.fromkeys(name for row in _rows(path) for name in row.cells))
    if not columns:
        raise AutoscoutError(f"{path} has no rows", 2)
    return RowSource(reader="json", columns=columns, rows=_rows(path))


def _rows(path: Path) -> Iterator[Row]:
    for i, (where, tree, problem) in enumerate(documents(path, "json"), 1):
        yield Row(where or f"row {i}", paths.flat(tree), problem)


def _is_table(path: Path) -> bool:
    if path.suffix.lower() not in _SUFFIXES:
        return False
    try:
        first = next(documents(path, "json", wanted=set()), None)
    except BROKEN:
        return False
    return first is not None and first[0] != "" and not first[2]


JSON = Reader(recognizes=_is_table, read=lambda path, job, space, part: read_json(path), rank=6)
