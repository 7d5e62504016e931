"""Compares the default strategy on one host and on several, in virtual time on a landscape.

An experiment takes as long as its metric in the landscape. As in a session, the reference runs first and alone; then a
free host asks for the next configuration at once, with the running ones as pending. Prints, over seeds: experiments
until within 1 % of the optimum, sequentially and in parallel, and the hosts' utilization.

    python tests/tools/batches.py [--job fixtures/jobs/tiny-gpt-cpu.toml] [--hosts 2] [--seeds 20] [--budget 60]
"""

import argparse
import heapq
import json
import statistics

import numpy as np

from autoscout.search.strategy import strategy
from autoscout.studies.bench import job_landscape
from autoscout.studies.bench.landscape import Landscape
from autoscout.targets.jobs import load_job
from kb.records import Configuration


def searched(landscape: Landscape, hosts: int, seed: int, budget: int, noise: float) -> dict[str, float]:
    chosen = strategy("autoscout", landscape.space, seed=seed, default=landscape.default)
    rng = np.random.default_rng((seed, 7))
    running: list[tuple[float, int, int]] = []
    now, used, told, found, best = 0.0, 0.0, 0, budget, np.inf
    asked: list[Configuration] = []
    dry = False
    while told < budget:
        while len(running) < (hosts if told else 1) and len(asked) < budget and not dry:
            batch = chosen.ask()
            dry = not batch
            for configuration in batch:
                row = landscape.space.feasible.index(configuration)
                assert row is not None
                truth = landscape.truth[row]
                lasts = float(20 * (truth if np.isfinite(truth) else np.nanmedian(landscape.truth)) / landscape.optimum)
                lasts *= float(np.exp(0.1 * rng.standard_normal()))
                heapq.heappush(running, (now + lasts, len(asked), row))
                used += lasts
                asked.append(configuration)
        if not running:
            break
        now, number, row = heapq.heappop(running)
        chosen.tell([landscape.measure(row, asked[number], noise, seed)])
        dry = False
        told += 1
        if np.isfinite(landscape.truth[row]):
            best = min(best, landscape.regret(float(landscape.truth[row])))
        if best <= 0.01 and found == budget:
            found = told
    return {"experiments": found, "busy": used / (hosts * now), "different": len({c.id for c in asked}) / len(asked)}


if __name__ == "__main__":
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--job", default="fixtures/jobs/tiny-gpt-cpu.toml")
    words.add_argument("--hosts", type=int, default=2)
    words.add_argument("--seeds", type=int, default=20)
    words.add_argument("--budget", type=int, default=60)
    words.add_argument("--noise", type=float, default=0.02)
    given = words.parse_args()
    landscape = job_landscape.landscape(load_job(given.job))
    landscape.prepare()
    by = {
        n: [searched(landscape, n, seed, given.budget, given.noise) for seed in range(given.seeds)]
        for n in (1, given.hosts)
    }
    for n, runs in by.items():
        mean = {key: round(statistics.mean(run[key] for run in runs), 4) for key in runs[0]}
        print(json.dumps({"hosts": n, "median": statistics.median(run["experiments"] for run in runs), **mean}))
    ratio = statistics.mean(r["experiments"] for r in by[given.hosts]) / statistics.mean(
        r["experiments"] for r in by[1]
    )
    print(json.dumps({"experiments_ratio": round(ratio, 3)}))
