"""How much device time early stopping saves on real jobs, and how it changes the result: a table of
docs/your-own-script.md.

    PYTHONPATH=. python tests/tools/ending_early.py JOB.toml … [--most 10] [--orders 500] [--keep build/ending-early]

Up to `--most` configurations of each job are run once in full (and stored, so that the program can be resumed). Then
the profiler's rule (running/early.py) gets their iterations one by one, in `--orders` random orders of a search, the
reference first: a run is cut where the rule ends it. Device time includes the start of a run."""

import argparse
import contextlib
import random
import statistics
from pathlib import Path

import msgspec
import numpy as np

from autoscout.job.objective import cost, to_metric
from autoscout.running import early
from autoscout.running.cluster import slots
from autoscout.targets.jobs import JobSpace, load_job, profiler_of
from kb.records import Job, Measurement


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """One replayed order. `spent`, `full`: device seconds with and without early stopping; `ended`: number of cut runs;
    `best`: lowest cost among the full runs, as a multiple of the lowest cost of all."""

    spent: float
    full: float
    ended: int
    best: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="+", type=Path)
    parser.add_argument("--most", type=int, default=10)
    parser.add_argument("--orders", type=int, default=500)
    parser.add_argument("--keep", type=Path, default=Path("build/ending-early"))
    given = parser.parse_args()
    print("| job | runs | start, of a run | ended early | time saved | of measuring | same best | else worse by |")

    print("|---|---|---|---|---|---|---|---|", flush=True)
    for path in given.jobs:
        job = load_job(path)
        runs = in_full(job, given.most, given.keep / f"{job.name}.jsonl")
        rng = random.Random(0)
        sessions = [replayed(job, [runs[0], *rng.sample(runs[1:], len(runs) - 1)]) for _ in range(given.orders)]
        print(row(job, runs, sessions), flush=True)


def in_full(job: Job, most: int, keep: Path) -> list[Measurement]:
    """The measurements of the configurations that worked; the reference is the first."""
    space = JobSpace.of_job(job)
    drawn = [space.of_codes(row.tolist()) for row in space.sample_many(20 * most, np.random.default_rng(0))]
    wanted = list({c.id: c for c in [space.reference, *drawn]}.values())[:most]
    keep.parent.mkdir(parents=True, exist_ok=True)
    lines = keep.read_bytes().splitlines() if keep.is_file() else []
    known = {m.configuration.id: m for m in (msgspec.json.decode(line, type=Measurement) for line in lines)}
    with contextlib.closing(profiler_of(job)) as profiler:
        for configuration in (c for c in wanted if c.id not in known):
            with slots.machine(lambda: None, lambda: False):
                found = profiler.run(configuration, space.name(configuration), keep.parent / "experiment")
            known[configuration.id] = found
            with open(keep, "ab") as file:
                file.write(msgspec.json.encode(found) + b"\n")
    return [m for c in wanted if (m := known[c.id]).status == "ok" and len(m.iterations_s) > 1]


def replayed(job: Job, order: list[Measurement]) -> Session:
    told: list[Measurement] = []
    spent = full = 0.0
    ended = 0
    for run in order:
        bar = early.bar(job.objective, told, gives_up=True)
        lost = next((n for n in range(1, len(run.iterations_s)) if early.hopeless(run.iterations_s[:n], bar)), None)
        at = next((n for n in range(1, lost or len(run.iterations_s)) if settled(job, run.iterations_s[:n], bar)), lost)
        saved = sum(run.iterations_s[at:]) if at else 0.0
        full, spent, ended = full + run.cost_s, spent + run.cost_s - saved, ended + (at is not None and at == lost)
        value = {job.objective.metric: to_metric(job.objective, statistics.median(run.iterations_s[:at]))}
        told.append(
            msgspec.structs.replace(
                run, fidelity="short" if at and at == lost else "measured", metrics={**run.metrics, **value}
            )
        )
    costs = {m.id: cost(job.objective, m) or float("inf") for m in order}
    chosen = min((m for m in told if m.fidelity == "measured"), key=lambda m: cost(job.objective, m) or float("inf"))
    true = {m.configuration.id: c for m, c in zip(order, costs.values(), strict=True)}
    return Session(spent=spent, full=full, ended=ended, best=true[chosen.configuration.id] / min(true.values()))


def settled(job: Job, costs: list[float], bar: early.Bar | None) -> bool:
    return bool(early.known_well(costs, job.launch.iterations, sum(costs), job.launch.measure_s, bar))


def row(job: Job, runs: list[Measurement], sessions: list[Session]) -> str:
    saved = [1 - s.spent / s.full for s in sessions]
    measuring = statistics.fmean(sum(m.iterations_s) for m in runs)
    start = 1 - measuring / statistics.fmean(m.cost_s for m in runs)
    of_measuring = [(s.full - s.spent) / (measuring * len(runs)) for s in sessions]
    wrong = [s.best - 1 for s in sessions if s.best > 1 + 1e-9]
    cells = [
        job.name,
        str(len(runs)),
        f"{start:.0%}",
        f"{statistics.fmean(s.ended for s in sessions):.1f}",
        f"{statistics.fmean(saved):.0%} ({np.quantile(saved, 0.1):.0%} to {np.quantile(saved, 0.9):.0%})",
        f"{statistics.fmean(of_measuring):.0%}",
        f"{sum(s.best <= 1 + 1e-9 for s in sessions)} of {len(sessions)}",
        f"{max(wrong):.1%}" if wrong else "–",
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
