"""Formats the result of a query for terminals, or as CSV, JSON, Markdown or Parquet."""

import csv
import datetime
import decimal
import io
import math
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from kb.query import Table
from kb.refusal import AutoscoutError

_LONGEST_CELL = 60  # largest number of characters of a cell in the formats `table` and `markdown`


def render(table: Table, form: str) -> str | bytes:
    """The table in the format `form`: `table`, `csv`, `json`, `markdown` or `parquet` (bytes). Errors: AutoscoutError
    (exit 2) for another format."""
    if form not in FORMATS:
        raise AutoscoutError(f"there is no format {form!r}; choose one of {', '.join(FORMATS)}", 2)
    return FORMATS[form](table)


def _as_table(table: Table) -> str:
    rows = [table.columns, *([_cell(value) for value in row] for row in table.rows)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(table.columns))]
    right = [_is_number(kind) for kind in table.types]
    lines = [
        "  ".join(
            text.rjust(width) if is_right else text.ljust(width)
            for text, width, is_right in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in rows
    ]
    lines.insert(1, "  ".join("─" * width for width in widths))
    if table.truncated:
        lines.append(f"… only the first {len(table.rows)} rows are shown")
    return "\n".join(lines) + "\n"


def _as_markdown(table: Table) -> str:
    def line(cells: list[str]) -> str:
        return "| " + " | ".join(cell.replace("\\", "\\\\").replace("|", "\\|") for cell in cells) + " |"

    rule = "|" + "|".join(" ---: " if _is_number(kind) else " --- " for kind in table.types) + "|"
    body = [line([_cell(value) for value in row]) for row in table.rows]
    return "\n".join([line(table.columns), rule, *body]) + "\n"


def _as_csv(table: Table) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows([_text(value) for value in row] for row in table.rows)
    return out.getvalue()


def _as_json(table: Table) -> str:
    """A list with one object per row; values of type JSON are embedded as JSON, not as text."""
    rows = [
        {
            name: msgspec.Raw(value.encode()) if kind == "JSON" and value is not None else _plain(value)
            for name, kind, value in zip(table.columns, table.types, row, strict=True)
        }
        for row in table.rows
    ]
    lines = [msgspec.json.encode(row).decode() for row in rows]
    return "[" + ",\n ".join(lines) + "]\n"


def _as_parquet(table: Table) -> bytes:
    import duckdb

    columns = ", ".join(
        f"{_quoted(name)} {'INTEGER' if kind == 'NULL' else kind}"
        for name, kind in zip(table.columns, table.types, strict=True)
    )
    shape = msgspec.json.encode([{f"c{i}": "VARCHAR" for i in range(len(table.columns))}]).decode()
    rows = msgspec.json.encode([{f"c{i}": _as_sql_text(value) for i, value in enumerate(row)} for row in table.rows])
    picks = ", ".join(_from_text(f"c{i}", kind) for i, kind in enumerate(table.types))
    with tempfile.TemporaryDirectory() as folder, duckdb.connect(":memory:") as con:
        path = Path(folder) / "table.parquet"
        con.execute(f"CREATE TABLE result ({columns})")
        # All rows are passed as one JSON text, since the duckdb package is slow with many parameters (see rows.stage).
        con.execute(
            f"INSERT INTO result SELECT {picks} FROM (SELECT unnest(from_json(?, '{shape}'), max_depth := 2))",
            [rows.decode()],
        )
        con.execute(f"COPY result TO '{path}' (FORMAT parquet, COMPRESSION zstd)")
        return path.read_bytes()


def _as_sql_text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime.timedelta):
        return f"{value.days} days {value.seconds} seconds {value.microseconds} microseconds"
    return _text(value)


def _from_text(column: str, kind: str) -> str:
    if kind == "NULL":
        return "NULL"
    if kind == "BLOB":
        return f"unhex({column})"
    if kind.endswith("]") or kind.startswith(("STRUCT", "MAP")):
        return f"CAST({column}::JSON AS {kind})"
    return f"CAST({column} AS {kind})"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _is_number(kind: str) -> bool:
    return re.fullmatch(r"U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|DOUBLE|FLOAT|DECIMAL.*", kind) is not None


def _cell(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else " ".join(_text(value).split())
    return text if len(text) <= _LONGEST_CELL else text[: _LONGEST_CELL - 1] + "…"


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | dict):
        return msgspec.json.encode(_plain(value)).decode()
    return str(value)


def _plain(value: Any) -> Any:
    """The value with JSON's types; values of other types become text."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, decimal.Decimal):
        return float(value)
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    if isinstance(value, bool | str) or value is None or (isinstance(value, int) and abs(value) < 2**63):
        return value
    return str(value)


FORMATS: dict[str, Callable[[Table], str | bytes]] = {
    "table": _as_table,
    "csv": _as_csv,
    "json": _as_json,
    "parquet": _as_parquet,
    "markdown": _as_markdown,
}
