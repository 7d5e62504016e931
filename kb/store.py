"""The knowledge base: one DuckDB file with the measurements of all sessions, fed from their journals.

The only SQL that writes. Every function opens the file for a moment, under the lock, and makes or migrates it
when that is needed. All errors are AutoscoutError.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from kb import journal as journals
from kb import lock
from kb.connect import reader, writer
from kb.records import AutoscoutError, Measurement

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

# measurement's columns that hold a field of Measurement as it is, and as JSON.
_PLAIN = ("name", "context", "status", "fidelity", "evidence", "cost_s", "device_s")
_JSON = ("configuration", "metrics", "iterations_s", "losses", "grad_norms", "rank_memory_gib", "environment")
# measurement's columns that are copied out of one of those.
_METRICS = ("step_time_s", "step_time_min_s", "tokens_per_s", "peak_memory_gib", "cpu_s")
_KNOBS = {
    **dict.fromkeys(("pp", "tp", "dp", "cp", "ep", "etp", "vpp"), "INTEGER"),
    **dict.fromkeys(("ar_layers", "mbs", "tp_comm", "a100", "a40"), "INTEGER"),
    **dict.fromkeys(("sp", "distopt", "overlap_grad", "overlap_param"), "BOOLEAN"),
    **dict.fromkeys(("ar", "ar_method"), "VARCHAR"),
    "ddp_bucket": "BIGINT",
}
_COPIES = (
    *(f"try_cast(metrics ->> '{name}' AS DOUBLE) AS {name}" for name in _METRICS),
    *(f"try_cast(configuration ->> '{name}' AS {kind}) AS {name}" for name, kind in _KNOBS.items()),
)


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
    return kb.parent / "sessions"


def is_running(folder: Path) -> bool:
    """Whether a process owns the session in `folder`: it holds `owner.lock` there (kb.lock.exclusive)."""
    return lock.is_held(folder / "owner.lock")


def ingest(kb: Path, journal: Path) -> int:
    """Adds what is new in a session's journal, all or nothing; returns the number of new measurements.

    Ingesting the same journal again changes nothing. Errors: AutoscoutError; what is before a
    damaged line of the journal is kept.
    """
    with writer(kb) as con:
        new, problems = _ingest(con, [journal])
    if problems:
        raise problems[0]
    return new


def ingest_all(kb: Path) -> tuple[int, list[str]]:
    """Adds what is new in any journal below the sessions folder: repairs late and lost ingests.

    Returns the number of new measurements, and a sentence for every journal with a part that cannot be read.
    """
    with reader(kb) as con:
        known = dict(con.execute("SELECT session, bytes FROM journal").fetchall())
    late = [
        path
        for path in sorted(sessions_folder(kb).glob("*/journal.jsonl"))
        if path.stat().st_size != known.get(path.parent.name, 0)
    ]
    if not late:
        return 0, []
    with writer(kb) as con:
        new, problems = _ingest(con, late)
    return new, [str(problem) for problem in problems]


def mark(kb: Path) -> int:
    """The largest `added` of any measurement, 0 when there is none: pass it as `up_to` to see only these."""
    with reader(kb) as con:
        row = con.execute("SELECT coalesce(max(added), 0) FROM measurement").fetchone()
    assert row
    return row[0]


def measurements(
    kb: Path, *, job: str | None = None, context: str | None = None, up_to: int | None = None
) -> list[tuple[str, Measurement]]:
    """(session, measurement) of profiled measurements, failures included, in the order they were added.

    `job` is a Job.id and `up_to` a mark; None does not filter.
    """
    fields = (*_PLAIN, *_JSON)
    columns = ", ".join((*fields, "unix_s"))
    with reader(kb) as con:
        rows = con.execute(
            f"""
            SELECT session, {columns} FROM measurement
            WHERE fidelity = 'profiled' AND ($job IS NULL OR job_id = $job)
                AND ($context IS NULL OR context = $context) AND ($up_to IS NULL OR added <= $up_to)
            ORDER BY added
            """,
            {"job": job, "context": context, "up_to": up_to},
        ).fetchall()
    return [(session, _measurement(dict(zip((*fields, "at"), row, strict=True)))) for session, *row in rows]


def orderings(kb: Path, job_id: str | None = None) -> list[list[str]]:
    """The orderings that won earlier sessions' tournaments, newest session first, each once."""
    with reader(kb) as con:
        rows = con.execute(
            """
            SELECT ordering FROM orderings WHERE winner AND ($job IS NULL OR job_id = $job)
            ORDER BY session_unix_s DESC, session, reward DESC
            """,
            {"job": job_id},
        ).fetchall()
    return [list(ordering) for ordering in dict.fromkeys(tuple(ordering) for (ordering,) in rows)]


