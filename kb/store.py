"""The knowledge base: one DuckDB file with the measurements of all sessions, fed from their journals.

Every function locks and opens the file for a short time, and creates or migrates it if needed. All errors are
AutoscoutError.
"""

import contextlib
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kb import door, lock, rows
from kb import journal as journals
from kb.connect import own_folder, reader, writer, writer_if
from kb.journal import SessionStarted
from kb.journal_rows import take_in
from kb.records import AutoscoutError, Measurement
from kb.sharing import lake
from kb.user_folders import user_folder

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


def default_path() -> Path:
    """$AUTOSCOUT_KB, else autoscout/kb.duckdb in the XDG data directory."""
    if chosen := os.environ.get("AUTOSCOUT_KB"):
        return Path(chosen)
    return user_folder("XDG_DATA_HOME", ".local/share") / "autoscout" / "kb.duckdb"


def sessions_folder(kb: Path) -> Path:
    """The folder with `<session id>/journal.jsonl` of every session of this knowledge base."""
    return own_folder(kb, "sessions")


def session_folder(kb: Path, session: str) -> Path:
    """The folder of one session. Errors: AutoscoutError (exit 2) if the name is invalid."""
    return sessions_folder(kb) / door.name(session, "session")


def imports_folder(kb: Path) -> Path:
    """The folder with one file per import (kb/imports.py)."""
    return own_folder(kb, "imports")


def is_running(folder: Path) -> bool:
    """Whether a process runs the session in `folder`. Such a process holds a lock on the file `owner.lock`."""
    return lock.is_held(folder / "owner.lock")


def ingest(kb: Path, journal: Path) -> int:
    """Stores the new events of a session's journal, and returns the number of new measurements. Ingesting a journal
    again changes nothing.

    The process that holds the lock also ingests the journals of all processes that wait for it, in one transaction;
    their calls then return 0. Errors: AutoscoutError, for example for a damaged line; the events before that line are
    stored."""
    request = _request(kb, journal)
    with writer_if(kb, request.exists, results=False) as con:
        if con is None:
            return 0
        others = _requests(request)
        new, problems = take_in(con, [journal, *others.values()])
        for done in (request, *(other for other, path in others.items() if path not in problems)):
            done.unlink(missing_ok=True)
    if journal in problems:
        raise problems[journal]
    return new


def _request(kb: Path, journal: Path) -> Path:
    """Creates a file by which the process that holds the lock learns that it should ingest a journal. That process
    removes the file afterwards, even if this one has been killed."""
    folder = kb.with_name(kb.name + ".requests")
    request = folder / f"{journal.parent.name}-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = folder / f".{request.name}"
        unfinished.write_text(str(journal.resolve()))
        os.replace(unfinished, request)
    except OSError as error:
        raise AutoscoutError(
            f"{folder}: cannot be written ({error.strerror}); the journal keeps every measurement"
        ) from error
    return request


def _requests(ours: Path) -> dict[Path, Path]:
    """Requests of other processes → their journals. Removes requests whose journal does not exist."""
    found = (path for path in sorted(ours.parent.iterdir()) if path != ours and not path.name.startswith("."))
    journals_of = {path: Path(path.read_text()) for path in found}
    for path, journal in journals_of.items():
        if not journal.is_file():
            path.unlink(missing_ok=True)
    return {path: journal for path, journal in journals_of.items() if journal.is_file()}


def ingest_all(kb: Path) -> tuple[int, list[str]]:
    """Stores new events of all journals in the sessions folder, and new imports, in case earlier ingests failed.

    Returns the number of new measurements, and a sentence for every journal that cannot be read completely.
    """
    with reader(kb) as con:
        known = dict(con.execute("SELECT session, bytes FROM journal").fetchall())
    late = [
        path
        for path in sorted(sessions_folder(kb).glob("*/journal.jsonl"))
        if path.stat().st_size != known.get(path.parent.name, 0)  # a replaced journal may be smaller
    ]
    again = lake.take(kb, sorted(imports_folder(kb).glob("*.parquet")))
    if not late:
        return again.measurements, [*again.passed_over, *_unlisted(kb)]
    with writer(kb) as con:
        new, problems = take_in(con, late)
    return again.measurements + new, [*again.passed_over, *map(str, problems.values())]


