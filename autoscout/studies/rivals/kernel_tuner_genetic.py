"""Kernel Tuner's genetic algorithm: 26 individuals, single-point crossover, children that break a constraint repaired
to a valid neighbour; its own code and its defaults."""

import numpy as np

from autoscout.search.sequential import Pool, Search, rival
from autoscout.studies.rivals.kernel_tuner_vndx import HOW, by_kernel_tuner


def kernel_tuner_genetic(pool: Pool, rng: np.random.Generator) -> Search:
    return by_kernel_tuner(pool, rng, "genetic_algorithm")


STRATEGY = rival("kernel-tuner-genetic", kernel_tuner_genetic, packages=("kernel_tuner",), how=HOW)
