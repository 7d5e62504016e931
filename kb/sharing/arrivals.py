"""Checks the rows of a lake's files (kb/sharing/lake.py) before they are stored. A file is stored completely or refused
with a reason.

Names must be valid, ids must be the hashes of their content (so that no file can contain measurements for another job
or configuration), terms must be known, and no text may contain control characters.
"""

import typing
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from kb import door, older, rows
from kb.door import Newer, Refused
from kb.records import RECORDS, AutoscoutError, Fidelity, Job, Model, Status, Traffic, content_hash, job_id

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_BATCH = 10_000  # number of rows that are read into memory at once
_NEWER = f"a newer AutoScout wrote it (record format {{}}, this one reads {RECORDS}); upgrade AutoScout"
_ROW_ERRORS = (ValueError, TypeError, AttributeError, KeyError, ArithmeticError, RecursionError)
_WORDS = {"status": typing.get_args(Status), "fidelity": typing.get_args(Fidelity)}


def as_today(con: "DuckDBPyConnection") -> None:
    """Converts rows of older versions in `arrived`: adds new columns and replaces terms that have changed."""
    for column in rows.LATER:
        con.execute(f"ALTER TABLE arrived ADD COLUMN IF NOT EXISTS {column} VARCHAR")
    con.execute("UPDATE arrived SET period = '' WHERE kind = 'measurement' AND period IS NULL")
    con.execute("UPDATE arrived SET fidelity = 'profile' WHERE kind = 'session' AND fidelity = 'profiled'")
    for first, today in older.TODAY.items():
        con.execute(
            "UPDATE arrived SET fidelity = $today WHERE kind = 'measurement' AND fidelity = $first",
            {"today": today, "first": first},
        )
        for type, key in (("fidelity_switched", "to"), ("answered", "fidelity")):
            con.execute(
                "UPDATE arrived SET body = replace(body, $first, $today) WHERE kind = 'decision' AND type = $type",
                {"first": f'"{key}":"{first}"', "today": f'"{key}":"{today}"', "type": type},
            )


def refused(con: "DuckDBPyConnection") -> dict[str, Refused]:
    """File hash → why the file is refused, for the files in the temporary table `arrived` (kb/sharing/lake.py)."""
    found: dict[str, Refused] = {}
    for check in (_sessions, _jobs, _words, _measurements):
        for file, error in check(con):
            found.setdefault(file, error)
    newer = {file: Newer(_NEWER.format(version)) for file, version in _versions(con) if version > RECORDS}
    return {file: newer.get(file, error) for file, error in found.items()}


def _versions(con: "DuckDBPyConnection") -> Iterator[tuple[str, int]]:
    """(file hash, format version) of each session, see records.RECORDS."""
    for file, job in con.execute("SELECT hash, job FROM arrived WHERE kind = 'session'").fetchall():
        try:
            version = msgspec.json.decode(job or "").get("records")
        except (msgspec.DecodeError, AttributeError, RecursionError):
            continue
        if isinstance(version, int):
            yield file, version


def _sessions(con: "DuckDBPyConnection") -> Iterator[tuple[str, Refused]]:
    """Checks the name and the job of every session; yields (file hash, error)."""
    for file, name in con.execute("SELECT DISTINCT hash, session FROM arrived").fetchall():
        yield from _caught(file, door.name, name or "", "session")
    sessions = "SELECT hash, job, job_id, job_name FROM arrived WHERE kind = 'session'"
    for file, stored, id, name in con.execute(sessions).fetchall():
        yield from _caught(file, _check_job, door.job, stored or "", id, name)


def _jobs(con: "DuckDBPyConnection") -> Iterator[tuple[str, Refused]]:
    columns = "hash, job_id, job_name, job_task, job_target, job_family, job_model, job_traffic"
    for file, *found, model, traffic in con.execute(f"SELECT {columns} FROM arrived WHERE kind = 'job'").fetchall():
        yield from _caught(file, _check_workload, *found, model or "", traffic or "")


def _check_job(read: Any, stored: str, id: str, name: str) -> None:
    job: Job = read(stored)
    door.name(name or "", "job")
    door.check_job(job)
    trace = job.traffic.trace and not job.traffic.trace_id  # older ids depend on the trace's path, which is not stored
    if not trace and job.id != id:
        raise Refused(f"the job {name} does not match its id {door.shown(str(id))}")


def _check_workload(id: str, name: str, task: str, target: str, family: str, model: str, traffic: str) -> None:
    door.name(name or "", "job")
    door.name(target or "", "target")
    door.name(task or "", "task")
    try:
        shape, load = msgspec.json.decode(model, type=Model), msgspec.json.decode(traffic, type=Traffic)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
        raise Refused(f"the job {name} cannot be read ({error}); a newer AutoScout may have written it") from error
    if family != rows.family(task, target, shape):  # it becomes the name of a folder in lakes
        raise Refused(f"the job {name} is not of the family {door.shown(str(family))}")
    if (load.trace_id or not load.trace) and job_id(task, target, shape, load, name) != id:
        raise Refused(f"the job {name} does not match its id {door.shown(str(id))}")


def _words(con: "DuckDBPyConnection") -> Iterator[tuple[str, Refused]]:
    for column, known in _WORDS.items():
        words = f"SELECT DISTINCT hash, {column} FROM arrived WHERE kind = 'measurement'"
        for file, word in con.execute(words).fetchall():
            if word not in known:
                yield file, Refused(f"a measurement has the unknown {column} {door.shown(str(word))}")
    texts = ("host", "cluster", "goal", "metric", "strategy", "warm_start", "context", "type", "purpose", "period")
    for column in texts:
        for file, word in con.execute(f"SELECT DISTINCT hash, {column} FROM arrived").fetchall():
            if word is not None and door.plain(str(word)) != str(word):
                yield file, Refused(f"the {column} {door.shown(str(word))} contains a control character")


def _measurements(con: "DuckDBPyConnection") -> Iterator[tuple[str, Refused]]:
    columns = [name for name in rows.INCOMING if name != "session"]
    cast = ", ".join(f"{name}::{rows.INCOMING[name]} AS {name}" for name in columns)
    cursor = con.execute(f"SELECT hash, {cast} FROM arrived WHERE kind = 'measurement'")
    while batch := cursor.fetchmany(_BATCH):
        for file, *values in batch:
            yield from _caught(file, _check_row, dict(zip(columns, values, strict=True)))


def _check_row(row: dict[str, Any]) -> None:
    measurement = rows.measurement(row)
    door.check_measurement(measurement)
    if content_hash(measurement.configuration.knobs) != row["configuration_id"]:
        raise Refused(f"the configuration {measurement.name} does not match its id")
    if int(measurement.id, 16) != row["id"]:
        raise Refused(f"the measurement {measurement.name} was changed: its id is not the hash of its content")


def _caught(file: str, check: Any, *arguments: Any) -> Iterator[tuple[str, Refused]]:
    try:
        check(*arguments)
    except Refused as error:
        yield file, error
    except (AutoscoutError, msgspec.MsgspecError, *_ROW_ERRORS) as error:
        yield file, Refused(f"it cannot be read ({error})")
