"""Measurements made elsewhere, stored as if a session had measured them, in a file next to the knowledge base.

    <kb folder>/imports/<sha256 of its bytes>.parquet    as in a lake (sharing/lake.py); a lost knowledge base is
                                                         rebuilt from it

An import is stored whole or not at all.
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

_PART = 3 * lake.GROUP  # rows that are stored at once
_FRUGAL = "SET memory_limit = '100MiB'"  # otherwise DuckDB would use all of its allowed memory
_UNFINISHED = ".unfinished-"


class Stored(NamedTuple):
    id: str  # the import's id
    new: int
    known: int  # rows that were already stored, or that repeat others


def store_import(kb: Path, id: str, job: Job, about: dict[str, str], at: float, found: Iterator[Measurement]) -> Stored:
    """Stores an import; storing the same again changes nothing. Rows that are identical to the last digit are stored
    once. `about`: reader, file name and the like, as shown in the view `imports`; `at`: unix time."""
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
    # Writes a file first: a large table takes minutes to read, and others should not have to wait for the lock.
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
            con.execute("DELETE FROM lake_file WHERE session = ?", [id])  # importing it again undoes forgetting it
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
    """Adds the rows of a file that this process has just written, part by part; returns how many are new."""
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
