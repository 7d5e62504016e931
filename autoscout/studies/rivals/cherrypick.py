"""CherryPick (Alipourfard et al., NSDI 2017): Bayesian optimization with a Gaussian process, Matérn 5/2, and expected
improvement, on the raw cost over linearly coded knobs.

As in the paper: three quasi-random first points, one length scale for all dimensions, noise in the likelihood, and EI.
Differences: it uses the whole budget, while the paper's stops when the expected improvement is below a tenth of the
best cost; a failure counts as 1.2 times the worst cost, because the paper has no failures; and the acquisition is
computed on at most 20,000 random rows, because the paper's spaces have only 66 configurations."""

import numpy as np

from autoscout.search.sequential import Pool, Search, rival
from autoscout.studies.rivals.gaussian import Refitted, most_promising

_FIRST = 3
_CANDIDATES = 20_000
_FAILED = 1.2


def cherrypick(pool: Pool, rng: np.random.Generator) -> Search:
    from scipy.stats import qmc
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    kernel = ConstantKernel(1.0, (1e-2, 1e2)) * Matern(0.5, (1e-2, 1e2), nu=2.5) + WhiteKernel(1e-3, (1e-6, 1.0))
    model = Refitted(kernel)
    for point in qmc.Sobol(len(pool.levels), rng=rng).random_base2(2)[:_FIRST]:  # (knobs,) in [0, 1)
        yield pool.nearest(np.floor(point * pool.levels).astype(int))
    while True:
        rows, costs = pool.costs(_FAILED)
        model.fit(pool.scaled(rows), costs)
        candidates = pool.candidates(rng, _CANDIDATES)
        mean, sd = model.predict(pool.scaled(candidates))
        yield int(candidates[most_promising(mean, sd, float(costs.min()))])


STRATEGY = rival("cherrypick", cherrypick)
