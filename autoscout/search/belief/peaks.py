"""The probability that a configuration fits into its devices' memory, learned from the reported peaks of runs.

    y(x) = log(peak / limit) on the fullest device ("fullness") = m(x) + f(x) + ε,    P(x fits) = P(y(x) < 0)

m is the simulators' prediction (0 without one), and f a Gaussian process with main effects (posterior.py). Logarithms
are used because memory use is mostly a product of knobs. A run out of memory shows only that y > 0. Such a censored row
is replaced by a Gaussian pseudo-measurement that gives y the same moments as the condition y > 0 (expectation
propagation; Rasmussen and Williams, section 3.6).

The limit is the device's memory minus _ROOM for memory that the framework does not report (driver context, blocks that
the allocator cannot use), or the job's constraint on peak_memory_gib."""

import math
from dataclasses import dataclass, field

import numpy as np
from scipy.special import log_ndtr, ndtr

from autoscout.job.objective import broken, memory_bounds
from autoscout.search.belief.encoding import EncodedRows, Encoding, numbered
from autoscout.search.belief.posterior import Belief, Posterior, Prior
from autoscout.space.graph import Space
from kb.records import Measurement

# _ROOM: log headroom below the device's memory (1 GiB of 80, plus 2 %). _SOFT: standard deviation of this headroom.
_ROOM, _SOFT = 0.03, 0.02
# Wide priors, because one knob may halve a peak.
_PRIOR = Prior((0.3, 0.5), (0.6, 0.7), (0.03, 0.7), (0.02, 1.0), length=(1.0, 1.0))
# The prior if simulators predict the peak, so that f is only their error.
_BESIDE = Prior((0.03, 1.0), (0.06, 1.0), (0.01, 0.7), (0.02, 1.0), length=(1.0, 1.0))
_SWEEPS, _KEPT = 10, 0.3  # limit on sweeps of expectation propagation, and damping factor
_SETTLED = 0.01  # change of y at which expectation propagation has converged
_HELD, _FITTED = 200, 100  # limits on results kept, and on results used to fit hyper-parameters
_STEPS = 30, 10  # limits on the steps of the first fit, and of later ones, which start from the last result
_VAGUE = 1e4  # variance that makes a pseudo-measurement uninformative
# Forecasts of rows that ran out of memory are raised to at least −_NEAR in `least_over`, because a forecast that far
# below the limit was an error.
_NEAR = 0.36
# cap on the probability that a row that ran out of memory before would fit (the Gaussian posterior gives 0.4)
_AGAIN = 1e-3


def fullness(space: Space, measurement: Measurement) -> float:
    """Log fullness y of a measurement; inf if it ran out of memory; NaN if its memory or the limit is unknown."""
    bounds = memory_bounds(space.objective)
    # Without device capacities, "oom" means that the host's memory or an engine's share was too small.
    if measurement.status == "oom":
        return math.inf if space.capacities else math.nan
    if not bounds and not space.capacities:
        return math.nan
    peak = measurement.metrics.get("peak_memory_gib", math.nan)
    shares = [math.exp(_ROOM) * _of_devices(space.capacities, measurement, peak), *(peak / bound for bound in bounds)]
    known = [share for share in shares if share > 0]  # excludes NaN
    return math.log(max(known)) if known else math.nan


def failed_for_memory(space: Space, measurement: Measurement, y: float) -> bool:
    """Whether a run with fullness `y` ran out of memory or broke a constraint on memory."""
    return math.isinf(y) or (measurement.status == "ok" and "peak_memory_gib" in broken(space.objective, measurement))


def _of_devices(capacities: dict[str, float], measurement: Measurement, peak: float) -> float:
    """The largest share of its memory that a device uses; NaN without capacities. Ranks are assigned to the kinds of
    device in order. If only the largest peak is known, it is attributed to the smallest device that can hold it."""
    knobs = measurement.configuration.knobs
    own = [gib for kind, gib in capacities.items() for _ in range(int(knobs.get(kind, 1)))]
    if len(own) == len(measurement.rank_memory_gib):
        return max((used / gib for used, gib in zip(measurement.rank_memory_gib, own, strict=True)), default=math.nan)
    own.sort()
    return peak / next((gib for gib in own if gib >= peak), own[-1]) if own else math.nan


