"""Read-only SQL for people: runs one query at a time and returns plain data, or that in the usual formats."""

import contextlib
import csv
import datetime
import decimal
import io
import math
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from kb.query_room import Request
from kb.records import AutoscoutError

_LONGEST_CELL = 60  # characters, in the formats for terminals
_MOST = 2**40  # rows
_IN_THE_FILE_S = 0.5  # longest time a query may block writers
_PREFIX = ".asked-"
_STALE_S = 86_400.0
_VALUES = {
    *(("datetime", name) for name in ("datetime", "date", "time", "timedelta", "timezone")),
    ("decimal", "Decimal"),
    ("uuid", "UUID"),
}


class Table(NamedTuple):
    columns: list[str]  # each name once
    types: list[str]  # DuckDB's names
    rows: list[tuple[Any, ...]]
    truncated: bool  # there are more rows than `limit`


def run(
    kb: Path, sql: str, limit: int | None = 1000, offset: int = 0, *, seconds: float = 60.0, memory_mib: int = 1024
) -> Table:
    """Runs one query and returns at most `limit` rows (None: all) after the first `offset`.

    It cannot change anything or read files, and runs in a process of its own (kb/query_room.py), which is ended after
    `seconds` or when DuckDB needs more than `memory_mib`. Errors: AutoscoutError; exit code 2, with DuckDB's words
    about where, if the query is wrong. Raises KeyboardInterrupt when interrupted.
    """
    try:
        sql.encode()
    except UnicodeEncodeError:
        raise AutoscoutError("the query is no valid UTF-8 text", 2) from None
    count = None if limit is None else min(limit, _MOST) + 1
    request = Request(str(kb), sql, count, min(offset, _MOST), _IN_THE_FILE_S, memory_mib, "")
    reply = _ask(request)
    if reply is None and seconds > _IN_THE_FILE_S:
        with _folder(kb) as folder:
            reply = _ask(msgspec.structs.replace(request, seconds=seconds, copy=folder))
    if reply is None:
        raise AutoscoutError(f"the query took more than {seconds:g} s and was ended; give it more with --seconds", 2)
    columns, types, rows = reply
    truncated = limit is not None and len(rows) > limit
    return Table(_distinct(columns), types, rows[:limit], truncated)


def _ask(request: Request) -> Any:
    """The columns, their types and the rows; None on timeout."""
    # The same modules as ours, and none from the person's current folder.
    path = os.pathsep.join(each for each in sys.path if each)
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "kb.query_room"],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdin
    assert process.stdout
    try:
        with contextlib.suppress(BrokenPipeError):  # it has ended; stdin stays open, as it ends with it
            process.stdin.write(msgspec.json.encode(request) + b"\n")
            process.stdin.flush()
        said = process.stdout.read()
        code = process.wait()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
    if code == -signal.SIGALRM:
        return None
    if code:
        raise AutoscoutError(
            f"the query ended its process ({signal.strsignal(-code) if code < 0 else f'exit code {code}'}): it "
            f"needs too much memory, or DuckDB cannot do it; ask for less, or give it more with --memory-mib",
            2,
        )
    reply = _Plain(io.BytesIO(said)).load()
    if reply[0] == "error":
        raise AutoscoutError(reply[1], reply[2])
    return reply


class _Plain(pickle.Unpickler):
    """Unpickles values only: the process that answers ran somebody's query."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        if (module_name, global_name) not in _VALUES:
            raise pickle.UnpicklingError(f"{module_name}.{global_name} is no value")
        return super().find_class(module_name, global_name)


@contextlib.contextmanager
def _folder(kb: Path) -> Iterator[str]:
    """A folder for a copy of the knowledge base and temporary files, beside it if possible; removes what killed queries
    left."""
    parent = kb.resolve().parent
    parent = parent if os.access(parent, os.W_OK) else Path(tempfile.gettempdir())
    for old in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - old.stat().st_mtime > _STALE_S:
                shutil.rmtree(old)
    try:
        with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=parent, ignore_cleanup_errors=True) as folder:
            yield folder
    except OSError as error:
        raise AutoscoutError(
            f"{parent}: a copy to ask cannot be made there ({error.strerror}); free some space"
        ) from error


def render(table: Table, form: str) -> str | bytes:
    """The table as `table`, `csv`, `json`, `markdown` or `parquet`; bytes for parquet.

    Errors: AutoscoutError, exit code 2, for another format.
    """
    if form not in FORMATS:
        raise AutoscoutError(f"there is no format {form!r}; choose one of {', '.join(FORMATS)}", 2)
    return FORMATS[form](table)


def _distinct(names: list[str]) -> list[str]:
    taken: set[str] = set()
    result: list[str] = []
    for name in names:
        unique, number = name, 1
        while unique.lower() in taken:
            number += 1
            unique = f"{name}_{number}"
        taken.add(unique.lower())
        result.append(unique)
    return result


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
        lines.append(f"… only the first {len(table.rows)} rows")
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
    """A list with one object per row; columns of type JSON are embedded as they are."""
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
        # As text, in one parameter: the duckdb package is slow with many (see rows.stage).
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
    """The value in JSON's types; others as text."""
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
