"""Optuna's Gaussian process sampler (GPSampler: Matérn 5/2 with a length scale per knob, log expected improvement);
failures are modelled as a broken constraint."""

import numpy as np

from autoscout.search.sequential import Pool, Search, rival
from autoscout.studies.rivals.optuna_tpe import broken, by_trials


def optuna_gp(pool: Pool, rng: np.random.Generator) -> Search:
    """The sampler models only knobs that every trial has (its "intersection search space") and samples conditional ones
    at random. Once converged, it suggests the same configuration repeatedly, and each suggestion takes longer than the
    one before, so `distinct` is set."""
    import warnings

    import optuna  # type: ignore[import-not-found]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # hides warnings about experimental features
        sampler = optuna.samplers.GPSampler(
            seed=int(rng.integers(2**31)), deterministic_objective=False, constraints_func=broken
        )
    return by_trials(pool, sampler, distinct=True)


STRATEGY = rival("optuna-gp", optuna_gp, packages=("optuna", "torch"), how="pip install 'autoscout[rivals]' torch")