def bring_in(kb: Path) -> list[str]:
    """Stores events that killed sessions wrote only to their journals, before the knowledge base is read; returns a
    sentence for each reason why some could not be stored."""
    with reader(kb) as con:
        late = waiting(con, kb)
    try:
        return ingest_all(kb)[1] if late else _unlisted(kb)
    except AutoscoutError as error:
        return [f"the journals of {len(late)} sessions are not stored yet: {error}"]


def _unlisted(kb: Path) -> list[str]:
    """A sentence if the sessions folder cannot be listed, since it would otherwise look empty."""
    folder = sessions_folder(kb)
    if not folder.is_dir() or os.access(folder, os.R_OK | os.X_OK, effective_ids=True):
        return []
    return [f"cannot list {folder} (Permission denied), so measurements that are only in its journals are missing"]


def lines_known(con: "DuckDBPyConnection", kb: Path) -> dict[str, int]:
    """Session → number of lines of its journal up to the last stored line. Sessions with several journals (copies of
    their folder) are omitted."""
    copies = Counter(_session_in(path) for path in sessions_folder(kb).glob("*/journal.jsonl"))
    found = con.execute(
        "SELECT session, max(n) FROM (SELECT session, seq + 1 AS n FROM decision UNION ALL "
        "SELECT session, lines FROM journal) GROUP BY session"
    )
    return {session: lines for session, lines in found.fetchall() if copies[session] == 1}


def waiting(con: "DuckDBPyConnection", kb: Path) -> list[Path]:
    """The journals in the sessions folder with lines that are not stored. `con`: an open connection to `kb`."""
    known = dict(con.execute("SELECT session, bytes FROM journal").fetchall())
    forgotten = {name for (name,) in con.execute("SELECT session FROM forgotten").fetchall()}
    found = []
    for path in sorted(sessions_folder(kb).glob("*/journal.jsonl")):
        size = path.stat().st_size
        if size <= known.get(path.parent.name, 0):
            continue
        name = _session_in(path)  # differs from the folder's name if the folder was copied
        if name not in forgotten and size > known.get(name, 0):
            found.append(path)
    return found


def has_all(kb: Path, session: str) -> bool:
    """Whether the complete journal of a session is stored."""
    with reader(kb) as con:
        return session_folder(kb, session) / "journal.jsonl" not in waiting(con, kb)


def _session_in(journal: Path) -> str:
    """The session's name in a journal's first line; "" if that cannot be read."""
    with contextlib.suppress(AutoscoutError):
        for event, _ in journals.read(journal):
            return event.session if isinstance(event, journals.SessionStarted) else ""
    return ""


def mark(kb: Path) -> int:
    """The number of the last stored measurement (column `added`), 0 if there is none. As argument `up_to`, it excludes
    measurements that are stored later."""
    with reader(kb) as con:
        [(newest,)] = con.execute("SELECT coalesce(max(added), 0) FROM measurement").fetchall()
    return newest


