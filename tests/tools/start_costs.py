"""The overhead of an experiment by release of Megatron-core, measured alternately on one machine: median seconds of a
run, and of each phase of its first rank before the first iteration.

    PYTHONPATH=. python tests/tools/start_costs.py JOB.toml RUNS PYTHON …

Each PYTHON is an interpreter with torch and one release. The first run of each is a warm-up and not counted."""

import contextlib
import json
import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import msgspec

from autoscout.targets.jobs import JobSpace, load_job
from autoscout.targets.megatron.profiler import profiler
from kb.records import Job


def with_python(job: Job, python: str) -> Job:
    """The job with this interpreter and the fewest possible iterations, to measure the start only."""
    launch = msgspec.structs.replace(job.launch, python=python, warmup=1, iterations=2)
    return msgspec.structs.replace(job, launch=launch)


def main(job: Job, runs: int, pythons: list[str]) -> None:
    configuration = JobSpace.of_job(job).reference
    spent: dict[str, dict[str, list[float]]] = {python: defaultdict(list) for python in pythons}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        runners = {p: stack.enter_context(contextlib.closing(profiler(with_python(job, p)))) for p in pythons}
        for number in range(runs + 1):
            for python, runner in runners.items():
                ran = runner.run(configuration, "start", folder / "start")
                assert ran.status == "ok", ran.evidence
                rank = json.loads((folder / "start" / "rank-0.json").read_text())
                if number:
                    phases = {name: s for name, s in rank.items() if name.startswith("start_")}
                    for name, seconds in {"all": ran.cost_s, "rank": rank["took_s"], **phases}.items():
                        spent[python][name].append(seconds)
                print(number, python, round(ran.cost_s, 2), file=sys.stderr, flush=True)
    for python, series in spent.items():
        print(python, {name: round(statistics.median(seconds), 3) for name, seconds in series.items()})


if __name__ == "__main__":
    main(load_job(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
