"""The knowledge base: one DuckDB file with the measurements of all sessions, fed from their journals.

Every function opens the file briefly, under the lock, and creates or migrates it if needed. All errors are
AutoscoutError.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from kb import door, lock, rows
from kb import journal as journals
from kb.connect import own_folder, reader, writer, writer_if
from kb.records import RECORDS, AutoscoutError, Job, Measurement
from kb.sharing import lake

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


def default_path() -> Path:
    """$AUTOSCOUT_KB, else autoscout/kb.duckdb in the XDG data directory."""
    if chosen := os.environ.get("AUTOSCOUT_KB"):
        return Path(chosen)
    data = Path(os.environ.get("XDG_DATA_HOME", ""))
    if not data.is_absolute():  # the XDG specification ignores such a setting
        data = Path.home() / ".local" / "share"
    return data / "autoscout" / "kb.duckdb"


def sessions_folder(kb: Path) -> Path:
    """Holds `<session id>/journal.jsonl` of every session of this knowledge base."""
    return own_folder(kb, "sessions")


def session_folder(kb: Path, session: str) -> Path:
    """The folder of one session. Errors: AutoscoutError (exit 2) for what cannot be the name of a session."""
    return sessions_folder(kb) / door.name(session, "session")


def imports_folder(kb: Path) -> Path:
    """Holds one file per import (kb/imports.py)."""
    return own_folder(kb, "imports")


def is_running(folder: Path) -> bool:
    """Whether a process owns the session in `folder`: it holds `owner.lock` there (kb.lock.exclusive)."""
    return lock.is_held(folder / "owner.lock")


def ingest(kb: Path, journal: Path) -> int:
    """Adds what is new in a session's journal, all or nothing; returns the number of measurements that this call added.

    Whoever gets the lock also ingests the journals of all who wait for it, in one transaction; their calls then have
    nothing to do (0). Ingesting the same journal again changes nothing. Errors: AutoscoutError; what is before a
    damaged line of the journal is kept.
    """
    request = _request(kb, journal)
    with writer_if(kb, request.exists, results=False) as con:
        if con is None:
            return 0
        others = _requests(request)
        new, problems = _ingest(con, [journal, *others.values()])
        for done in (request, *(other for other, path in others.items() if path not in problems)):
            done.unlink(missing_ok=True)
    if journal in problems:
        raise problems[journal]
    return new


def _request(kb: Path, journal: Path) -> Path:
    """Leaves a file that asks whoever has the lock to ingest a journal; it is removed when that is done, and survives
    us."""
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
    """The other requests and their journals; those whose journal is gone are removed."""
    found = (path for path in sorted(ours.parent.iterdir()) if path != ours and not path.name.startswith("."))
    journals_of = {path: Path(path.read_text()) for path in found}
    for path, journal in journals_of.items():
        if not journal.is_file():
            path.unlink(missing_ok=True)
    return {path: journal for path, journal in journals_of.items() if journal.is_file()}


def ingest_all(kb: Path) -> tuple[int, list[str]]:
    """Adds what is new in any journal below the sessions folder, and in imports: repairs late and lost ingests.

    Returns the number of new measurements, and a sentence for every journal with a part that cannot be read.
    """
    with reader(kb) as con:
        known = dict(con.execute("SELECT session, bytes FROM journal").fetchall())
    late = [
        path
        for path in sorted(sessions_folder(kb).glob("*/journal.jsonl"))
        if path.stat().st_size != known.get(path.parent.name, 0)
    ]
    again = lake.take(kb, sorted(imports_folder(kb).glob("*.parquet")))
    if not late:
        return again.measurements, again.passed_over
    with writer(kb) as con:
        new, problems = _ingest(con, late)
    return again.measurements + new, [*again.passed_over, *map(str, problems.values())]


def mark(kb: Path) -> int:
    """The largest `added` of any measurement, 0 when there is none: pass it as `up_to` to see only these."""
    with reader(kb) as con:
        [(newest,)] = con.execute("SELECT coalesce(max(added), 0) FROM measurement").fetchall()
    return newest


def measurements(
    kb: Path,
    *,
    job: str | None = None,
    context: str | None = None,
    up_to: int | None = None,
    short: bool = False,
    answers: bool = False,
    designed: bool = False,
) -> list[tuple[str, Measurement]]:
    """(session, measurement) of what was measured, failures included, in the order they were added; without
    infrastructure failures, which are no facts about a configuration (the view `incidents` has them).

    `job` is a Job.id and `up_to` a mark; None does not filter. `short`: also runs that were ended early; `designed`:
    also predictions. `answers`: only those that may replace a run here: ours, and successful ones of authors whose word
    answers (sharing/author_trust.py).
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
            AND ($context IS NULL OR o.context = $context) AND ($up_to IS NULL OR m.added <= $up_to)
            AND (
                NOT $answers OR o.session NOT IN (SELECT session FROM authors)
                OR (m.status = 'ok' AND o.session IN (SELECT session FROM authors WHERE level = 'answer'))
            )
            """,
            {"job": job, "context": context, "up_to": up_to, "short": short, "answers": answers, "designed": designed},
        )
    return [(row["session"], rows.measurement(row)) for row in found]


def answering(kb: Path, job: str, context: str, up_to: int) -> list[tuple[str, Measurement]]:
    """Measurements that a session need not repeat, including runs that were ended early."""
    return measurements(kb, job=job, context=context, up_to=up_to, short=True, answers=True)


def orderings(kb: Path, job_id: str | None = None, sessions: list[str] | None = None) -> list[list[str]]:
    """The orderings that won earlier sessions' tournaments, newest session first, each once; None does not filter."""
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
    """The `sessions` view with `state` running, interrupted or ended."""
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


