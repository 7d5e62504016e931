"""Reads tables of measurements from CSV, JSON (both plain or gzip) and Parquet files, filtered by a SQL predicate."""

import gzip
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kb import door
from kb.query import Table
from kb.records import AutoscoutError

_JSON = "read_json(?, format = 'newline_delimited', sample_size = -1)"
_FORMATS = {
    ".parquet": "read_parquet(?)",
    ".csv": "read_csv(?, sample_size = -1)",
    ".tsv": "read_csv(?, delim = '\t')",
    **dict.fromkeys((".json", ".jsonl", ".ndjson"), _JSON),
}

_DECIMAL_COMMAS = "read_csv(?, sample_size = -1, decimal_separator = ',')"


def read_table(path: Path, where: str = "") -> Table:
    """All rows of the file for which the predicate `where` is true. The predicate is evaluated in an in-memory database
    that cannot open files. Errors: AutoscoutError (exit 2) for a file that is not a table, or an invalid predicate.
    """
    import duckdb

    if not door.utf8(path).is_file():
        raise AutoscoutError(f"{path}: there is no such file", 2)
    suffix = Path(path.stem).suffix if path.suffix in (".gz", ".zst") else path.suffix
    if suffix.lower() not in _FORMATS:
        raise AutoscoutError(
            f"{path} is not a table that AutoScout can read; pass a .csv, .csv.gz, .tsv, .json or .parquet file", 2
        )
    with duckdb.connect(":memory:") as con, tempfile.TemporaryDirectory() as folder:
        try:
            by_semicolons = suffix.lower() == ".csv" and _by_semicolons(con, path)
            read = _DECIMAL_COMMAS if by_semicolons else _FORMATS[suffix.lower()]
            source = _flat_lines(path, Path(folder) / "rows.json") if read == _JSON else path
            con.execute(f"CREATE TABLE measured AS FROM {read}", [str(source)])
        except duckdb.Error as error:
            raise AutoscoutError(f"{path} cannot be read as a table ({_first_line(error)})", 2) from error
        con.execute("SET enable_external_access = false; SET lock_configuration = true")
        sql = f"SELECT * FROM measured WHERE ({where}\n)" if where else "FROM measured"
        try:
            if len(con.extract_statements(sql)) != 1:
                raise AutoscoutError(f"--where {where}: give one predicate, without ';'", 2)
            cursor = con.execute(sql)
            rows: list[tuple[Any, ...]] = cursor.fetchall()
        except duckdb.Error as error:
            raise AutoscoutError(f"--where {where}: {_first_line(error)}", 2) from error
        return Table([c[0] for c in cursor.description], [str(c[1]) for c in cursor.description], rows, False)


def _flat_lines(path: Path, flat: Path) -> Path:
    """Writes a JSON table (a list of objects, or one object per line) to `flat`, one object per line, with nested
    objects as columns with dots and without lists. DuckDB would make structs of them, and refuses the NaN and Infinity
    that Python's json module writes, which become null. Errors: AutoscoutError (exit 2)."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        rows = _objects(content.decode())
        flat.write_text("".join(json.dumps(dict(_leaves(row))) + "\n" for row in rows))
    except (ValueError, OSError, RecursionError) as error:
        raise AutoscoutError(f"{path} cannot be read as a JSON table ({_first_line(error)})", 2) from error
    return flat


def _objects(text: str) -> list[dict[str, Any]]:
    try:
        found = json.loads(text, parse_constant=lambda name: None)
    except ValueError:
        found = [json.loads(line, parse_constant=lambda name: None) for line in text.splitlines() if line.strip()]
    rows = found if isinstance(found, list) else [found]
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise ValueError("it must be a list of objects, or one object per line")
    return rows


def _leaves(tree: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{before}{name}.")
        elif not isinstance(value, list):
            yield f"{before}{name}", value


def _by_semicolons(con: Any, path: Path) -> bool:
    """Whether semicolons separate the columns, so that a comma is a decimal sign (as in German)."""
    sniffed = con.execute("SELECT Delimiter FROM sniff_csv(?)", [str(path)]).fetchone()
    return sniffed is not None and sniffed[0] == ";"


def _first_line(error: Exception) -> str:
    return " ".join(str(error).partition("\n\nLINE ")[0].split())
