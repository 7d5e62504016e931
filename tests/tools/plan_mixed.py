"""The predicted best configurations of jobs on mixed clusters, by the kinds of device in use: docs/clusters.md.

PYTHONPATH=. python tests/tools/plan_mixed.py [JOB.toml …]
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from autoscout.simulate.training.crossing import network_matters
from autoscout.simulate.training.memory import Memory
from autoscout.simulate.training.step import Training
from autoscout.targets.jobs import JobSpace

PAPER = ("llama-3.2-3b", "llama-3.1-nemotron-nano-8b", "qwen3-30b-a3b")


def planned(path: str) -> None:
    """Prints, for each choice of kinds, the fitting configuration with the shortest predicted step."""
    space = JobSpace.load(path)
    columns = {n: v for n, v in space.attributes.items() if n != "degrees"} | space.feasible.columns()
    predicted = Training.of_job(space.job).predict(columns).value
    seconds = np.where(Memory.of_job(space.job).fits(columns), predicted, np.inf)
    kinds = [knob.name for knob in space.sparse if knob.layer == "devices"]
    depths = [np.asarray(columns[f"{kind}_layers"]) > 0 for kind in kinds if f"{kind}_layers" in columns]
    unequal = np.any(depths, axis=0)
    used = np.stack([np.asarray(columns[kind]) > 0 for kind in kinds], axis=1)
    print(f"{space.job.name}: {len(seconds):,} configurations, the reference {space.name(space.reference)}")
    for which in np.unique(used, axis=0)[::-1]:
        for told in (False, True):
            rows = np.flatnonzero(np.all(used == which, axis=1) & (unequal == told))
            if not len(rows) or not np.isfinite(seconds[rows]).any():
                continue
            row = int(rows[np.argmin(seconds[rows])])
            found = space.feasible.configuration(row)
            print(f"  {seconds[row]:7.3f} s  {space.name(found)}")
            one = {n: v[[row]] if np.ndim(v) == 1 and len(v) == len(seconds) else v for n, v in columns.items()}
            if said := network_matters(space.job, one):
                print(f"             {said}")


def main(paths: Sequence[str]) -> None:
    for path in paths or [str(Path("fixtures/jobs") / f"{name}.toml") for name in PAPER]:
        planned(path)


if __name__ == "__main__":
    main(sys.argv[1:])
