"""Prior means of the Gaussian process: predictions of simulators and of past jobs.

A simulator's log-prediction is split into two regressors with learned slopes. The *smooth* part is a regression on main
effects and pairs of knobs over the whole pool, in which independent noise of single rows averages out. The *rough* part
is the residual; its correlation between neighbouring rows shows, before any experiment, how much of it is noise.
Several prior means, and none, are weighted by evidence (surrogate.py)."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.linalg import cho_solve

from autoscout.search.belief.bending import BEND, STRAIGHT, bent
from autoscout.search.belief.encoding import EncodedRows, Encoding
from autoscout.search.belief.feasibility import Feasibility
from autoscout.search.belief.posterior import Belief, Posterior, Prior
from autoscout.search.earlier import Past
from autoscout.search.pool import CandidatePool

Predicted = tuple[np.ndarray, np.ndarray | None]  # (`z`, `fails`) of rows of codes, as in Mean
Predictor = Callable[[np.ndarray], np.ndarray]

_ROWS = 40_000  # most configurations used to fit the smooth part of a prediction
_COORDINATES = 20  # number of coordinates whose pairs are regressors if the pool is only a sample
_PAIRS = 4_000  # pairs of neighbouring configurations used to estimate the noise in the rough part
_AT_ONCE = 20_000  # configurations encoded at once, to limit memory
_PENALTIES = 10.0 ** np.arange(-4.0, 0.6, 0.5)  # ridge penalties of the smooth part, per row
# bounds on the correlation of the rough part between neighbours: at the lower bound or below, the rough part is all
# noise; at the upper bound or above, it has no noise
_NOISE_TO_PHYSICS = (0.05, 0.15)
_LEAST = 0.001  # quantile of the predictions that serves as the best cost in `bent`
_FLAT = 1e-6  # predictions with a smaller log standard deviation count as constant
# For the hypothesis that a simulator is right: factor on the prior standard deviations of its slopes, and standard
# deviation of its residuals.
_AS_IT_IS, _NEARLY = 0.3, 0.05
_CLOSE = Prior(noise=(0.5, 1.0))  # noise in units of _NEARLY
_FAR_OUT, _ROUNDS = 1.5, 3  # threshold for clipping outliers, in standard deviations; number of clipping passes


@dataclass
class Mean:
    """One prior mean. `z`: (n, J) regressors from the predicted log-costs of the pool's rows, centred; `slopes`,
    `spread`: (J,) prior means and standard deviations of their slopes; `fails`: (n,) 1 where a failure is predicted;
    `predicted`: computes z and fails for rows of codes that are added to the pool; `foresees`: whether failures are
    predicted from their cause (by a simulator), not from failures of a past job."""

    name: str
    z: np.ndarray
    slopes: np.ndarray = field(default_factory=lambda: np.zeros(0))
    spread: np.ndarray = field(default_factory=lambda: np.zeros(0))
    fails: np.ndarray | None = None
    predicted: "Callable[[np.ndarray], Predicted] | None" = None
    foresees: bool = False
    close: bool = False  # whether this is the hypothesis that a simulator needs no correction
    bend: float = BEND  # b of bending.py for the costs to which the prior mean is fitted
    doubt: float = 0.2  # prior standard deviation of the residuals
    prior: Prior = field(default_factory=Prior)

    def grow(self, pool: CandidatePool) -> None:
        fresh = pool.codes[len(self.z) :]
        if not len(fresh):
            return
        z, fails = self.predicted(fresh) if self.predicted else (np.zeros((len(fresh), self.z.shape[1])), None)
        self.z = np.concatenate([self.z, z.astype(self.z.dtype)])
        if self.fails is not None and fails is not None:
            self.fails = np.concatenate([self.fails, fails])

    def expected(self, rows: np.ndarray) -> np.ndarray:
        return self.z[rows] @ self.slopes


def nothing(pool: CandidatePool) -> list[Mean]:
    """The hypothesis that no prediction is right, once for each scale of costs (see bending.py)."""
    return [Mean("none", np.zeros((len(pool), 0)), bend=b) for b in (BEND, STRAIGHT)]


def of_simulator(
    name: str, predictor: Predictor, pool: CandidatePool, encoding: Encoding, rng: np.random.Generator
) -> Mean:
    """A simulator as a prior mean. `predictor`: maps rows of codes to metric values (NaN: none, inf: failure)."""

    def asked(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(log-costs, 1 where a failure is predicted)."""
        predicted = np.asarray(predictor(codes), dtype=float)
        with np.errstate(divide="ignore", invalid="ignore"):
            log = np.log(predicted) if pool.space.objective.minimize else -np.log(predicted)
        return log, np.isposinf(predicted).astype(np.float32)

    log, fails = asked(pool.codes)
    known = np.isfinite(log)
    kept = fails if fails.any() or not pool.complete else None

    def only_fails(codes: np.ndarray) -> Predicted:
        return np.zeros((len(codes), 0)), asked(codes)[1]

    silent = Mean(name, np.zeros((len(pool), 0)), fails=kept, predicted=only_fails, foresees=True)
    if known.sum() < 2 or log[known].std() < _FLAT:
        return silent
    smooth_of = _smooth(log, known, pool, encoding, rng)
    smooth = smooth_of(pool.codes)
    noise, physics = _NOISE_TO_PHYSICS
    alike = _alikeness(np.where(known, log - smooth, 0.0), known, pool.codes, rng)
    alike = float(np.clip((alike - noise) / (physics - noise), 0.0, 1.0))
    least = float(np.quantile((smooth + alike * np.where(known, log - smooth, 0.0))[known], _LEAST))

    def split(log: np.ndarray, smooth: np.ndarray) -> np.ndarray:
        """(n, 2) the part without noise, bent like costs, and the part that looks like noise."""
        rough = np.where(np.isfinite(log), log - smooth, 0.0)
        return np.stack([bent(smooth + alike * rough - least), (1 - alike) * rough], axis=1).astype(np.float32)

    z = split(log, smooth)
    centre = z[known].mean(axis=0)

    def of_codes(codes: np.ndarray) -> Predicted:
        log, fails = asked(codes)
        return split(log, smooth_of(codes)) - centre, fails

    return Mean(name, z - centre, np.array([1.0, 0.0]), np.array([0.3, 0.5]), kept, of_codes, foresees=True)