class _Tail(NamedTuple):
    """The part of a journal that is not stored yet."""

    started: journals.SessionStarted
    line: int  # number of the first event
    events: list[journals.AnyEvent]
    end: int  # the byte after the last event
    problem: AutoscoutError | None  # why reading stopped


def _ingest(con: "DuckDBPyConnection", paths: list[Path]) -> tuple[int, dict[Path, AutoscoutError]]:
    tails: dict[str, _Tail] = {}
    problems: dict[Path, AutoscoutError] = {}
    for path in paths:
        try:
            tail = _read_tail(con, path)
        except AutoscoutError as error:
            problems[path] = error
            continue
        if tail and tail.problem:
            problems[path] = tail.problem
        if tail and tail.events:
            tails[tail.started.session] = tail
    return _insert_tails(con, list(tails.values())) if tails else 0, problems


def _read_tail(con: "DuckDBPyConnection", path: Path) -> _Tail | None:
    """None if not even the first line is complete, or the session was forgotten. Errors: AutoscoutError when the
    journal is not a session's."""
    started = next((event for event, _ in journals.read(path)), None)
    if started is None:
        return None
    if not isinstance(started, journals.SessionStarted):
        raise AutoscoutError(f"{path}: not a session's journal, it does not begin with session_started", 2)
    door.name(started.session, "session")
    door.check_job(started.job)
    if con.execute("SELECT 1 FROM forgotten WHERE session = ?", [started.session]).fetchone():
        return None
    row = con.execute("SELECT bytes, lines FROM journal WHERE session = ?", [started.session]).fetchone()
    end, line = row or (0, 0)
    if end > path.stat().st_size:  # a different file by now: all of it is read again
        end, line = 0, 0
    events: list[journals.AnyEvent] = []
    try:
        for event, after in journals.read(path, end):
            if isinstance(event, journals.ExperimentEnded | journals.Answered):
                door.check_measurement(event.measurement)
            if isinstance(event, journals.Answered):
                door.name(event.measured_by, "session")
            events.append(event)
            end = after
    except AutoscoutError as error:
        return _Tail(started, line, events, end, error)
    return _Tail(started, line, events, end, None)


def _insert_tails(con: "DuckDBPyConnection", tails: list[_Tail]) -> int:
    ends = [{"session": t.started.session, "bytes": t.end, "lines": t.line + len(t.events)} for t in tails]
    con.execute("BEGIN")  # closing the connection rolls back
    begun = [tail.started for tail in tails if tail.line == 0]
    insert(con, "job", [job_row(started.job) for started in begun])
    insert(con, "session", [session_row(started) for started in begun])
    insert(con, "decision", [row for tail in tails for row in _decision_rows(tail)])
    new = 0
    if incoming := _measurement_rows(tails):
        rows.stage(con, incoming)
        new = rows.store_incoming(con)
    insert(
        con,
        "journal",
        ends,
        conflict="(session) DO UPDATE SET bytes = excluded.bytes, lines = excluded.lines",
    )
    con.execute("COMMIT")
    return new