@dataclass
class _Way:
    """One of two models: with the simulators' predictions as the mean m (`heeds` = 1), or with m = 0 (`heeds` = 0)."""

    posterior: Posterior
    heeds: float
    features: tuple[np.ndarray, np.ndarray] | None = None
    # (n,) y − m, with pseudo-measurements for censored rows
    values: np.ndarray = field(default_factory=lambda: np.zeros(0))
    vague: np.ndarray = field(default_factory=lambda: np.zeros(0))  # (n,) additional noise variance of each row
    score: float = 0.0  # leave-one-out log probability of the rows

    @property
    def noise(self) -> float:
        return self.posterior.theta.noise**2 + 1e-6


class PeakBelief:
    """The model of fullness, or of another y = log(value / bound). n rows have results; m are watched, see `watch`."""

    def __init__(self, encoding: Encoding, foreseen: bool = False) -> None:
        """`foreseen`: whether simulators predict y. The measurements then decide whether these predictions become the
        mean m."""
        ways = ((_PRIOR, 0.0), (_BESIDE, 1.0)) if foreseen else ((_PRIOR, 0.0),)
        self._ways = [_Way(Posterior(encoding, prior), heeds) for prior, heeds in ways]
        self._way = self._ways[-1]
        self._rows: list[EncodedRows] = []
        self._full: list[float] = []
        self._foreseen: list[float] = []  # the simulators' prediction of y for each row with a result
        self._at = np.zeros(0)  # (m,): the simulators' prediction of y for the watched rows
        self._watched = np.zeros(0)  # (m,): hashes of the watched rows
        self._values = np.zeros(0)  # y − m of the rows that `_belief` contains
        self._belief: Belief | None = None
        self._fitted_on = 0

    @property
    def reported(self) -> bool:
        return any(math.isfinite(y) for y in self._full)

    @property
    def heeds(self) -> bool:
        """Whether the simulators' predictions are used as the mean. They are once a run has reported its peak, if they
        explain the measurements better than m = 0."""
        return self.reported and self._way.heeds > 0

    @property
    def least_over(self) -> float:
        """The smallest predicted y of a row that ran out of memory, but at least −_NEAR, because a lower prediction was
        an error of the simulator; inf if no row ran out of memory."""
        over = [max(m, -_NEAR) for y, m in zip(self._full, self._foreseen, strict=True) if math.isinf(y)]
        return min(over, default=math.inf)

    def stale(self, growth: float) -> bool:
        """Whether the number of rows grew by this factor since the last fit."""
        return len(self._full) > 0 and len(self._full) >= growth * self._fitted_on

    def tell(self, row: EncodedRows, y: float, foreseen: float = 0.0) -> None:
        """Adds the result of one row, `y`, with its prediction by simulators."""
        self._rows.append(row)
        self._full.append(y)
        self._foreseen.append(foreseen)

    def fit(self) -> None:
        """Refits the hyper-parameters and the pseudo-measurements of censored rows."""
        if not self._full:
            return
        if len(self._full) > _HELD * 4 // 3:
            kept = np.sort(self._nearest()[:_HELD]).tolist()
            self._rows, self._full = [self._rows[i] for i in kept], [self._full[i] for i in kept]
            self._foreseen = [self._foreseen[i] for i in kept]
        steps = _STEPS[self._fitted_on > 0 or len(self._full) > _FITTED]
        rows, self._fitted_on = _joined(self._rows), len(self._full)
        at = np.sort(self._nearest()[:_FITTED])
        for way in self._ways:
            self._settle(way, rows)
            values, none = way.values[at], np.zeros(0)
            way.posterior.fit(rows[at], values, np.zeros((len(at), 0)), none, way.vague[at], steps)
            self._settle(way, rows)
        self._way = max(self._ways, key=lambda way: way.score)
        self._values = self._way.values

    def _nearest(self) -> np.ndarray:
        """(n,) positions of all rows, nearest to the limit first; censored rows count as at the limit."""
        far = np.where(np.isfinite(self._full), np.abs(self._full), 0.0)
        return np.argsort(far, kind="stable")

    def _settle(self, way: _Way, rows: EncodedRows) -> None:
        """Computes the pseudo-measurements of censored rows for the current hyper-parameters (Rasmussen and Williams,
        algorithm 3.5, with parallel, damped updates)."""
        out, foreseen = np.isinf(self._full), way.heeds * np.array(self._foreseen)
        way.features = _features(way.posterior, rows)
        k = way.posterior.kernel(way.features, way.features) + np.eye(len(out)) * way.noise
        y, vague = np.where(out, 0.0, self._full - foreseen), np.where(out, _VAGUE, 0.0)
        kept = 0.0
        for _ in range(_SWEEPS if out.any() else 0):
            mean, left = _without(k, y, vague)
            value, variance = _censored((foreseen + mean)[out], left[out])
            precision = (1 - kept) / variance + kept / vague[out]
            before = y[out]
            y[out] = ((1 - kept) * (value - foreseen[out]) / variance + kept * before / vague[out]) / precision
            vague[out], kept = 1 / precision, _KEPT
            if np.abs(y[out] - before).max() < _SETTLED:
                break
        mean, left = _without(k, y, vague)
        apart = np.where(out, 0.0, (y - mean) ** 2 / left + np.log(2 * math.pi * left))
        over = log_ndtr((foreseen + mean)[out] / np.sqrt(left[out] + _SOFT**2))
        way.values, way.vague, way.score = y, vague, float(over.sum() - 0.5 * apart.sum())

    def watch(self, rows: EncodedRows, foreseen: np.ndarray | float = 0.0) -> None:
        """Sets the m watched rows, whose probabilities `chance` computes. `foreseen`: (m,) simulated y."""
        self._at, self._watched = np.broadcast_to(foreseen, len(rows)), _numbered(rows)
        way = self._way
        if way.features is not None:
            self._values = way.values  # `chance` appends later rows again
            self._belief = Belief(way.posterior, way.features, _features(way.posterior, rows), way.vague)

    def turn(self, kept: np.ndarray, fresh: EncodedRows, foreseen: np.ndarray | float = 0.0) -> None:
        """Replaces the watched rows by those at the positions `kept`, followed by the `fresh` ones."""
        self._at = np.concatenate([self._at[kept], np.broadcast_to(foreseen, len(fresh))])
        self._watched = np.concatenate([self._watched[kept], _numbered(fresh)])
        if self._belief is not None:
            self._belief.turn(kept, _features(self._way.posterior, fresh))

    def chance(self) -> np.ndarray | float:
        """(m,) probability that each watched row fits; 1 without data."""
        if self._belief is None:
            return 1.0
        way = self._way
        for row, y, m in list(zip(self._rows, self._full, self._foreseen, strict=True))[len(self._values) :]:
            features, vague, foreseen = _features(way.posterior, row), 0.0, way.heeds * m
            if math.isinf(y):
                mean, variance = self._belief.expected(features, self._values)
                y, vague = map(float, _censored(mean + foreseen, variance))
            self._belief.append(features, vague)
            self._values = np.append(self._values, y - foreseen)
        deviation = np.sqrt(self._belief.deviation**2 + way.noise + _SOFT**2)
        found = ndtr(-(way.heeds * self._at + self._belief.mean(self._values)) / deviation)
        died, rows = np.isinf(self._full), _numbered(_joined(self._rows))
        again = np.isin(self._watched, np.setdiff1d(rows[died], rows[~died]))
        return np.where(again, np.minimum(found, _AGAIN), found)


