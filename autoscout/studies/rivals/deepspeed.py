"""DeepSpeed autotuning's model-based tuner: boosted trees learn to rank configurations; 20 % of trials are random.

According to its source (deepspeed/autotuning/tuner), it runs two initial trials, then the best configuration by the
cost model, or with probability `random_exploration_ratio` = 0.2 a random one. The cost model is XGBoost's
`rank:pairwise` with 10 rounds, depth 3, eta 0.3, min_child_weight 1 and lambda 1 on all numeric values, refitted after
every trial; a failed trial has performance 0.

Differences: it uses the whole budget, while the original ends after `early_stopping` = 5 trials without a gain;
scikit-learn has no ranking loss, so its trees are fitted to the pairwise gradients, without min_child_weight and
lambda; names are coded by their index (on which the original fails); the model ranks at most 20,000 random unmeasured
rows."""

import numpy as np

from autoscout.search.sequential import Pool, Search, rival

_FIRST = 2
_EXPLORATION = 0.2
_ROUNDS, _DEPTH, _ETA = 10, 3, 0.3
_CANDIDATES = 20_000


def deepspeed(pool: Pool, rng: np.random.Generator) -> Search:
    while pool.open.any():
        if len(pool.known) < _FIRST or rng.random() < _EXPLORATION:
            yield int(rng.choice(np.flatnonzero(pool.open)))
        else:
            rows, performance = _performances(pool)
            candidates = pool.candidates(rng, _CANDIDATES)
            scores = _rank(pool.scaled(rows), performance, pool.scaled(candidates))
            yield int(candidates[np.argmax(scores)])


def _performances(pool: Pool) -> tuple[np.ndarray, np.ndarray]:
    """Returns first the measured rows; second the performance of each (higher is better, 0 for a failure)."""
    return np.array(list(pool.known)), np.array([0.0 if c is None else 1.0 / c for c in pool.known.values()])


def _rank(x: np.ndarray, performance: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Returns scores s of the rows `at` (k, d), by boosted trees with a pairwise logistic loss on (x, performance):
    log(1 + exp(sⱼ − sᵢ)) for each pair with i better than j. A leaf has the value Σg / Σh, as in XGBoost with λ = 0."""
    from sklearn.tree import DecisionTreeRegressor

    scores, predicted = np.zeros(len(x)), np.zeros(len(at))
    better = (performance[:, None] > performance[None, :]).astype(float)
    for _ in range(_ROUNDS):
        wrong = 1.0 / (1.0 + np.exp(scores[:, None] - scores[None, :]))  # P(j is ranked above i)
        gradient = (better * wrong).sum(axis=1) - (better * wrong).sum(axis=0)
        curvature = better * wrong * (1 - wrong)
        weight = np.maximum(curvature.sum(axis=1) + curvature.sum(axis=0), 1e-6)
        tree = DecisionTreeRegressor(max_depth=_DEPTH, random_state=0)
        tree.fit(x, gradient / weight, sample_weight=weight)
        scores += _ETA * tree.predict(x)
        predicted += _ETA * tree.predict(at)
    return predicted


STRATEGY = rival("deepspeed", deepspeed)
