"""Runs our searches on a recorded DeepSpeed grid and counts the experiments until within 5 % of its best.

python tests/tools/deepspeed_ours.py JOB.toml GRID.csv [--seeds 20] [--strategies autoscout,…]
"""

import argparse
import csv
import statistics
from pathlib import Path

import numpy as np

from autoscout.search.strategy import strategy
from autoscout.targets.jobs import JobSpace, load_job
from kb.records import Measurement

WITHIN = 1.05


def medians(path: Path) -> dict[str, float]:
    times: dict[str, list[float]] = {}
    for row in csv.DictReader(path.open()):
        if row["status"] == "ok":
            times.setdefault(row["name"], []).append(float(row["step_time_s"]))
    return {name: statistics.median(found) for name, found in times.items()}


def experiments(name: str, space: JobSpace, known: dict[str, float], seed: int, start: str) -> int:
    """The number of experiments until one is within 5 %; the number of configurations + 1 if none is. `start`: the
    advice of DeepSpeed's guides (as in a session), the first value of each list, or a random configuration."""
    best, count = min(known.values()), 0
    starts = {"advice": space.recipes[0], "lists' first": space.recipes[-1]}
    begun = starts.get(start) or space.sample(np.random.default_rng(seed))
    chosen = strategy(name, space, seed=seed, default=begun, patience=0)
    while count < len(known) and (asked := chosen.ask()):
        for configuration in asked:
            count += 1
            seconds = known[space.name(configuration)]
            if seconds <= WITHIN * best:
                return count
            metrics = {"step_time_s": seconds, "samples_per_s": space.job.traffic.global_batch / seconds}
            found = Measurement(configuration=configuration, name="", context="", status="ok", metrics=metrics)
            chosen.tell([found])
    return len(known) + 1


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("job", type=Path)
    parser.add_argument("grid", type=Path)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--strategies", default="autoscout,random,deepspeed-grid,deepspeed-random,deepspeed-staged")
    asked = parser.parse_args()
    space, known = JobSpace.of_job(load_job(asked.job)), medians(asked.grid)
    for name in asked.strategies.split(","):
        for start in ("advice", "lists' first", "at random"):
            hits = [experiments(name, space, known, seed, start) for seed in range(asked.seeds)]
            print(f"{name:18} {start} median {statistics.median(hits):g}", end=" ")
            print(f"mean {statistics.mean(hits):.1f} most {max(hits)}")


if __name__ == "__main__":
    main()
