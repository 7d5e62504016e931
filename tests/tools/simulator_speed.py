"""CPU seconds of the analytic models for random configurations of spaces: a table of docs/lab/simulators-training.md,
and of the fluid model of serving (docs/lab/simulators-serving.md).

    python -m tests.tools.simulator_speed [JOB.toml …] [--rows 1000000]
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from autoscout.simulate.encode import of_job, serving_devices
from autoscout.simulate.serving.setup import columns_of_job
from autoscout.simulate.serving.simulator import ServingSimulator
from autoscout.simulate.training.memory import Memory
from autoscout.simulate.training.step import Training
from autoscout.targets.jobs import JobSpace, load_job

FIXTURES = Path(__file__).parents[2] / "fixtures"
SERVING = ("jobs/llama-3-8b-serve.toml", "jobs/llama-3.1-8b-serve-azure.toml")
JOBS = ("jobs/llama-3.2-3b.toml", "large/llama-3.1-70b-32-h100.toml", "large/qwen3-30b-a3b-64-h100.toml")


def cpu_seconds(call: Callable[[Any], Any], columns: dict[str, Any]) -> float:
    before = time.process_time()
    call(columns)
    return time.process_time() - before


def line(path: Path, rows: int, software: str) -> str:
    space = JobSpace.of_job(load_job(path))
    columns = {**of_job(space.job), **space.columns(space.sample_many(rows, np.random.default_rng(0)))}
    if software:
        columns |= {"software": software, "te": np.nan}
    training, memory = Training.of_job(space.job), Memory.of_job(space.job)
    taken = [cpu_seconds(call, columns) for call in (training.predict, memory.predict, memory.oom_probability)]
    return f"| {path.stem}, software {software or 'known'} | " + " | ".join(f"{s:.2f} s" for s in taken) + " |"


def serving_line(path: Path, rows: int) -> str:
    space = JobSpace.of_job(load_job(path))
    columns = {**of_job(space.job), **columns_of_job(space.job)}
    columns |= space.columns(space.sample_many(rows, np.random.default_rng(0)))
    columns |= serving_devices(space.job, columns)
    seconds = cpu_seconds(ServingSimulator(space.job.objective.metric).predict, columns)
    return f"{rows:,} configurations of {path.stem}: {seconds:.2f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU seconds of the analytic models.")
    parser.add_argument("jobs", nargs="*", type=Path, default=[FIXTURES / job for job in JOBS])
    parser.add_argument("--rows", type=int, default=1_000_000)
    options = parser.parse_args()
    print(f"| {options.rows:,} configurations of | times | memory | chance of running out |\n|---|---|---|---|")
    for job in options.jobs:
        for software in ("", "unknown"):
            print(line(job, options.rows, software), flush=True)
    if options.jobs == [FIXTURES / job for job in JOBS]:
        print(*(serving_line(FIXTURES / job, options.rows) for job in SERVING), sep="\n")


if __name__ == "__main__":
    main()
