"""Measures every valid configuration of a small job, for tests that replay it.

    python tests/tools/record_landscape.py fixtures/jobs/smallest-cpu.toml fixtures/recorded/smallest-cpu.jsonl

Writes the session's start, the ends of its experiments, and its end. Journals have no prompts, paths or host names."""

import json
import sys
import tempfile
from pathlib import Path

from autoscout.job.load import with_budget
from autoscout.search.hyper import Hyper
from autoscout.targets.jobs import JobSpace, load_job
from autoscout.tuning.loop import Stop
from autoscout.tuning.session import SessionOptions, tune
from kb import store

_UNREAD = ("decided", "experiment_started")  # events that a replay does not need


def main(job_file: str, out: str) -> None:
    job = load_job(job_file)
    count = JobSpace.of_job(job).count
    with tempfile.TemporaryDirectory() as folder:
        kb = Path(folder) / "kb.duckdb"
        options = SessionOptions(strategy="random", fidelity="profile", warm_start="off", hyper=Hyper(patience=count))
        result = tune(with_budget(job, count, "2h"), kb, options, lambda event: None, print, Stop())
        journal = store.sessions_folder(kb) / result.session / "journal.jsonl"
        lines = journal.read_text().splitlines(keepends=True)
        Path(out).write_text("".join(line for line in lines if json.loads(line)["type"] not in _UNREAD))
    print(f"{result.experiments} experiments of {count} configurations in {out}")


if __name__ == "__main__":
    main(*sys.argv[1:])
