"""Reads tables of measurements from CSV files (plain or gzip) and Parquet files, filtered by a SQL predicate."""

from pathlib import Path
from typing import Any

from kb import door
from kb.query import Table
from kb.records import AutoscoutError

_FORMATS = {".parquet": "read_parquet(?)", ".csv": "read_csv(?, sample_size = -1)", ".tsv": "read_csv(?, delim = '\t')"}

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
            f"{path} is not a table that AutoScout can read; pass a .csv, .csv.gz, .tsv or .parquet file", 2
        )
    with duckdb.connect(":memory:") as con:
        try:
            by_semicolons = suffix.lower() == ".csv" and _by_semicolons(con, path)
            read = _DECIMAL_COMMAS if by_semicolons else _FORMATS[suffix.lower()]
            con.execute(f"CREATE TABLE measured AS FROM {read}", [str(path)])
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


def _by_semicolons(con: Any, path: Path) -> bool:
    """Whether semicolons separate the columns, so that a comma is a decimal sign (as in German)."""
    sniffed = con.execute("SELECT Delimiter FROM sniff_csv(?)", [str(path)]).fetchone()
    return sniffed is not None and sniffed[0] == ";"


def _first_line(error: Exception) -> str:
    return " ".join(str(error).partition("\n\nLINE ")[0].split())