def measurements(
    kb: Path,
    *,
    job: str | None = None,
    context: str | None = None,
    cluster: str | None = None,
    up_to: int | None = None,
    short: bool = False,
    answers: bool = False,
    designed: bool = False,
) -> list[tuple[str, Measurement]]:
    """(session, measurement) of all measured runs, including failures, in the order in which they were stored.
    Infrastructure failures are left out, because they are not facts about a configuration (the view `incidents` has
    them).

    Filters (None: no filter): `job`: a Job.id; `cluster`: one of `clusters`; `up_to`: a `mark`. `short`: whether to
    include runs that were ended early; `designed`: whether to include predictions; `answers`: only measurements that
    may replace an experiment: our own, and successful ones of authors with the trust level "answer"
    (sharing/author_trust.py).
    """
    with reader(kb) as con:
        found = rows.exact(
            con,
            """
            (
                m.fidelity = 'measured' OR ($short AND m.fidelity = 'short')
                OR ($designed AND m.fidelity = 'predicted')
            ) AND m.status != 'infrastructure'
            AND ($job IS NULL OR o.job_id = $job)
            AND ($cluster IS NULL OR o.session IN (SELECT id FROM session WHERE cluster = $cluster))
            AND ($context IS NULL OR o.context = $context) AND ($up_to IS NULL OR m.added <= $up_to)
            AND (
                NOT $answers OR o.session NOT IN (SELECT session FROM authors)
                OR (m.status = 'ok' AND o.session IN (SELECT session FROM authors WHERE level = 'answer'))
            )
            """,
            {
                **{"job": job, "context": context, "cluster": cluster, "up_to": up_to},
                **{"short": short, "answers": answers, "designed": designed},
            },
        )
    return [(row["session"], rows.measurement(row)) for row in found]


def clusters(kb: Path, job: str) -> dict[str, str]:
    """Session or import of a job → its cluster, as in `cluster_name`."""
    with reader(kb) as con:
        return dict(con.execute("SELECT id, cluster FROM session WHERE job_id = $job", {"job": job}).fetchall())


def answering(kb: Path, job: str, context: str, up_to: int) -> list[tuple[str, Measurement]]:
    """(session, measurement) that may replace experiments of a session, including runs that were ended early."""
    return measurements(kb, job=job, context=context, up_to=up_to, short=True, answers=True)


def orderings(kb: Path, job_id: str | None = None, sessions: list[str] | None = None) -> list[list[str]]:
    """The distinct orderings of the sparse knobs that won the tournaments of earlier sessions (see journal.Decided),
    newest session first. None: no filter."""
    with reader(kb) as con:
        rows = con.execute(
            """
            SELECT ordering FROM orderings
            WHERE winner AND session NOT IN (SELECT session FROM authors WHERE level != 'answer')
                AND ($job IS NULL OR job_id = $job)
                AND ($sessions IS NULL OR list_contains($sessions::VARCHAR[], session))
            ORDER BY session_unix_s DESC, session, reward DESC
            """,
            {"job": job_id, "sessions": sessions},
        ).fetchall()
    return [list(ordering) for ordering in dict.fromkeys(tuple(ordering) for (ordering,) in rows)]


def session_rows(kb: Path) -> list[dict[str, Any]]:
    """The rows of the view `sessions`, each with a `state`: running, interrupted or ended."""
    with reader(kb) as con:
        cursor = con.execute("FROM sessions")
        names = [column[0] for column in cursor.description]
        rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    for row in rows:
        if is_running(session_folder(kb, row["session"])):
            row["state"] = "running"
        elif row["state"] == "open" or row["reason"] == "interrupted":
            row["state"] = "interrupted"
    return rows


def journalled(kb: Path, session: str) -> Path:
    """The folder of a session. Errors: AutoscoutError (exit 2) if it has no journal there."""
    folder = session_folder(kb, session)
    if (folder / "journal.jsonl").is_file():
        return folder
    if kb.is_file():
        with reader(kb) as con:
            known = con.execute("SELECT 1 FROM session WHERE id = $1", [session]).fetchone()
        if known:
            why = (
                "its journal is not here: the session was pulled or copied, or the journal was moved; look where it ran"
            )
            raise AutoscoutError(f"the rows of {session} are in {kb}, but {why}", 2)
    raise AutoscoutError(f"there is no session {session} next to {kb}; `autoscout sessions` lists them", 2)


def session_started(kb: Path, session: str) -> SessionStarted:
    """The first event of a session. Errors: AutoscoutError (exit 2) if there is none, or its job's name is invalid."""
    path = journalled(kb, session) / "journal.jsonl"
    first = next(journals.read(path), None)
    if first is None or not isinstance(first[0], SessionStarted):
        raise AutoscoutError(f"{path}: the journal contains no session; start the job again", 2)
    door.check_job(first[0].job)
    return first[0]
