"""Small jobs, measurements and journals, and real child processes."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from kb import connect, journal
from kb.records import Cluster, Configuration, Job, Measurement, Model, Node, Objective, Traffic, Value

HERE = Path(__file__).parent
PAST = HERE / "past"  # what older AutoScouts wrote, and a newer one might write


def asked(kb: Path, sql: str) -> list[tuple[Any, ...]]:
    """What is in a knowledge base, without the process of its own that people's questions get (`query.run`)."""
    with connect.reader(kb, results=True) as con:
        return con.execute(sql).fetchall()


def job(name: str = "tiny", seq_len: int = 8, objective: Objective | None = None) -> Job:
    return Job(
        name=name,
        target="megatron",
        model=Model(layers=2, hidden=8, heads=2, vocab=32),
        traffic=Traffic(seq_len=seq_len, global_batch=8),
        cluster=Cluster(nodes=[Node(device="cpu", count=4)]),
        objective=objective or Objective(minimize="step_time_s"),
    )


def measured(step_time_s: float | None, at: float = 0.0, **knobs: Value) -> Measurement:
    """None: out of memory."""
    return Measurement(
        configuration=Configuration(knobs=knobs),
        name="_".join(f"{name}{value}" for name, value in knobs.items()),
        context="here",
        status="oom" if step_time_s is None else "ok",
        metrics={} if step_time_s is None else {"step_time_s": step_time_s, "peak_memory_gib": 10 * step_time_s},
        evidence="out of memory on rank 1" if step_time_s is None else "",
        cost_s=3.0,
        at=at,
    )


def started(session: str, of: Job | None = None, at: float = 0.0) -> journal.SessionStarted:
    return journal.SessionStarted(
        at=at,
        session=session,
        job=of or job(),
        context="here",
        strategy="autoscout",
        seed=0,
        fidelity="adaptive",
        warm_start="auto",
        hyper={},
        environment={},
        kb_mark=0,
        default=Configuration(knobs={"tp": 1}),
        orderings=[],
    )


def ended(measurement: Measurement, number: int = 0) -> journal.ExperimentEnded:
    return journal.ExperimentEnded(number=number, purpose="search", measurement=measurement, at=measurement.at)


def write(kb: Path, session: str, *events: journal.Event, of: Job | None = None, at: float = 0.0) -> Path:
    """Makes a session's journal beside the knowledge base; it has the events after its start."""
    path = kb.parent / "sessions" / session / "journal.jsonl"
    log = journal.Journal(path)
    log.append(started(session, of, at), *events)
    log.close()
    return path


def python(code: str, *arguments: object, **options: object) -> "subprocess.Popen[str]":
    """A child process that runs `code` with these modules at hand; its output is in a pipe."""
    root = HERE.parent.parent
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{HERE}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,  # type: ignore[call-overload]
    )