def hypotheses(mean: Mean) -> list[Mean]:
    """Two hypotheses about a simulator, to be weighted by evidence (surrogate.py): its predictions are right after a
    correction per knob, or they are right without correction, except for small unexplained residuals."""
    if not mean.z.shape[1]:
        return [mean] if mean.fails is not None else []
    near = replace(mean, name=f"{mean.name} as it is", fails=None, spread=_AS_IT_IS * mean.spread, doubt=_NEARLY)
    return [mean, replace(near, prior=_CLOSE, close=True)]


def of_past(past: Past, pool: CandidatePool, encoding: Encoding) -> Mean:
    """A past job as a prior mean: the posterior of its measurements, applied to this pool's configurations. Rows that
    broke a constraint contribute their cost, but count as failures."""
    rows = [*past.rows, *past.broken]
    codes = np.stack([pool.encode(c) for c, _ in rows])
    costs = np.array([np.nan if c is None else c for _, c in rows], dtype=float)
    ran = np.isfinite(costs)
    kept = ran & (np.arange(len(rows)) < len(past.rows))
    mean = Mean(f"past {past.name}", np.zeros((len(pool), 0)))
    costs_of: Callable[[EncodedRows], np.ndarray] | None = None
    fails_of: Callable[[EncodedRows], np.ndarray] | None = None
    level = 0.0
    if ran.sum() >= 3:
        y = np.log(costs[ran])
        centre, unit = y.mean(), max(float(y.std()), 0.05)
        posterior = Posterior(encoding, Prior())
        nothing_else, none = np.zeros((int(ran.sum()), 0)), np.zeros(0)
        posterior.fit(encoding.rows(codes[ran]), (y - centre) / unit, nothing_else, none)
        measured = posterior.features(encoding.rows(codes[ran]), nothing_else, none)

        def moved(part: EncodedRows) -> np.ndarray:
            belief = Belief(posterior, measured, posterior.features(part, np.zeros((len(part), 0)), none))
            return unit * belief.mean((y - centre) / unit)

        costs_of = moved
        mean.z = _in_parts(moved, pool.codes, encoding)[:, None]
        level = float(mean.z.mean())
        mean.z -= level
        mean.slopes, mean.spread = np.array([1.0]), np.array([0.5])
    if not kept.all():
        feasibility = Feasibility(encoding)
        feasibility.tell(feasibility.features(encoding.rows(codes)), kept)
        feasibility.fit()

        def failing(part: EncodedRows) -> np.ndarray:
            feasibility.watch(feasibility.features(part))
            return 1 - feasibility.chance(np.ones(len(part)))

        fails_of = failing
        mean.fails = _in_parts(failing, pool.codes, encoding)

    def of_codes(codes: np.ndarray) -> Predicted:
        z = np.zeros((len(codes), 0)) if costs_of is None else _in_parts(costs_of, codes, encoding)[:, None] - level
        return z, None if fails_of is None else _in_parts(fails_of, codes, encoding)

    mean.predicted = of_codes
    return mean


def _in_parts(of: Callable[[EncodedRows], np.ndarray], codes: np.ndarray, encoding: Encoding) -> np.ndarray:
    """(n,) float32: `of` applied to the encoded rows, block by block."""
    found = np.empty(len(codes), dtype=np.float32)
    for at in range(0, len(codes), _AT_ONCE):
        found[at : at + _AT_ONCE] = of(encoding.rows(codes[at : at + _AT_ONCE]))
    return found


