"""Stores measurements that were made elsewhere (an import) in the same tables as those of sessions, completely or not
at all.

<kb folder>/imports/<sha256 of its bytes>.parquet    a copy in the format of sharing/lake.py, from which a lost
                                                     knowledge base is rebuilt
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kb import journal as journals
from kb import journal_rows, lock, rows, store
from kb.connect import writer
from kb.records import Configuration, Job, Measurement
from kb.sharing import lake

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_PART = 3 * lake.GROUP  # number of rows that are stored at once
_FRUGAL = "SET memory_limit = '100MiB'"  # because DuckDB uses as much memory as its limit allows
_UNFINISHED = ".unfinished-"


class Stored(NamedTuple):
    id: str  # the import's id
    new: int
    known: int  # number of rows that were already stored, or repeat other rows


def store_import(kb: Path, id: str, job: Job, about: dict[str, str], at: float, found: Iterator[Measurement]) -> Stored:
    """Stores an import, unless it is already stored. Identical rows are stored once. `about`: facts that the view
    `imports` shows, such as the reader and the file's name; `at`: unix time."""
    started = journals.SessionStarted(
        at=at,
        session=id,
        job=job,
        context="",
        strategy="import",
        seed=0,
        fidelity="profile",
        warm_start="off",
        hyper=dict(about),
        environment={},
        kb_mark=0,
        default=Configuration({}),
        orderings=[],
    )
    imports = store.imports_folder(kb)
    imports.mkdir(parents=True, exist_ok=True)
    # The file is written before the lock is taken, because reading a large table takes minutes.
    with lock.temporary_folder(imports, _UNFINISHED) as folder, writer(folder / "kb.duckdb") as con:
        _describe(con, job, started)
        lines = folder / "rows.jsonl"
        total = rows.write_lines(lines, (rows.incoming(id, job.id, None, "import", each) for each in found))
        if not total:
            return Stored(id, 0, 0)
        con.execute(_FRUGAL)
        written = lake.write_session(con, id, folder, further=rows.of_lines(lines))
        file = imports / f"{written}.parquet"
        os.replace(folder / file.name, file)
    with writer(kb) as con:
        con.execute("BEGIN")
        if con.execute("DELETE FROM forgotten WHERE session = ? RETURNING session", [id]).fetchall():
            con.execute("DELETE FROM lake_file WHERE session = ?", [id])  # so that it can be imported again
        new = 0
        if not con.execute("SELECT 1 FROM lake_file WHERE hash = ?", [written]).fetchone():
            _describe(con, job, started)
            con.execute(_FRUGAL)
            new = _take(con, file, id, total)
            con.execute("RESET memory_limit")
        con.execute("COMMIT")
    return Stored(id, new, total - new)


def _describe(con: "DuckDBPyConnection", job: Job, started: journals.SessionStarted) -> None:
    rows.insert(con, "job", [journal_rows.job_row(job)])
    rows.insert(con, "session", [journal_rows.session_row(started, "import")])


def _take(con: "DuckDBPyConnection", file: Path, id: str, total: int) -> int:
    """Stores the rows of a file that this process has just written, some at a time; returns the number of new ones."""
    new = 0
    found = f"FROM read_parquet({lake.quoted(file)}) WHERE kind = 'measurement'"
    for first in range(1, total + 1, _PART):
        con.execute(
            f"CREATE OR REPLACE TEMP VIEW incoming AS {found} AND place BETWEEN {first} AND {first + _PART - 1}"
        )
        new += rows.store_incoming(con)
    con.execute(
        f"INSERT INTO lake_file SELECT $hash, $id, count(DISTINCT id), 0 {found}", {"hash": file.stem, "id": id}
    )
    return new
