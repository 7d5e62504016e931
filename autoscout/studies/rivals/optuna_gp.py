"""Optuna's Gaussian process sampler (GPSampler: Matérn 5/2 with a length scale per knob, log expected improvement);
failures break its constraint."""

import numpy as np

from autoscout.search.sequential import Pool, Search, rival
from autoscout.studies.rivals.optuna_tpe import broken, by_trials


def optuna_gp(pool: Pool, rng: np.random.Generator) -> Search:
    """It models only knobs that every trial has (its "intersection search space"); conditional ones are random. Once it
    is sure, it suggests the same configuration forever, at a cost that grows with the trials; therefore `distinct`."""
    import warnings

    import optuna  # type: ignore[import-not-found]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the sampler is experimental
        sampler = optuna.samplers.GPSampler(
            seed=int(rng.integers(2**31)), deterministic_objective=False, constraints_func=broken
        )
    return by_trials(pool, sampler, distinct=True)


STRATEGY = rival("optuna-gp", optuna_gp, packages=("optuna", "torch"), how="pip install 'autoscout[rivals]' torch")
