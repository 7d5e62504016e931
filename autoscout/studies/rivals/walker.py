"""COSMIC's random walker (ArchGym's RW agent): every knob drawn by itself, uniformly over its domain.

COSMIC gives −∞ to a broken constraint (most of its logged proposals break one); here the draw goes to the nearest valid
configuration instead, so none is wasted. That favours configurations with many invalid ones around them.
"""

import numpy as np

from autoscout.search.sequential import Pool, Search, rival


def walker(pool: Pool, rng: np.random.Generator) -> Search:
    while True:
        yield pool.nearest(np.array([rng.integers(levels) for levels in pool.levels]))


STRATEGY = rival("walker", walker)
