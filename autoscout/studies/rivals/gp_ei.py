"""gp-ei: Bayesian optimization with a Gaussian process and expected improvement like CherryPick's, but well tuned.

Differences from cherrypick.py: log cost; numbers by their logarithm, names one-hot, and a feature for whether a knob is
active; a length scale per feature, with priors (gaussian_map.py); failures are excluded from the regression, and a
logistic regression predicts the probability of running, by which the improvement is multiplied; improvement over the
lowest expected cost, not over the lowest (lucky) measured one. When the hyper-parameters are refitted, the whole pool
(at most 100,000 rows) is ranked, and the best 4,000 are the candidates until the next refit."""

import warnings

import numpy as np

from autoscout.search.sequential import Pool, Search, rival
from autoscout.space.codes import INACTIVE
from autoscout.studies.rivals.gaussian import expected_improvement
from autoscout.studies.rivals.gaussian_map import MapGP

_FIRST = 6
_RANKED = 100_000
_CANDIDATES = 4000
_AT_ONCE = 8000


def gp_pool(pool: Pool, rng: np.random.Generator) -> Search:
    table, model = features(pool), MapGP()
    ran: dict[int, float] = {r: c for r, c in pool.known.items() if c is not None}
    candidates = np.array([], dtype=int)
    while True:
        if len(pool.known) < _FIRST or len(ran) < 2:
            row = int(rng.choice(np.flatnonzero(pool.open)))
        else:
            rows = np.array(list(ran))
            refitted = model.fit(table[rows], np.log(list(ran.values())))
            least = float(model.predict(table[rows])[0].min())
            candidates = candidates[pool.open[candidates]]
            if refitted or not len(candidates):
                everything = pool.candidates(rng, _RANKED)
                candidates = everything[_order(pool, table, model, least, everything)[:_CANDIDATES]]
            row = int(candidates[_order(pool, table, model, least, candidates)[0]])
        cost = yield row
        if cost is not None:
            ran[row] = cost


def _order(pool: Pool, table: np.ndarray, model: MapGP, least: float, rows: np.ndarray) -> np.ndarray:
    """Returns the positions in `rows`, by decreasing acquisition value."""
    blocks = [model.predict(table[rows[start : start + _AT_ONCE]]) for start in range(0, len(rows), _AT_ONCE)]
    mean, sd = (np.concatenate(part) for part in zip(*blocks, strict=True))
    promise = expected_improvement(mean, sd, least) * _runs(pool, table, rows)
    return np.lexsort(((least - mean) / sd, promise))[::-1]


def _runs(pool: Pool, table: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Returns the probability that each of the rows `at` runs; 1 if no measured row failed."""
    from sklearn.linear_model import LogisticRegression

    rows = np.array(list(pool.known))
    ok = np.array([cost is not None for cost in pool.known.values()])
    if ok.all():
        return np.ones(len(at))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # hides warnings about lack of convergence
        return LogisticRegression(C=10.0, max_iter=200).fit(table[rows], ok).predict_proba(table[at])[:, 1]


def features(pool: Pool) -> np.ndarray:
    """Returns the features of all rows, (n, features), scaled to [0, 1], without constant columns."""
    columns = []
    for j, knob in enumerate(pool.space.knobs):
        codes = pool.codes[:, j]
        numbers = [float(v) for v in knob.values if isinstance(v, int | float) and not isinstance(v, bool)]
        if len(numbers) == len(knob.values):
            values = np.log2(numbers) if min(numbers) > 0 else np.array(numbers)
            scaled = (values - values.min()) / max(float(np.ptp(values)), 1e-12)
            columns.append(np.append(scaled, 0.0)[codes])  # last entry: inactive
        else:
            columns += [(codes == code).astype(float) for code in range(len(knob.values))]
        columns.append((codes == INACTIVE).astype(float))
    acting = [c for c in columns if np.ptp(c) > 0]
    return np.column_stack(acting) if acting else np.zeros((len(pool), 1))


STRATEGY = rival("gp-ei", gp_pool)
