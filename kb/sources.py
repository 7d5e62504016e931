"""Reads foreign files that need SQL, row by row: Parquet (with DuckDB) and SQLite."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kb.records import AutoscoutError

_BATCH = 10_000


def parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Errors: AutoscoutError (exit 2) when it is no Parquet file."""
    import duckdb

    with duckdb.connect(":memory:") as con:
        try:
            cursor = con.execute("FROM read_parquet(?)", [str(path)])
        except duckdb.Error as error:
            raise AutoscoutError(f"{path} cannot be read as Parquet ({' '.join(str(error).split())})", 2) from error
        names = [column[0] for column in cursor.description]
        while batch := cursor.fetchmany(_BATCH):
            for row in batch:
                yield dict(zip(names, row, strict=True))


def sqlite_tables(path: Path, tables: list[str]) -> dict[str, list[dict[str, Any]]]:
    """The rows of some tables; a missing table has none. Errors: AutoscoutError (exit 2)."""
    found: dict[str, list[dict[str, Any]]] = {}
    try:
        with sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True) as con:
            con.row_factory = sqlite3.Row
            there = {name for (name,) in con.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            for table in tables:
                rows = con.execute(f'SELECT * FROM "{table}"') if table in there else []
                found[table] = [dict(row) for row in rows]
    except sqlite3.Error as error:
        raise AutoscoutError(f"{path} cannot be read as SQLite ({error})", 2) from error
    return found