def session_rows(kb: Path) -> list[dict[str, Any]]:
    """The `sessions` view with `state` running, interrupted or ended."""
    with reader(kb) as con:
        cursor = con.execute("FROM sessions")
        names = [column[0] for column in cursor.description]
        rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    for row in rows:
        if is_running(sessions_folder(kb) / row["session"]):
            row["state"] = "running"
        elif row["state"] == "open" or row["reason"] == "interrupted":
            row["state"] = "interrupted"
    return rows


class _Tail(NamedTuple):
    """What a journal has beyond what is recorded of it."""

    started: journals.SessionStarted
    line: int  # number of the first event
    events: list[journals.AnyEvent]
    end: int  # the byte after the last event
    problem: AutoscoutError | None  # why there is no more


def _ingest(con: "DuckDBPyConnection", paths: list[Path]) -> tuple[int, list[AutoscoutError]]:
    tails: dict[str, _Tail] = {}
    problems: list[AutoscoutError] = []
    for path in paths:
        try:
            tail = _read_tail(con, path)
        except AutoscoutError as error:
            problems.append(error)
            continue
        if tail and tail.problem:
            problems.append(tail.problem)
        if tail and tail.events:
            tails[tail.started.session] = tail
    return _insert_tails(con, list(tails.values())) if tails else 0, problems


def _read_tail(con: "DuckDBPyConnection", path: Path) -> _Tail | None:
    """None: not even the first line is whole. Errors: AutoscoutError when that is not a session's."""
    started = next((event for event, _ in journals.read(path)), None)
    if started is None:
        return None
    if not isinstance(started, journals.SessionStarted):
        raise AutoscoutError(f"{path}: not a session's journal, it does not begin with session_started", 2)
    row = con.execute("SELECT bytes, lines FROM journal WHERE session = ?", [started.session]).fetchone()
    end, line = row or (0, 0)
    if end > path.stat().st_size:  # not the file that it was: offer all of it again
        end, line = 0, 0
    events: list[journals.AnyEvent] = []
    try:
        for event, after in journals.read(path, end):
            events.append(event)
            end = after
    except AutoscoutError as error:
        return _Tail(started, line, events, end, error)
    return _Tail(started, line, events, end, None)


def _insert_tails(con: "DuckDBPyConnection", tails: list[_Tail]) -> int:
    ends = [{"session": t.started.session, "bytes": t.end, "lines": t.line + len(t.events)} for t in tails]
    con.execute("BEGIN")  # closing the connection rolls back
    begun = [tail.started for tail in tails if tail.line == 0]
    _insert(con, "job", [_job_row(started) for started in begun])
    _insert(con, "session", [_session_row(started) for started in begun])
    _insert(con, "decision", [row for tail in tails for row in _decision_rows(tail)])
    new = _insert(con, "measurement", _measurement_rows(con, tails), _COPIES)
    _insert(
        con,
        "journal",
        ends,
        conflict="(session) DO UPDATE SET bytes = excluded.bytes, lines = excluded.lines",
    )
    con.execute("COMMIT")
    return new


