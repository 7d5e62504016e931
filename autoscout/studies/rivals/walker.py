"""COSMIC's random walker (ArchGym's RW agent): every value is drawn independently and uniformly from the knob's domain.

COSMIC returns −∞ for a broken constraint; most proposals in its logs break one. Here, a draw is replaced by the nearest
valid configuration, so none is wasted; this favours configurations surrounded by invalid ones."""

import numpy as np

from autoscout.search.sequential import Pool, Search, rival


def walker(pool: Pool, rng: np.random.Generator) -> Search:
    while True:
        yield pool.nearest(np.array([rng.integers(levels) for levels in pool.levels]))


STRATEGY = rival("walker", walker)
