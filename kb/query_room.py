"""Runs one query of a user in its own process, which kb/query.py starts.

The kernel limits the time and memory of this process, whatever DuckDB does, and a crash affects nothing else. The query
first runs on the knowledge base itself, for at most half a second, because sessions cannot write during that time. A
slower query is run again on a copy, so that the lock is only held while copying.
"""

import contextlib
import os
import pickle
import re
import resource
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kb import allowed, lock
from kb.connect import lock_path, reader
from kb.records import AutoscoutError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_BESIDE = 1536 * 2**20  # bytes of address space for Python, threads and the answer, in addition to DuckDB's memory
_SPILLED_MIB = 4096  # limit on the temporary files into which DuckDB moves what does not fit into memory


class Request(msgspec.Struct):
    kb: str
    sql: str
    count: int | None  # largest number of rows to return; None: all
    offset: int
    seconds: float  # limit on the running time
    memory_mib: int
    copy: str  # folder for the copy and temporary files; "": query the file itself


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles interrupts, and ends this process
    request = msgspec.json.decode(sys.stdin.buffer.readline(), type=Request)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        reply: Any = _answer(request)
    except AutoscoutError as error:
        reply = ("error", str(error), error.exit_code)
    except MemoryError:
        reply = ("error", _too_much(request), 2)
    except RecursionError:
        reply = ("error", "the query is nested too deeply", 2)
    pickle.dump(reply, sys.stdout.buffer)
    sys.stdout.buffer.flush()
    os._exit(0)  # exits without running DuckDB's destructors


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


def _answer(request: Request) -> tuple[Any, ...]:
    import duckdb

    with _opened(request) as con:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, request.seconds)
        space = request.memory_mib * 2**20 + _BESIDE
        resource.setrlimit(resource.RLIMIT_AS, (space, space))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        try:
            _refuse_all_but_queries(con, request.sql)
            cursor = con.execute(request.sql)
            _leave_out(cursor, request.offset)
            rows = cursor.fetchall() if request.count is None else cursor.fetchmany(request.count)
        except (duckdb.IOException, duckdb.InternalException, duckdb.FatalException) as error:
            if "max_temp_directory_size" not in str(error):
                raise  # the error is in the database file, not in the query
            raise AutoscoutError(_too_much(request), 2) from error
        except duckdb.OutOfMemoryException as error:
            raise AutoscoutError(_too_much(request), 2) from error
        except duckdb.Error as error:
            raise AutoscoutError(_sentence(str(error)), 2) from error
        return [column[0] for column in cursor.description], [str(column[1]) for column in cursor.description], rows


@contextlib.contextmanager
def _opened(request: Request) -> "Iterator[DuckDBPyConnection]":
    kb = Path(request.kb)
    limits = {"memory_limit": f"{request.memory_mib}MiB", "threads": str(min(4, os.cpu_count() or 1))}
    if request.copy:
        kb = _copied(kb, Path(request.copy))
        limits |= {"temp_directory": f"{request.copy}/spilled", "max_temp_directory_size": f"{_SPILLED_MIB}MiB"}
    else:
        limits |= {"temp_directory": ""}
    with reader(kb, files=True, results=True) as con:
        for name, value in (*limits.items(), ("enable_external_access", "false"), ("lock_configuration", "true")):
            con.execute(f"SET {name} = '{value.replace(chr(39), chr(39) * 2)}'")
        yield con


def _copied(kb: Path, folder: Path) -> Path:
    copy = folder / "kb.duckdb"
    with lock.shared(lock_path(kb)):
        for suffix in ("", ".wal"):
            source = kb.with_name(kb.name + suffix)
            if source.exists():
                shutil.copyfile(source, copy.with_name(copy.name + suffix))
    return copy


def _leave_out(cursor: Any, rows: int) -> None:
    while found := cursor.fetchmany(min(rows, 10_000)):
        rows -= len(found)


def _too_much(request: Request) -> str:
    return (
        f"the query needs more than {request.memory_mib} MiB of memory or {_SPILLED_MIB} MiB of temporary files; "
        f"select less data, or raise the limit with --memory-mib"
    )


def _refuse_all_but_queries(con: "DuckDBPyConnection", sql: str) -> None:
    statements = con.extract_statements(sql)
    if not statements:
        raise AutoscoutError("there is no SQL to run; `FROM runs` shows all measurements", 2)
    kinds = [statement.type.name for statement in statements]
    # DuckDB splits a PIVOT into two statements without text, the first of which creates a temporary type.
    pivots = [*["CREATE"] * (len(kinds) - 1), "SELECT"] == kinds and not any(s.query.strip() for s in statements)
    for kind in kinds:
        if kind not in ("SELECT", "EXPLAIN") and not pivots:
            raise AutoscoutError(
                f"{kind} is refused: SQL here only reads the knowledge base; start with SELECT or FROM", 2
            )
    if len(kinds) > 1 and not pivots:
        raise AutoscoutError("the text contains more than one query; run one at a time", 2)
    allowed.check(con, sql)


def _sentence(message_text: str) -> str:
    """DuckDB's error as a sentence, followed by the line of the query with a caret at the position."""
    message, line, position = message_text.partition("\n\nLINE ")
    message = " ".join(message.split())
    if re.search("file system operations are disabled|is disabled through configuration", message):
        message = f"SQL here cannot touch files or load extensions ({message}); use --out to write a result"
    elif "read-only mode" in message:
        message = f"SQL here only reads the knowledge base ({message})"
    elif "'pytz'" in message:
        message = "times with a time zone cannot be shown; cast the column with ::TIMESTAMP"
    else:
        message = f"the query failed: {message}"
    return f"{message}\nLINE {position}" if line else message


if __name__ == "__main__":
    main()
