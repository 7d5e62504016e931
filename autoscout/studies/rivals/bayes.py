"""Bayesian optimization, like the Bayesian agent of COSMIC (scikit-optimize's gp_minimize in ArchGym).

It starts with ten random points. Then a Gaussian process (Matérn 5/2, a length scale per knob) is combined with a
portfolio of acquisitions (GP-Hedge, Hoffman et al. 2011): expected improvement, lower confidence bound and probability
of improvement each propose a candidate. One of the three is chosen at random; acquisitions whose past candidates have
better predictions are more probable. COSMIC reports −∞ for a broken constraint; here only valid configurations can be
proposed, and a failed run counts as twice the worst cost. Differences: hyper-parameters are refitted when the data have
grown by a tenth, and acquisitions are computed on at most 2,000 random rows."""

import numpy as np

from autoscout.search.sequential import Pool, Search, rival
from autoscout.studies.rivals.gaussian import Refitted, most_promising

_FIRST = 10
_CANDIDATES = 2000
_FAILED = 2.0
_KAPPA = 1.96


def bayes(pool: Pool, rng: np.random.Generator) -> Search:
    from scipy.stats import norm
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    dimensions = pool.codes.shape[1]
    scales = Matern([1.0] * dimensions, (1e-2, 1e2), nu=2.5)  # type: ignore[arg-type]
    model = Refitted(ConstantKernel(1.0, (1e-2, 1e3)) * scales + WhiteKernel(1e-3, (1e-9, 1.0)))
    gains = np.zeros(3)
    for _ in range(_FIRST):
        yield int(rng.integers(len(pool)))
    while True:
        rows, costs = pool.costs(_FAILED)
        model.fit(pool.scaled(rows), costs)
        candidates = pool.candidates(rng, _CANDIDATES)
        mean, sd = model.predict(pool.scaled(candidates))
        best = float(costs.min())
        chosen = [
            most_promising(mean, sd, best),
            int(np.argmin(mean - _KAPPA * sd)),
            int(np.argmax(norm.cdf((best - mean) / sd))),
        ]
        weights = np.exp(gains - gains.max())
        gains -= mean[chosen] / max(float(costs.std()), 1e-12)
        yield int(candidates[chosen[int(rng.choice(3, p=weights / weights.sum()))]])


STRATEGY = rival("bayes", bayes)
