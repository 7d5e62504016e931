"""Many processes use one knowledge base, are killed with -9 at random and restarted; checks that nothing is lost.

    python tests/tools/kb_stress.py [--minutes 5] [--writers 8] [--readers 4] [--pause 0.5] [--json]

A writer acts like a session: it writes a measurement to its journal, then to the knowledge base, and acknowledges it on
disk. `--pause` is the mean duration of its pretended experiment. A reader runs SQL. About twice a second, one of them
is killed. At the end, every acknowledged measurement must exist once, in an intact file. The printed waits are times
until a process gets the lock."""

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from kb import care, lock, query, store
from kb import journal as journals
from kb.records import (
    AutoscoutError,
    Cluster,
    Configuration,
    Job,
    Measurement,
    Model,
    Node,
    Objective,
    Traffic,
)

JOB = Job(
    name="stress",
    target="megatron",
    model=Model(layers=2, hidden=8, heads=2, vocab=32),
    traffic=Traffic(seq_len=8, global_batch=8),
    cluster=Cluster(nodes=[Node(device="cpu", count=4)]),
    objective=Objective(minimize="step_time_s"),
)


def write(kb: Path, name: str, pause: float, log: Any) -> None:
    path = store.sessions_folder(kb) / name / "journal.jsonl"
    journal = journals.Journal(path)
    journal.append(
        journals.SessionStarted(
            session=name,
            job=JOB,
            context="here",
            strategy="random",
            seed=0,
            fidelity="profile",
            warm_start="off",
            hyper={},
            environment={},
            kb_mark=0,
            default=Configuration({"tp": 1}),
            orderings=[],
        )
    )
    for i in range(1_000_000):
        time.sleep(random.uniform(0, 2 * pause))
        m = Measurement(
            configuration=Configuration({"tp": i % 8, "mbs": i}),
            name=f"tp{i % 8}_mbs{i}",
            context="here",
            status="ok",
            metrics={"step_time_s": random.random()},
            environment={"writer": name},
            at=time.time(),
        )
        journal.append(journals.ExperimentEnded(number=i, purpose="search", measurement=m))
        store.ingest(kb, path)
        log("ack", m.id)


def read(kb: Path, pause: float, log: Any) -> None:
    most = 0
    while True:
        time.sleep(random.uniform(0, 2 * pause))
        [(count, different)] = query.run(kb, "SELECT count(*), count(DISTINCT id) FROM measurement").rows
        if count < most or different != count:
            log("error", f"{count} rows, {different} different, {most} before")
        most = max(most, count)
        log("read", str(count))


def child(kb: Path, role: str, name: str, pause: float, path: Path) -> None:
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def log(kind: str, text: str) -> None:
        os.write(file, f"{kind} {text}\n".encode())
        if kind == "ack":
            os.fsync(file)

    def timed(locking: Any) -> Any:
        @contextlib.contextmanager
        def waiting(path: Path, wait_s: float = lock.WAIT_S) -> Any:
            began = time.perf_counter()
            with locking(path, wait_s):
                log("wait", f"{time.perf_counter() - began:.6f}")
                yield

        return waiting

    lock.exclusive, lock.shared = timed(lock.exclusive), timed(lock.shared)
    try:
        write(kb, name, pause, log) if role == "writer" else read(kb, pause, log)
    except AutoscoutError as error:
        log("error", str(error).replace("\n", " "))
        raise SystemExit(1) from error


def stress(folder: Path, seconds: float, writers: int, readers: int, pause: float, seed: int = 0) -> dict[str, Any]:
    """Runs the processes in the empty `folder` and returns the figures."""
    kb, logs = folder / "kb.duckdb", folder / "logs"
    logs.mkdir()
    store.mark(kb)
    chance = random.Random(seed)
    running: dict[int, tuple[subprocess.Popen[bytes], int]] = {}
    killed = 0

    def start(slot: int, life: int) -> None:
        role = "writer" if slot < writers else "reader"
        name = f"{role}-{slot}-{life}"
        command = [sys.executable, __file__, "--child", role, name, str(logs / name), str(kb), "--pause", str(pause)]
        running[slot] = (subprocess.Popen(command, start_new_session=True), life)

    for slot in range(writers + readers):
        start(slot, 0)
    until = time.monotonic() + seconds
    try:
        while time.monotonic() < until:
            time.sleep(chance.uniform(0.1, 0.9))
            slot = chance.randrange(writers + readers)
            process, life = running[slot]
            killed += process.poll() is None
            process.send_signal(signal.SIGKILL)
            process.wait()
            start(slot, life + 1)
    finally:
        for process, _ in running.values():
            process.kill()
            process.wait()
    return {"seconds": seconds, "writers": writers, "readers": readers, "killed": killed, **_verdict(kb, logs)}


def _verdict(kb: Path, logs: Path) -> dict[str, Any]:
    lines = [line.split(" ", 1) for path in logs.iterdir() for line in path.read_text().splitlines() if " " in line]
    acknowledged = [text for kind, text in lines if kind == "ack"]
    waits = sorted(float(text) for kind, text in lines if kind == "wait")
    there = [m.id for _, m in store.measurements(kb)]
    store.ingest_all(kb)
    after = {m.id for _, m in store.measurements(kb)}
    journaled = {
        event.measurement.id
        for path in store.sessions_folder(kb).glob("*/journal.jsonl")
        for event, _ in journals.read(path)
        if isinstance(event, journals.ExperimentEnded)
    }
    return {
        "acknowledged": len(acknowledged),
        "reads": sum(kind == "read" for kind, _ in lines),
        "lost": len(set(acknowledged) - set(there)),
        "duplicated": len(there) - len(set(there)),
        "differ_from_journals": len(after ^ journaled),
        "errors": [text for kind, text in lines if kind == "error"],
        "unsound": [f"{f.subject}: {f.found}" for f in care.check(kb) if not f.ok],
        "wait_ms": {
            "p50": round(1000 * statistics.median(waits), 1),
            "p95": round(1000 * waits[int(0.95 * len(waits))], 1),
            "max": round(1000 * waits[-1], 1),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--readers", type=int, default=4)
    parser.add_argument("--pause", type=float, default=0.5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        role, name, log, kb = options.child
        child(Path(kb), role, name, options.pause, Path(log))
        return
    with tempfile.TemporaryDirectory() as folder:
        figures = stress(Path(folder), 60 * options.minutes, options.writers, options.readers, options.pause)
    print(json.dumps(figures) if options.json else "\n".join(f"{name}: {value}" for name, value in figures.items()))
    if figures["lost"] or figures["duplicated"] or figures["unsound"] or figures["errors"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
