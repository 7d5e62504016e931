"""DeepSpeed autotuning's `gridsearch`: all configurations in order, until several successive trials bring no gain.

According to its source (tuner/index_based_tuner.py, base_tuner.py), it ends after `tuner_early_stopping` trials without
a gain (5 unless the ds_config sets this number; 0: never). The best trial itself counts as the first of these. The
procedure around it (stage by stage, the micro batch first) is in deepspeed_staged.py."""

from collections.abc import Iterable

import numpy as np

from autoscout.search.sequential import Pool, Search, rival

EARLY_STOPPING = 5


def gridsearch(pool: Pool, rng: np.random.Generator) -> Search:
    return until_no_gain(pool, iter(range(len(pool))))


def until_no_gain(pool: Pool, rows: Iterable[int]) -> Search:
    """Yields the unmeasured `rows` one by one, until `pool.patience` successive trials bring no gain (0: all rows)."""
    patience = EARLY_STOPPING if pool.patience is None else pool.patience
    best, since = min((c for c in pool.known.values() if c is not None), default=float("inf")), 0
    for row in rows:
        if not pool.open[row]:
            continue
        cost = yield int(row)
        since = 1 if cost is not None and cost < best else since + 1
        best = min(best, float("inf") if cost is None else cost)
        if patience and since >= patience:
            return


STRATEGY = rival("deepspeed-grid", gridsearch, finite=True)
