"""DeepSpeed autotuning's `model_based` tuner with XGBoost and DeepSpeed's parameters (tuner/cost_model.py).
(deepspeed.py is the same with scikit-learn's trees, and uses the whole budget.)

After two random trials, it tries the configuration that the ranking model ranks first. The model is refitted after
every trial; a fifth of the trials is random. The search ends by the rule of deepspeed_grid.py. Unlike the original, it
really runs the first two trials, codes names by their index and inactive knobs by their `off` value, and minimizes the
cost for every metric."""

from collections.abc import Iterator

import numpy as np

from autoscout.search.sequential import Pool, Search, rival
from autoscout.studies.rivals.deepspeed_grid import until_no_gain

INIT, EXPLORATION = 2, 0.2
PARAMETERS = {
    "max_depth": 3,
    "gamma": 0.0001,
    "min_child_weight": 1,
    "subsample": 1.0,
    "eta": 0.3,
    "lambda": 1.0,
    "alpha": 0,
    "objective": "rank:pairwise",
    "verbosity": 0,
    "nthread": 1,
}


def model_based(pool: Pool, rng: np.random.Generator) -> Search:
    return until_no_gain(pool, _rows(pool, rng))


def _rows(pool: Pool, rng: np.random.Generator) -> Iterator[int]:
    started = len(pool.known)
    while pool.open.any():
        if len(pool.known) < started + INIT or rng.random() < EXPLORATION:
            yield int(rng.choice(np.flatnonzero(pool.open)))
        else:
            candidates = np.flatnonzero(pool.open)
            yield int(candidates[np.argmax(ranked(pool, candidates))])


def ranked(pool: Pool, candidates: np.ndarray) -> np.ndarray:
    """Returns scores of the candidates, (k,), learned from the measured rows. Higher is better; failed runs have 0."""
    import xgboost  # type: ignore[import-not-found]

    rows = np.array(list(pool.known))
    performance = np.array([0.0 if cost is None else 1.0 / cost for cost in pool.known.values()])
    data = xgboost.DMatrix(pool.scaled(rows), performance / max(performance.max(), 1e-9))
    return xgboost.train(PARAMETERS, data).predict(xgboost.DMatrix(pool.scaled(candidates)))


STRATEGY = rival("deepspeed-model", model_based, ("xgboost",), "pip install 'autoscout[deepspeed-tuner]'", finite=True)
