"""Derives knobs and codes from a table of measured configurations."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from autoscout.job.words import meant
from autoscout.space.codes import INACTIVE
from autoscout.space.knob import Knob
from autoscout.space.network import key
from kb.records import AutoscoutError, Value

Columns = dict[str, list[Value | None]]
Table = list[dict[str, Value]] | Mapping[str, Any] | str | Path  # rows, columns by name, or a file's path
_MOST_VALUES = 2**15 - 1


def columns_of(table: Table) -> Columns:
    """Returns columns of plain values, None for a missing value. Files may be CSV (also .gz) or Parquet.

    Errors: AutoscoutError (exit 2) for a file that cannot be read as a table."""
    if isinstance(table, str | Path):
        return _read(Path(table))
    if isinstance(table, Mapping):
        return {name: _listed(column) for name, column in table.items()}
    names = dict.fromkeys(name for row in table for name in row)
    return {name: [_plain(row.get(name)) for row in table] for name in names}


def _read(path: Path) -> Columns:
    import duckdb

    try:
        table = duckdb.read_parquet(str(path)) if path.suffix == ".parquet" else duckdb.read_csv(str(path))
        names, rows = table.columns, table.fetchall()
    except duckdb.Error as error:
        raise AutoscoutError(f"{path}: not a CSV or Parquet table: {str(error).splitlines()[0]}", 2) from error
    return {name: [_plain(v) for v in column] for name, column in zip(names, zip(*rows, strict=True), strict=False)}


def _listed(column: Any) -> list[Value | None]:
    if isinstance(column, np.ndarray) and column.dtype.kind in "biuU":
        return column.tolist()
    return [_plain(v) for v in column]


def _plain(value: Any) -> Value | None:
    value = value.item() if isinstance(value, np.generic) else value
    return None if value is None or value != value else value


def knobs_of(columns: Columns, sparse: Iterable[str] | None, dense: Iterable[str] | None) -> list[Knob]:
    """Returns sparse knobs, then dense knobs, in the given order. If neither list is given, columns with text or at
    most two values are sparse, all others dense. A knob's domain is the sorted list of its values in the table.

    Errors: AutoscoutError (exit 2) for a column that is missing, empty, or has too many values."""
    if sparse is None and dense is None:
        sparse = [name for name, column in columns.items() if _is_choice(column)]
        dense = [name for name in columns if name not in sparse]
    return [
        *(_knob(name, "sparse", columns) for name in dict.fromkeys(sparse or [])),
        *(_knob(name, "dense", columns) for name in dict.fromkeys(dense or [])),
    ]


def codes_of(columns: Columns, knobs: list[Knob]) -> np.ndarray:
    """Returns the rows' codes, (n, knobs). A missing value means that the knob is inactive."""
    n = len(next(iter(columns.values()), []))
    codes = np.empty((n, len(knobs)), dtype=np.int16, order="F")
    for i, knob in enumerate(knobs):
        column = columns[knob.name]
        place: dict[Any, int] = {key(v): code for code, v in enumerate(knob.values)} | {None: INACTIVE}
        if not _mixes_switches(column):  # the values themselves can be dictionary keys
            place = {v: code for code, v in enumerate(knob.values)} | {None: INACTIVE}
            codes[:, i] = [place[v] for v in column]
        else:
            codes[:, i] = [place[v if v is None else key(v)] for v in column]
    return codes


def _mixes_switches(column: list[Value | None]) -> bool:
    """Whether the column may contain both True and 1, which are equal in Python."""
    return bool in (kinds := set(map(type, column))) and len(kinds - {type(None)}) > 1


def _distinct(column: list[Value | None]) -> list[Value]:
    if _mixes_switches(column):
        return list({key(v): v for v in column if v is not None}.values())
    return [v for v in dict.fromkeys(column) if v is not None]


def _is_choice(column: list[Value | None]) -> bool:
    values = _distinct(column)
    return len(values) <= 2 or any(isinstance(v, str) for v in values)


def _knob(name: str, kind: Literal["sparse", "dense"], columns: Columns) -> Knob:
    if name not in columns:
        raise AutoscoutError(f"the table has no column '{name}'{meant(name, columns)}", 2)
    occurring = _distinct(columns[name])
    if not occurring:
        raise AutoscoutError(
            f"the column '{name}' has no value in any row, so it cannot be a knob; remove it from the knobs", 2
        )
    if len(occurring) > _MOST_VALUES:
        raise AutoscoutError(
            f"the column '{name}' has too many different values for a knob ({len(occurring):,}); remove it "
            "from the knobs",
            2,
        )
    values = sorted(occurring, key=lambda v: (isinstance(v, str), v, isinstance(v, bool)))
    return Knob(name=name, kind=kind, layer="table", values=tuple(values), meaning="a column of the table", sets=name)
