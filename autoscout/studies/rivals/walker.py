"""COSMIC's random walker (ArchGym's RW agent): every knob is drawn independently, uniformly over its domain.

COSMIC gives −∞ for a broken constraint (most of its logged proposals break one). Here the draw is moved to the nearest
valid configuration instead, so none is wasted; this favours configurations surrounded by invalid ones.
"""

import numpy as np

from autoscout.search.sequential import Pool, Search, rival


def walker(pool: Pool, rng: np.random.Generator) -> Search:
    while True:
        yield pool.nearest(np.array([rng.integers(levels) for levels in pool.levels]))


STRATEGY = rival("walker", walker)
