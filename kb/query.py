"""Read-only SQL for users: runs one query at a time and returns plain data (query_formats.py writes it)."""

import contextlib
import io
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from kb import lock
from kb.query_room import Request
from kb.records import AutoscoutError

_MOST = 2**40  # larger limits and offsets, in rows, are replaced by this one before they are passed to DuckDB
_IN_THE_FILE_S = 0.5  # how long a query may run on the file itself, where it blocks writers
_VALUES = {
    *(("datetime", name) for name in ("datetime", "date", "time", "timedelta", "timezone")),
    ("decimal", "Decimal"),
    ("uuid", "UUID"),
}


class Table(NamedTuple):
    columns: list[str]  # distinct names
    types: list[str]  # DuckDB's names of the columns' types
    rows: list[tuple[Any, ...]]
    truncated: bool  # whether the query has more rows than `limit`


def run(
    kb: Path, sql: str, limit: int | None = 1000, offset: int = 0, *, seconds: float = 60.0, memory_mib: int = 1024
) -> Table:
    """Runs one query and returns at most `limit` rows (None: all) after the first `offset`.

    The query cannot change anything or read files. It runs in a separate process (kb/query_room.py), which is ended
    after `seconds` or if DuckDB needs more than `memory_mib`. Errors: AutoscoutError (exit 2, with DuckDB's message and
    position, if the query is invalid); KeyboardInterrupt.
    """
    try:
        sql.encode()
    except UnicodeEncodeError:
        raise AutoscoutError("the query is not valid UTF-8 text", 2) from None
    count = None if limit is None else min(limit, _MOST) + 1
    request = Request(str(kb), sql, count, min(offset, _MOST), _IN_THE_FILE_S, memory_mib, "")
    reply = _ask(request)
    if reply is None and seconds > _IN_THE_FILE_S:
        with _folder(kb) as folder:
            reply = _ask(msgspec.structs.replace(request, seconds=seconds, copy=folder))
    if reply is None:
        raise AutoscoutError(f"the query was stopped after {seconds:g} s; set a longer limit with --seconds", 2)
    columns, types, rows = reply
    truncated = limit is not None and len(rows) > limit
    return Table(_distinct(columns), types, rows[:limit], truncated)


def _ask(request: Request) -> Any:
    """Runs the query in a new process; returns names of columns, their types, and rows, or None on timeout."""
    # The process must import the same modules as this one, and none from the user's current folder.
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
        # The process may have ended. Its stdin stays open, because closing it would kill the process.
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(msgspec.json.encode(request) + b"\n")
            process.stdin.flush()
        answer = process.stdout.read()
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
            f"the process of the query ended ({signal.strsignal(-code) if code < 0 else f'exit code {code}'}): the "
            f"query needs too much memory, or DuckDB failed; select less data, or raise the limit with --memory-mib",
            2,
        )
    reply = _Plain(io.BytesIO(answer)).load()
    if reply[0] == "error":
        raise AutoscoutError(reply[1], reply[2])
    return reply


class _Plain(pickle.Unpickler):
    """Unpickles only plain values, since a user's query may have compromised the process that answers."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        if (module_name, global_name) not in _VALUES:
            raise pickle.UnpicklingError(f"{module_name}.{global_name} is not a value")
        return super().find_class(module_name, global_name)


@contextlib.contextmanager
def _folder(kb: Path) -> Iterator[str]:
    """A temporary folder for a copy of the knowledge base, next to it if possible. Also removes the folders of killed
    queries."""
    parent, prefix = kb.resolve().parent, ".asked-"
    if not os.access(parent, os.W_OK):
        parent, prefix = Path(tempfile.gettempdir()), f".asked-{os.getuid()}-"
    try:
        with lock.temporary_folder(parent, prefix) as folder:
            yield str(folder)
    except OSError as error:
        raise AutoscoutError(
            f"{parent}: cannot copy the knowledge base to this folder ({error.strerror}); free some space"
        ) from error


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
