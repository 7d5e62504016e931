"""Tunes the tiny jobs, then re-measures their worst, default and best configurations alternately on this machine.

make table        writes the table of docs/lab/measured.md to stdout
"""

import statistics
import sys
import tempfile
from pathlib import Path

from autoscout.job.objective import cost
from autoscout.space.explain import completed
from autoscout.targets.jobs import JobSpace, load_job, profiler_of
from autoscout.tuning.loop import Stop
from autoscout.tuning.session import SessionOptions, tune
from kb import store
from kb.records import Configuration, Job, Measurement

REPEATS = 5
UNLUCKY = ({"tp": 4, "mbs": 1}, {"tp": 4, "mbs": 1, "ar": "full"})  # bad configurations that the space allows


def main() -> None:
    print("| job | configuration | s/iter: median | lowest–highest | CV | × best | GiB/rank | status |")
    print("|---|---|---|---|---|---|---|---|")
    for path in ("fixtures/jobs/tiny-gpt-cpu.toml", "fixtures/jobs/tiny-moe-cpu.toml"):
        job = load_job(path)
        with tempfile.TemporaryDirectory() as folder:
            contestants = _contestants(job, Path(folder))
            measured = _in_turns(job, contestants, Path(folder))
        best = _median(measured["best"])
        for title, rows in measured.items():
            print(_row(job, title, rows, best))


def _contestants(job: Job, folder: Path) -> dict[str, Configuration]:
    kb = folder / "kb.duckdb"
    result = tune(job, kb, SessionOptions(), lambda event: None, lambda text: print(text, file=sys.stderr), Stop())
    assert result.confirmed is not None
    space = JobSpace.of_job(job)
    default = space.reference
    rows = [m for _, m in store.measurements(kb)]
    slowest = max(rows, key=lambda m: cost(job.objective, m) or 0.0).configuration
    return {
        "best": result.confirmed.winner,
        "expert default": default,
        "slowest of the session": slowest,
        **{f"unlucky {i + 1}": completed(space, given, default) for i, given in enumerate(UNLUCKY)},
    }


def _in_turns(job: Job, contestants: dict[str, Configuration], folder: Path) -> dict[str, list[Measurement]]:
    space = JobSpace.of_job(job)
    profiler = profiler_of(job)
    measured: dict[str, list[Measurement]] = {title: [] for title in contestants}
    for i in range(REPEATS):
        for title, configuration in contestants.items():
            name = space.name(configuration)
            measured[title].append(profiler.run(configuration, name, folder / f"{title}-{i}".replace(" ", "-")))
    profiler.close()
    return measured


def _median(rows: list[Measurement]) -> float:
    return statistics.median(m.metrics["step_time_s"] for m in rows if m.status == "ok")


def _row(job: Job, title: str, rows: list[Measurement], best: float) -> str:
    times = [m.metrics["step_time_s"] for m in rows if m.status == "ok"]
    memory = max(m.metrics["peak_memory_gib"] for m in rows if m.status == "ok")
    cv = statistics.stdev(times) / statistics.fmean(times)
    return (
        f"| {job.name} | {title}: `{rows[0].name}` | {_median(rows):.3f} | {min(times):.3f}–{max(times):.3f} "
        f"| {cv:.1%} | {_median(rows) / best:.2f} | {memory:.2f} | {', '.join(sorted({m.status for m in rows}))} |"
    )


if __name__ == "__main__":
    main()
