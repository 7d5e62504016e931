"""DeepSpeed autotuning's `gridsearch`: everything in order, all stages at once; ends after 5 trials without a gain.

From its source (tuner/index_based_tuner.py, base_tuner.py): `tuner_early_stopping` counts from the best trial on.
`grid` is what stands around it, stage by stage with the micro batch first.
"""

import numpy as np

from autoscout.search.sequential import Pool, Search, rival

EARLY_STOPPING = 5


def gridsearch(pool: Pool, rng: np.random.Generator) -> Search:
    return until_no_gain(pool, iter(range(len(pool))))


def until_no_gain(pool: Pool, rows, patience: int = EARLY_STOPPING) -> Search:
    """`rows` one by one, known ones left out, until `patience` trials brought no gain (0: to the end)."""
    best, since = min((c for c in pool.known.values() if c is not None), default=float("inf")), 0
    for row in rows:
        if not pool.open[row]:
            continue
        cost = yield int(row)
        since = 0 if cost is not None and cost < best else since + 1
        best = min(best, float("inf") if cost is None else cost)
        if patience and since >= patience:
            return


STRATEGY = rival("deepspeed-grid", gridsearch, finite=True)
