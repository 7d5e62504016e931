"""CPU milliseconds of each ask and tell of the default search, in a run on a generated landscape (search_generated.py).

python tests/tools/search_steps.py --of serving --draw 63 --with none,good
"""

import argparse
import os
import time
import warnings

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

import numpy as np
import search_generated

from autoscout.search.strategy import strategy
from autoscout.studies.bench.landscape import Landscape


def steps(land: Landscape, simulator: str, budget: int, seed: int = 0) -> np.ndarray:
    """(budget,) CPU milliseconds of each step."""
    land.prepare()
    simulators = {} if simulator == "none" else {simulator: land.predictor(simulator)}
    search = strategy("autoscout", land.space, seed=seed, simulators=simulators)
    spent = []
    for _ in range(budget):
        begun = time.process_time()
        asked = search.ask()
        chosen = time.process_time() - begun
        rows = [land.space.feasible.index(c) or 0 for c in asked]
        told = [land.measure(r, c, search_generated.NOISE, seed) for r, c in zip(rows, asked, strict=True)]
        begun = time.process_time()
        search.tell(told)
        search.drain()
        spent.append(1000 * (chosen + time.process_time() - begun))
    return np.array(spent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--of", default="serving")
    parser.add_argument("--draw", type=int, default=63)
    parser.add_argument("--with", dest="simulators", default="none,good")
    parser.add_argument("--budget", type=int, default=200)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    land = search_generated.landscape(given.of, given.draw)
    for simulator in given.simulators.split(","):
        ms = steps(land, simulator, given.budget)
        print(
            f"{land.name}, {len(land.truth):,} configurations, {simulator}: median {np.median(ms):.1f} ms, mean "
            f"{ms.mean():.1f}, nine in ten within {np.quantile(ms, 0.9):.0f}, longest {ms[1:].max():.0f}"
        )


if __name__ == "__main__":
    main()
