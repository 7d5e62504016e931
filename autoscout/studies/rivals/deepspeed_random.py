"""DeepSpeed autotuning's `random` tuner: configurations in random order, until successive trials bring no gain."""

import numpy as np

from autoscout.search.sequential import Pool, Search, rival
from autoscout.studies.rivals.deepspeed_grid import until_no_gain


def in_random_order(pool: Pool, rng: np.random.Generator) -> Search:
    return until_no_gain(pool, rng.permutation(len(pool)))


STRATEGY = rival("deepspeed-random", in_random_order, finite=True)
