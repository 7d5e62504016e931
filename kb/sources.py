"""Reads files of other tools row by row: Parquet (with DuckDB) and SQLite."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from kb.records import AutoscoutError

_BATCH = 10_000


def parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a Parquet file. Errors: AutoscoutError (exit 2) if it is not a Parquet file."""
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


def sqlite_rows(path: Path, query: str) -> Iterator[dict[str, Any]]:
    """The rows of a query on a SQLite file, which is opened read-only. Errors: AutoscoutError (exit 2)."""
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as con:
            con.row_factory = sqlite3.Row
            for row in con.execute(query):
                yield dict(row)
    except sqlite3.Error as error:
        raise AutoscoutError(f"{path} cannot be read as SQLite ({error})", 2) from error


def sqlite_tables(path: Path) -> set[str]:
    """Names of the tables in a SQLite file; an empty set if the file is not a SQLite database."""
    with open(path, "rb") as file:
        if file.read(15) != b"SQLite format 3":
            return set()
    return {row["name"] for row in sqlite_rows(path, "SELECT name FROM sqlite_master WHERE type = 'table'")}
