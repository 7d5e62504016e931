"""Measurements made elsewhere: stored as if a session had measured them, kept in a file beside the knowledge base.

    <kb folder>/imports/<sha256 of its bytes>.parquet    as in a lake (sharing/lake.py); a lost knowledge base is
                                                         rebuilt from it

An import is stored whole or not at all.
"""

import shutil
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from kb import dates, journal_rows, lock, rows, store
from kb import journal as journals
from kb.connect import reader, writer
from kb.records import Configuration, Job, Measurement
from kb.sharing import lake

_BATCH = 20_000
_UNFINISHED = ".unfinished-"
_STALE_S = 3600.0


class Stored(NamedTuple):
    id: str  # of the import
    new: int
    known: int  # rows that the knowledge base had already, or that repeat others


def store_import(kb: Path, id: str, job: Job, about: dict[str, str], at: float, found: Iterator[Measurement]) -> Stored:
    """`about`: reader, file name and the like, shown in the view `imports`; `at`: unix time.

    Importing the same again changes nothing. Rows that are identical to the last digit are stored once.
    """
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
    _sweep(imports)
    total = 0
    # Into a knowledge base of its own first: a large table takes minutes, and nobody else should have to wait for it.
    with (
        tempfile.TemporaryDirectory(dir=imports, prefix=_UNFINISHED, ignore_cleanup_errors=True) as folder,
        lock.exclusive(Path(folder) / "owner.lock"),
    ):
        own = Path(folder) / "kb.duckdb"
        with writer(own) as con:
            con.execute("BEGIN")
            rows.insert(con, "job", [journal_rows.job_row(job)])
            rows.insert(con, "session", [journal_rows.session_row(started, "import")])
            while batch := [rows.incoming(id, job.id, None, "import", m) for m in islice(found, _BATCH)]:
                rows.stage(con, batch)
                rows.store_incoming(con)
                total += len(batch)
            con.execute("COMMIT")
        if not total:
            return Stored(id, 0, 0)
        with reader(own, files=True) as con:
            written = lake.write_session(con, id, imports)
    with writer(kb) as con:
        if con.execute("SELECT 1 FROM forgotten WHERE session = ?", [id]).fetchone():
            con.execute("DELETE FROM forgotten WHERE session = ?", [id])  # importing it again undoes forgetting it
            con.execute("DELETE FROM lake_file WHERE session = ?", [id])
    new = lake.take(kb, [imports / f"{written}.parquet"]).measurements
    return Stored(id, new, total - new)


def _sweep(imports: Path) -> None:
    """Removes the leftovers of imports that were killed."""
    for folder in imports.glob(f"{_UNFINISHED}*"):
        if not lock.is_held(folder / "owner.lock") and _older(folder, 60.0):  # a live import creates its lock at once
            shutil.rmtree(folder, ignore_errors=True)
    for file in imports.glob(".*.unfinished"):
        if _older(file, _STALE_S):
            file.unlink(missing_ok=True)


def _older(path: Path, seconds: float) -> bool:
    try:
        return dates.now() - path.stat().st_mtime > seconds
    except OSError:
        return False
