"""Measurements made elsewhere: stored as if a session had measured them, kept in a file beside the knowledge base.

    <kb folder>/imports/<sha256 of its bytes>.parquet    as in a lake (kb/lake.py): what a lost knowledge base is
                                                         rebuilt from

All rows of an import come in, or none.
"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from kb import journal as journals
from kb import lake, rows, store
from kb.connect import reader, writer
from kb.records import AutoscoutError, Configuration, Job, Measurement

_AT_ONCE = 20_000


class Stored(NamedTuple):
    id: str  # of the import
    new: int
    known: int  # rows that the knowledge base had already


def store_import(kb: Path, id: str, job: Job, about: dict[str, str], at: float, found: Iterator[Measurement]) -> Stored:
    """`about`: reader, file name and the like, shown in the view `imports`; `at`: unix time.

    Importing the same again changes nothing. Errors: AutoscoutError when it was forgotten.
    """
    started = journals.SessionStarted(
        at=at,
        session=id,
        job=job,
        context="",
        strategy="import",
        seed=0,
        fidelity="profiled",
        warm_start="off",
        hyper=dict(about),
        environment={},
        kb_mark=0,
        default=Configuration({}),
        orderings=[],
    )
    new = total = 0
    with writer(kb) as con:
        if con.execute("SELECT 1 FROM forgotten WHERE session = ?", [id]).fetchone():
            con.execute("DELETE FROM forgotten WHERE session = ?", [id])  # who imports it again wants it again
        con.execute("BEGIN")
        store.insert(con, "job", [store.job_row(job)])
        store.insert(con, "session", [store.session_row(started, "import")])
        while batch := [rows.incoming(id, job.id, None, "import", m) for m in islice(found, _AT_ONCE)]:
            rows.stage(con, batch)
            new += rows.store_incoming(con)
            total += len(batch)
        if total == 0:
            con.execute("ROLLBACK")
            raise AutoscoutError("no row could be imported, so nothing was stored")
        con.execute("COMMIT")
        if new:
            written = lake.write_session(con, id, store.imports_folder(kb))
            con.execute("INSERT INTO lake_file VALUES (?, ?, ?, 0) ON CONFLICT DO NOTHING", [written, id, new])
    return Stored(id, new, total - new)


def listed(kb: Path) -> list[str]:
    with reader(kb) as con:
        return [
            id for (id,) in con.execute("SELECT id FROM session WHERE source = 'import' ORDER BY unix_s").fetchall()
        ]