def _numbered(rows: EncodedRows) -> np.ndarray:
    return numbered(np.concatenate([rows.points, rows.effects], axis=1))


def _without(k: np.ndarray, y: np.ndarray, vague: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """((n,) mean, (n,) variance) of f at each row, predicted from all other rows."""
    inverse = np.linalg.inv(k + np.diag(vague))
    left = 1 / np.diag(inverse)
    return y - left * (inverse @ y), np.maximum(left - vague, 0.0)  # rounding may give a negative difference


def _features(posterior: Posterior, rows: EncodedRows) -> tuple[np.ndarray, np.ndarray]:
    return posterior.features(rows, np.zeros((len(rows), 0)), np.zeros(0))


def _censored(mean: np.ndarray | float, variance: np.ndarray | float) -> tuple[np.ndarray, np.ndarray]:
    """(pseudo-measurement, its variance) that gives the posterior of y ~ N(mean, variance) the moments of y | y > 0."""
    total = np.sqrt(variance + _SOFT**2)
    z = mean / total
    ratio = np.exp(-0.5 * z * z - 0.5 * math.log(2 * math.pi) - log_ndtr(z))
    curve = np.maximum(ratio * (z + ratio) / total**2, 1 / (variance + _VAGUE))
    return mean + ratio / total / curve, 1 / curve - variance


def _joined(rows: list[EncodedRows]) -> EncodedRows:
    return EncodedRows(np.concatenate([r.points for r in rows]), np.concatenate([r.effects for r in rows]))
