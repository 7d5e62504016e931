"""Staged sweeps, as engineers tune a server manually: first parallelism, then memory and concurrency, then the
scheduler, then the rest. Each stage starts from the best configuration so far; after the last, the first is repeated.

A stage tries all combinations of the knobs of one layer of the catalog, or 30 random ones if there are more; all other
knobs stay as near to the best configuration as is valid. The method is not published; its limits are assumptions."""

import numpy as np

from autoscout.search.sequential import Pool, Search, rival

_ORDER = ("devices", "parallelism", "memory", "schedule")
_MOST = 30


def staged(pool: Pool, rng: np.random.Generator) -> Search:
    stages = _stages(pool)
    while True:
        known = len(pool.known)
        for columns in stages:
            best = pool.codes[pool.default if pool.best is None else pool.best]
            others = np.delete(np.arange(len(best)), columns)
            apart = (pool.codes[:, others] != best[others]).sum(axis=1)
            values = np.unique(pool.codes[:, columns], axis=0)
            for some in values[rng.permutation(len(values))[:_MOST]]:
                rows = np.flatnonzero((pool.codes[:, columns] == some).all(axis=1))
                row = int(rows[np.argmin(apart[rows])])
                if pool.open[row]:
                    yield row
        if len(pool.known) == known:
            yield int(rng.choice(np.flatnonzero(pool.open)))


def _stages(pool: Pool) -> list[list[int]]:
    """Columns of the varying knobs, by layer."""
    layers: dict[str, list[int]] = {layer: [] for layer in _ORDER}
    for column, knob in enumerate(pool.space.knobs):
        if len(np.unique(pool.codes[:, column])) > 1:
            layers.setdefault(knob.layer, []).append(column)
    return [columns for columns in layers.values() if columns]


STRATEGY = rival("staged", staged)
