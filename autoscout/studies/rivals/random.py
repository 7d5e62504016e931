"""Uniform random search over the valid configurations, without repeats."""

import numpy as np

from autoscout.search.sequential import Pool, Search, rival


def uniform(pool: Pool, rng: np.random.Generator) -> Search:
    for row in rng.permutation(len(pool)):
        yield int(row)


STRATEGY = rival("random", uniform)
