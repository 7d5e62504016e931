"""Kernel Tuner's Bayesian optimization (Willemsen, van Nieuwpoort and van Werkhoven 2021): a Gaussian process on raw
costs, three acquisitions with contextual variance, of which those that do worse are dropped ("advanced multi"); its
own code and otherwise its defaults.

Ours: `multi-advanced` in place of its newer default, which chooses by the clock how often it predicts, and 20 first
points at random in place of a Latin hypercube that takes no seed; a random 20,000 configurations where there are more.
"""

import numpy as np

from autoscout.search.sequential import Pool, Search, rival
from autoscout.studies.rivals.kernel_tuner_vndx import HOW, by_kernel_tuner

_CANDIDATES = 20_000
_INVALID = 1e20  # what it takes for a failed run; 1.5 hands it the largest float, and its predictions are NaN


def kernel_tuner_bayes(pool: Pool, rng: np.random.Generator) -> Search:
    options = {"method": "multi-advanced", "samplingmethod": "random"}
    return by_kernel_tuner(pool, rng, "bayes_opt", options, pool.candidates(rng, _CANDIDATES), _INVALID)


STRATEGY = rival("kernel-tuner-bayes", kernel_tuner_bayes, packages=("kernel_tuner",), how=HOW)
