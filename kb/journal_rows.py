"""Stores a session's journal as rows of the tables `job`, `session`, `decision` and `measurement`."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from kb import door, rows
from kb import journal as journals
from kb.records import RECORDS, AutoscoutError, Job

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


class _Tail(NamedTuple):
    """The part of a journal that is not stored yet."""

    started: journals.SessionStarted
    line: int  # number of its first line
    events: dict[int, journals.AnyEvent]  # line number → event, without refused events
    # Where to continue reading the journal next time: before the first event that was refused or could not be read.
    end: int  # offset in bytes
    lines: int  # number of lines before that
    problem: AutoscoutError | None  # which lines are not stored, and why


def take_in(con: "DuckDBPyConnection", paths: list[Path]) -> tuple[int, dict[Path, AutoscoutError]]:
    """Stores these journals. Returns the number of new measurements, and the error for each journal that could not be
    stored completely."""
    tails: dict[str, tuple[Path, _Tail]] = {}
    problems: dict[Path, AutoscoutError] = {}
    for path in paths:
        try:
            tail = read_tail(con, path)
        except AutoscoutError as error:
            problems[path] = error
            continue
        if tail and tail.problem:
            problems[path] = tail.problem
        if tail and tail.events:
            tails[tail.started.session] = (path, tail)
    return _stored(con, list(tails.values()), problems) if tails else 0, problems


def _stored(con: "DuckDBPyConnection", tails: list[tuple[Path, _Tail]], problems: dict[Path, AutoscoutError]) -> int:
    """Stores the tails and returns the number of new measurements. A journal that DuckDB cannot store is added to
    `problems` and does not affect other journals."""
    import duckdb

    try:
        return _insert_tails(con, [tail for _, tail in tails])
    except duckdb.DataError as error:
        con.execute("ROLLBACK")
        if len(tails) > 1:
            return sum(_stored(con, [each], problems) for each in tails)
        path = tails[0][0]
        problems[path] = AutoscoutError(
            f"{path}: contains data that the tables cannot store ({' '.join(str(error).split())})", 2
        )
        return 0


def read_tail(con: "DuckDBPyConnection", path: Path) -> _Tail | None:
    """The lines of a journal that are not stored yet, without refused ones; None if its first line is incomplete, or
    the session was forgotten. Errors: AutoscoutError if the file is not a session's journal."""
    started = next((event for event, _ in journals.read(path)), None)
    if started is None:
        return None
    if not isinstance(started, journals.SessionStarted):
        raise AutoscoutError(f"{path}: is not a session's journal, because it does not begin with session_started", 2)
    door.name(started.session, "session")
    door.check_job(started.job)
    if con.execute("SELECT 1 FROM forgotten WHERE session = ?", [started.session]).fetchone():
        return None
    row = con.execute("SELECT bytes, lines FROM journal WHERE session = ?", [started.session]).fetchone()
    end, line = row or (0, 0)
    if end > path.stat().st_size:  # the file was replaced by another one, which is read from its beginning
        end, line = 0, 0
    events: dict[int, journals.AnyEvent] = {}
    damaged: list[AutoscoutError] = []
    refused: list[AutoscoutError] = []
    lines, number = line, line
    try:
        for event, after in journals.read(path, end, damaged=damaged):
            number = line + len(damaged) + len(events) + len(refused)
            try:
                _check_event(event)
            except door.Refused as error:
                refused.append(error)
                continue
            events[number] = event
            if not damaged and not refused:
                end, lines = after, number + 1
    except AutoscoutError as error:
        return _Tail(started, line, events, end, lines, error)
    return _Tail(started, line, events, end, lines, _outside(path, damaged, refused))


def _check_event(event: journals.AnyEvent) -> None:
    """Errors: Refused for an event that the tables cannot store."""
    if isinstance(event, journals.ExperimentEnded | journals.Answered):
        door.check_measurement(event.measurement)
    if isinstance(event, journals.ExperimentEnded) and not 0 <= event.number < 2**31:
        raise door.Refused(f"an experiment has the impossible number {event.number}")
    if isinstance(event, journals.Answered):
        door.name(event.measured_by, "session")


def _outside(path: Path, damaged: list[AutoscoutError], refused: list[AutoscoutError]) -> AutoscoutError | None:
    """The error about lines of a journal that are not stored; None if there are none."""
    if not damaged and not refused:
        return None
    count = len(damaged) + len(refused)
    first = str(damaged[0]) if damaged else f"{path}: {refused[0]}"
    more = f"; {count} lines, including this one, are not stored" if count > 1 else "; this line is not stored"
    return AutoscoutError(first + more, 2)


def _insert_tails(con: "DuckDBPyConnection", tails: list[_Tail]) -> int:
    ends = [{"session": t.started.session, "bytes": t.end, "lines": t.lines} for t in tails]
    con.execute("BEGIN")  # after an error, closing the connection rolls back
    begun = [tail.started for tail in tails if tail.line == 0]
    rows.insert(con, "job", [job_row(started.job) for started in begun])
    rows.insert(con, "session", [session_row(started) for started in begun])
    rows.insert(con, "decision", [row for tail in tails for row in _decision_rows(tail)])
    new = 0
    if incoming := _measurement_rows(tails):
        rows.stage(con, incoming)
        new = rows.store_incoming(con)
    rows.insert(
        con,
        "journal",
        ends,
        conflict="(session) DO UPDATE SET bytes = excluded.bytes, lines = excluded.lines",
    )
    con.execute("COMMIT")
    return new


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
    """The job without the user's paths and environment variables, which are private. The journal has them."""
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
    """The nodes in words, such as 8×a100 + 4×a40."""
    return " + ".join(f"{node.count}×{node.device}" for node in job.cluster.nodes)


def kinds_in(cluster: str) -> set[str]:
    """The kinds of device in a text that `cluster_name` returned."""
    return {part.partition("×")[2] for part in cluster.split(" + ") if part}


def _decision_rows(tail: _Tail) -> Iterator[dict[str, Any]]:
    for seq, event in tail.events.items():
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
    """Rows of `incoming`. Experiments come before measurements that a session took from the knowledge base, because
    only the first of equal rows is stored, and experiments have more information."""
    ended: list[dict[str, Any]] = []
    answered: list[dict[str, Any]] = []
    for tail in tails:
        session, job = tail.started.session, tail.started.job.id
        for event in tail.events.values():
            if isinstance(event, journals.ExperimentEnded):
                ended.append(rows.incoming(session, job, event.number, event.purpose, event.measurement))
            elif isinstance(event, journals.Answered):  # already stored, unless the knowledge base was lost since
                answered.append(rows.incoming(event.measured_by, job, None, "answered", event.measurement))
    return ended + answered
