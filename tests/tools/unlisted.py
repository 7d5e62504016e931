"""Compares the search that does not list the space with the one that does, on spaces that can be listed, by regret
after 50, 100 and 200 experiments.

    PYTHONPATH=. python tests/tools/unlisted.py [--seeds 20] [--jobs NAME …] [--keep FILE]  the table of docs/spaces.md

Landscapes are those of `autoscout bench` (a job's analytic model with a quirk that no simulator knows), noise is 2 %.
`none`: without a simulator; `good`: with a simulator whose components are up to a quarter wrong. Ratio: mean regret
without listing / with listing, with 10,000 bootstrap samples of seeds; `best`: the same of the best times (1 + regret),
which is defined even if a regret is 0. --keep appends runs to a file and resumes from it."""

import argparse
import json
import sys
from pathlib import Path

import msgspec
import numpy as np

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from autoscout.studies.bench.job_landscape import landscape  # noqa: E402
from autoscout.studies.bench.run import BenchSettings, run  # noqa: E402
from autoscout.targets.jobs import load_job  # noqa: E402
from kb.records import Job  # noqa: E402

LISTS, DOES_NOT = "autoscout:listed=4000000", "autoscout:listed=0"
MARKS = ("50", "100", "200")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--jobs", nargs="+", default=["tiny-moe-cpu", "llama-3.2-3b", "llama-3-8b-serve"])
    parser.add_argument("--simulators", nargs="+", default=["none"])
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    known = _kept(options.keep)
    print("| job | valid | simulator | experiments | lists | does not | ratio of mean regrets | best found |")
    print("|---|---|---|---|---|---|---|---|")
    for job in options.jobs:
        for simulator in options.simulators:
            land = landscape(_listable(job), [] if simulator == "none" else [simulator])
            for seed in range(options.seeds):
                for name in (LISTS, DOES_NOT):
                    key = f"{job} {simulator} {name} {seed}"
                    if key not in known:
                        known[key] = run(land, name, seed, BenchSettings(noise=0.02))[0].regret_at
                        _keep(options.keep, key, known[key])
            for mark in MARKS:
                rows = [
                    [known[f"{job} {simulator} {n} {s}"][mark] for s in range(options.seeds)] for n in (LISTS, DOES_NOT)
                ]
                regret = np.array([[1.0 if v is None else v for v in row] for row in rows])
                medians = [f"{m:.2%}" for m in np.median(regret, axis=1)]
                words = " | ".join([job, f"{land.space.count:,}", simulator, mark, *medians, *_ratios(regret)])
                print(f"| {words} |", flush=True)


def _listable(name: str) -> Job:
    """The job without constraints, and for serving with unimportant knobs fixed, so that its space is small."""
    job = load_job(ROOT / "fixtures" / "jobs" / f"{name}.toml")
    if job.task != "serve":
        return job
    fix = {**job.space.fix, "block_size": 16, "graph_size": 512}
    space = msgspec.structs.replace(job.space, fix=fix)
    return msgspec.structs.replace(job, space=space, objective=msgspec.structs.replace(job.objective, constraints=[]))


def _ratios(regret: np.ndarray) -> list[str]:
    """`regret` (2, seeds) → the ratios, each with its 95 % interval."""
    drawn = np.random.default_rng(0).integers(0, regret.shape[1], (10_000, regret.shape[1]))
    found = []
    for values in (regret, 1 + regret):
        mean = values.mean(axis=1)
        means = values[:, drawn].mean(axis=2)
        if not mean[0] or not means[0].all():
            found.append("none of either" if not mean.any() else f"{mean[0]:.3%} against {mean[1]:.3%}")
            continue
        low, high = np.quantile(means[1] / means[0], [0.025, 0.975])
        digits = 4 if values is not regret else 2
        found.append(f"{mean[1] / mean[0]:.{digits}f} ({low:.{digits}f}–{high:.{digits}f})")
    return found


def _kept(path: Path | None) -> dict[str, dict[str, float | None]]:
    if path is None or not path.is_file():
        return {}
    return dict(json.loads(line) for line in path.read_text().splitlines())


def _keep(path: Path | None, key: str, regret: dict[str, float | None]) -> None:
    if path is not None:
        with path.open("a") as file:
            file.write(json.dumps([key, regret]) + "\n")


if __name__ == "__main__":
    main()