def insert(con: "DuckDBPyConnection", table: str, values: list[dict[str, Any]], conflict: str = "DO NOTHING") -> None:
    """Inserts rows into a table with a primary key, in one statement with one parameter (see rows.stage)."""
    if not values:
        return
    shape = {name: ["VARCHAR"] if isinstance(value, list) else "VARCHAR" for name, value in values[0].items()}
    con.execute(
        f"INSERT INTO {table} BY NAME "
        f"SELECT unnest(from_json(?, '{rows.json([shape])}'), max_depth := 2) ON CONFLICT {conflict}",
        [rows.json(values)],
    )


def job_row(job: Job) -> dict[str, Any]:
    return {
        "id": job.id,
        "name": job.name,
        "task": job.task,
        "target": job.target,
        "family": rows.family(job.task, job.target, job.model),
        "model": rows.json(job.model),
        "traffic": rows.json(_without_paths(job).traffic),
    }


def _without_paths(job: Job) -> Job:
    """The job without the paths of a person's interpreters, models, recordings, traces and scripts, and without their
    environment variables: these are private, and the journal has them."""
    traffic = msgspec.structs.replace(job.traffic, trace=Path(job.traffic.trace).name)
    launch = msgspec.structs.replace(
        job.launch,
        **dict.fromkeys(("python", "recorded", "model_path", "path", "script"), ""),
        command_prefix=[],
        environment={},
        render=[],
        command=door.without_places(job.launch.command),
        current=door.without_places(job.launch.current),
        metrics={name: m if isinstance(m, str) or not m.file else "" for name, m in job.launch.metrics.items()},
    )
    space = msgspec.structs.replace(job.space, catalog=[Path(path).name for path in job.space.catalog])
    return msgspec.structs.replace(job, traffic=traffic, launch=launch, space=space)


def session_row(started: journals.SessionStarted, source: str = "session") -> dict[str, Any]:
    """A row of the table `session`."""
    job = _without_paths(started.job)
    return {
        "id": started.session,
        "source": source,
        "job_id": job.id,
        "job_name": job.name,
        "context": started.context,
        "host": started.host,
        "cluster": cluster_name(job),
        "devices": job.devices,
        "goal": "minimize" if job.objective.minimize else "maximize",
        "metric": job.objective.metric,
        "constraints": job.objective.constraints,
        "strategy": started.strategy,
        "seed": started.seed,
        "fidelity": started.fidelity,
        "warm_start": started.warm_start,
        "kb_mark": started.kb_mark,
        "unix_s": started.at,
        "job": rows.json({"records": RECORDS, **msgspec.to_builtins(job)}),
        "hyper": rows.json(started.hyper),
        "environment": rows.json(started.environment),
    }


def cluster_name(job: Job) -> str:
    """Such as 8×a100 + 4×a40."""
    return " + ".join(f"{node.count}×{node.device}" for node in job.cluster.nodes)


def _decision_rows(tail: _Tail) -> Iterator[dict[str, Any]]:
    for seq, event in enumerate(tail.events, tail.line):
        if not isinstance(event, journals.SessionStarted | journals.ExperimentEnded):
            if isinstance(event, journals.SessionEnded) and event.problem:
                event = msgspec.structs.replace(event, problem=door.without_places(event.problem))
            kind, body = event.__struct_config__.tag, event
            if isinstance(event, journals.Later):
                kind, body = event.kind, event.body
            yield {
                "session": tail.started.session,
                "seq": seq,
                "type": kind,
                "unix_s": event.at,
                "body": rows.json(body),
            }


def _measurement_rows(tails: list[_Tail]) -> list[dict[str, Any]]:
    """Rows of sessions that measured come first: they say more than those of sessions that were answered."""
    ended: list[dict[str, Any]] = []
    answered: list[dict[str, Any]] = []
    for tail in tails:
        session, job = tail.started.session, tail.started.job.id
        for event in tail.events:
            if isinstance(event, journals.ExperimentEnded):
                ended.append(rows.incoming(session, job, event.number, event.purpose, event.measurement))
            elif isinstance(event, journals.Answered):  # here already, unless the knowledge base was lost since
                answered.append(rows.incoming(event.measured_by, job, None, "answered", event.measurement))
    return ended + answered