def _insert(
    con: "DuckDBPyConnection",
    table: str,
    rows: list[dict[str, Any]],
    copies: tuple[str, ...] = (),
    conflict: str = "DO NOTHING",
) -> int:
    """Inserts all rows with one statement; returns how many were new.

    They go over as one JSON text: of every other parameter the duckdb package asks first whether it is from pandas,
    which takes a look through sys.path per value where there is no pandas.
    """
    if not rows:
        return 0
    shape = {name: ["VARCHAR"] if isinstance(value, list) else "VARCHAR" for name, value in rows[0].items()}
    inserted = con.execute(
        f"INSERT INTO {table} BY NAME SELECT {', '.join(('*', *copies))} "
        f"FROM (SELECT unnest(from_json(?, '{_json([shape])}'), max_depth := 2)) ON CONFLICT {conflict}",
        [_json(rows)],
    ).fetchone()
    return inserted[0] if inserted else 0


def _job_row(started: journals.SessionStarted) -> dict[str, Any]:
    job = started.job
    return {
        "id": job.id,
        "name": job.name,
        "task": job.task,
        "target": job.target,
        "model": _json(job.model),
        "traffic": _json(job.traffic),
    }


def _session_row(started: journals.SessionStarted) -> dict[str, Any]:
    job = started.job
    return {
        "id": started.session,
        "job_id": job.id,
        "job_name": job.name,
        "context": started.context,
        "goal": "minimize" if job.objective.minimize else "maximize",
        "metric": job.objective.metric,
        "constraints": job.objective.constraints,
        "strategy": started.strategy,
        "seed": started.seed,
        "fidelity": started.fidelity,
        "warm_start": started.warm_start,
        "kb_mark": started.kb_mark,
        "unix_s": started.at,
        "job": _json(job),
        "hyper": _json(started.hyper),
        "environment": _json(started.environment),
    }


def _decision_rows(tail: _Tail) -> Iterator[dict[str, Any]]:
    for seq, event in enumerate(tail.events, tail.line):
        if not isinstance(event, journals.SessionStarted | journals.ExperimentEnded):
            kind = event.__struct_config__.tag
            yield {
                "session": tail.started.session,
                "seq": seq,
                "type": kind,
                "unix_s": event.at,
                "body": _json(event),
            }


def _measurement_rows(con: "DuckDBPyConnection", tails: list[_Tail]) -> list[dict[str, Any]]:
    ended: list[dict[str, Any]] = []
    answered: list[dict[str, Any]] = []
    for tail in tails:
        job_id = tail.started.job.id
        for event in tail.events:
            if isinstance(event, journals.ExperimentEnded):
                origin = {"session": tail.started.session, "number": event.number, "purpose": event.purpose}
                ended.append({**origin, "job_id": job_id, **_measurement_row(event.measurement)})
            elif isinstance(event, journals.Answered):  # here already, unless the knowledge base was lost since
                origin = {"session": event.measured_by, "number": None, "purpose": "answered"}
                answered.append({**origin, "job_id": job_id, **_measurement_row(event.measurement)})
    newest = con.execute("SELECT coalesce(max(added), 0) FROM measurement").fetchone()
    assert newest
    # The session that measured it says more about it than the one that was answered with it: the first stays.
    unique: dict[str, dict[str, Any]] = {}
    for row in ended + answered:
        unique.setdefault(row["id"], row)
    return [{**row, "added": added} for added, row in enumerate(unique.values(), newest[0] + 1)]


def _measurement_row(measurement: Measurement) -> dict[str, Any]:
    return {
        "id": measurement.id,
        "configuration_id": measurement.configuration.id,
        "unix_s": measurement.at,
        **{name: getattr(measurement, name) for name in _PLAIN},
        **{name: _json(getattr(measurement, name)) for name in _JSON if name != "configuration"},
        "configuration": _json(measurement.configuration.knobs),
    }


def _measurement(row: dict[str, Any]) -> Measurement:
    fields = row | {name: msgspec.json.decode(row[name]) for name in _JSON}
    fields["configuration"] = {"knobs": fields["configuration"]}
    return msgspec.convert(journals.with_nan(fields), Measurement)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