def _smooth(
    log: np.ndarray, known: np.ndarray, pool: CandidatePool, encoding: Encoding, rng: np.random.Generator
) -> Callable[[np.ndarray], np.ndarray]:
    """A function from rows of codes to the smooth part of the log-prediction (n,): a ridge regression on main effects
    and pairs of coordinates. The penalty maximizes the evidence (MacKay, "Bayesian interpolation", 1992), because
    hundreds of regressors also fit noise, and a search would try its lowest values first. Outliers are clipped (Huber's
    pseudo-values)."""
    rows = np.flatnonzero(known)
    rows = np.sort(rng.choice(rows, _ROWS, replace=False)) if len(rows) > _ROWS else rows
    y = log[rows]
    columns = np.arange(len(encoding.point_axis))
    # A sample has hardly more rows than pairs, so only pairs of the most relevant coordinates are used.
    if not pool.complete:
        columns = _telling(encoding.rows(pool.codes[rows]).points, y)
    regressors = _pairs(pool.codes[rows], encoding, columns)
    ridge = _Ridge(regressors)
    weights = ridge.fit(y)
    for _ in range(_ROUNDS):
        fitted = regressors @ weights
        off = y - fitted
        most = _FAR_OUT * 1.4826 * float(np.median(np.abs(off)))  # 1.4826 = σ / median |x| of a normal
        weights = ridge.fit(fitted + np.clip(off, -most, most))

    def fitted_on(codes: np.ndarray) -> np.ndarray:
        starts = range(0, len(codes), _AT_ONCE)
        return np.concatenate([_pairs(codes[at : at + _AT_ONCE], encoding, columns) @ weights for at in starts])

    return fitted_on


def _telling(points: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Indices of the coordinates most correlated with y."""
    centred = points - points.mean(axis=0)
    spread = np.sqrt((centred**2).sum(axis=0)) + 1e-9
    return np.sort(np.argsort(-np.abs(centred.T @ (y - y.mean())) / spread, kind="stable")[:_COORDINATES])


class _Ridge:
    """Ridge regression with the penalties _PENALTIES, factorized once for several targets y."""

    def __init__(self, x: np.ndarray) -> None:
        self.x, self.n = x, len(x)
        gram = (x.T @ x).astype(float)
        self._factors = []
        for penalty in _PENALTIES:
            gram.flat[:: len(gram) + 1] += penalty * self.n
            low = np.linalg.cholesky(gram)
            gram.flat[:: len(gram) + 1] -= penalty * self.n
            # log determinant of XᵀX / (penalty · n) + identity, for the evidence
            volume = 2 * np.log(np.diag(low)).sum() - len(low) * np.log(penalty * self.n)
            self._factors.append((low, volume))

    def fit(self, y: np.ndarray) -> np.ndarray:
        """(regressors,) weights, float32, with the penalty that maximizes the evidence of `y` (n,)."""
        along, square = (self.x.T @ y.astype(np.float32)).astype(float), float(y @ y)
        found = []
        for low, volume in self._factors:
            weights = cho_solve((low, True), along)
            left = max(square - float(along @ weights), 1e-9 * square) / self.n
            found.append((-0.5 * (self.n * np.log(max(left, np.finfo(float).tiny)) + volume), weights))
        return max(found, key=lambda each: each[0])[1].astype(np.float32)


def _pairs(codes: np.ndarray, encoding: Encoding, columns: np.ndarray) -> np.ndarray:
    rows = encoding.rows(codes)
    points = rows.points[:, columns]
    i, j = np.triu_indices(points.shape[1])
    return np.concatenate([np.ones((len(codes), 1), np.float32), rows.effects, points[:, i] * points[:, j]], 1)


def _alikeness(rough: np.ndarray, known: np.ndarray, codes: np.ndarray, rng: np.random.Generator) -> float:
    """The correlation of the rough part between neighbours (rows that differ in at most two knobs), clipped to 0 … 1;
    near 0 it is noise. Neighbours are adjacent rows in a random lexicographic order."""
    most = 2 * 1.4826 * float(np.median(np.abs(rough[known])))  # clips outliers
    rough = np.clip(rough, -most, most)
    order = np.lexsort(codes.T[rng.permutation(codes.shape[1])])
    order = order[known[order]]
    left, right = order[:-1], order[1:]
    close = (codes[left] != codes[right]).sum(axis=1) <= 2
    left, right = (
        left[close][:: max(1, int(close.sum()) // _PAIRS)],
        right[close][:: max(1, int(close.sum()) // _PAIRS)],
    )
    spread = float(np.mean(rough[left] ** 2) + np.mean(rough[right] ** 2)) / 2 if len(left) else 0.0
    return float(np.clip(np.mean(rough[left] * rough[right]) / spread, 0.0, 1.0)) if spread > 0 else 1.0
