"""The chance that a configuration fits its devices' memory, learned from the peaks of those that ran.

    y(x) = log of the share of its memory that the fullest device fills = f(x) + ε,    P(x fits) = P(y(x) < 0)

f is a Gaussian process with main effects (posterior.py); logarithms, because what fills a memory is mostly products of
knobs. A successful run tells y. One that ran out of memory tells only y > 0: a censored row, which enters as the
Gaussian that gives y the same moments (expectation propagation; Rasmussen and Williams, section 3.6).

The limit is the device's memory less _ROOM for what the framework does not report (the context, blocks that the
allocator cannot use), or the job's own constraint on peak_memory_gib.
"""

import math

import numpy as np
from scipy.special import log_ndtr, ndtr

from autoscout.job.objective import broken, constraint
from autoscout.search.belief.encoding import Encoding, Rows
from autoscout.search.belief.posterior import Belief, Posterior, Prior
from autoscout.space.graph import Space
from kb.records import Measurement

_ROOM, _SOFT = 0.03, 0.02  # log headroom (1 GiB of 80 and 2 % of the rest), and its uncertainty
_PRIOR = Prior((0.3, 0.5), (0.6, 0.7), (0.03, 0.7), (0.02, 1.0), length=(1.0, 1.0))  # a knob halves a peak
_SWEEPS, _KEPT = 10, 0.3  # limit on expectation propagation sweeps, and their damping
_SETTLED = 0.01  # log change below which expectation propagation has converged
_HELD, _FITTED = 200, 100  # most rows kept, and most rows used to fit hyper-parameters
_STEPS = 30, 10  # step limits of the first fit and of later ones, which start from the last
_VAGUE = 1e4  # variance of an uninformative row


def fullness(space: Space, measurement: Measurement) -> float:
    """y of a measurement; inf: it ran out of memory; NaN: its memory or the limit is unknown."""
    limits = [constraint(text) for text in space.objective.constraints]
    bounds = [b for metric, compare, b in limits if (metric, compare) == ("peak_memory_gib", "<=") and b > 0]
    if measurement.status == "oom":  # without capacities: of the host, or of an engine whose share is too small
        return math.inf if space.capacities else math.nan
    if not bounds and not space.capacities:
        return math.nan
    peak = measurement.metrics.get("peak_memory_gib", math.nan)
    shares = [math.exp(_ROOM) * _of_devices(space.capacities, measurement, peak), *(peak / bound for bound in bounds)]
    known = [share for share in shares if share > 0]  # NaN is not
    return math.log(max(known)) if known else math.nan


def failed_for_memory(space: Space, measurement: Measurement, y: float) -> bool:
    """Whether it ran out of memory, or broke a constraint on it; `y`: its fullness."""
    return math.isinf(y) or (measurement.status == "ok" and "peak_memory_gib" in broken(space.objective, measurement))


def _of_devices(capacities: dict[str, float], measurement: Measurement, peak: float) -> float:
    """The share of its memory that the fullest device fills; NaN without capacities. Ranks are in the order of the
    kinds of device. If only the largest peak is known, it is attributed to the smallest device that can hold it."""
    knobs = measurement.configuration.knobs
    own = [gib for kind, gib in capacities.items() for _ in range(int(knobs.get(kind, 1)))]
    if len(own) == len(measurement.rank_memory_gib):
        return max((used / gib for used, gib in zip(measurement.rank_memory_gib, own, strict=True)), default=math.nan)
    own.sort()
    return peak / next((gib for gib in own if gib >= peak), own[-1]) if own else math.nan


class Memory:
    """n rows told, m watched."""

    def __init__(self, encoding: Encoding) -> None:
        self._posterior = Posterior(encoding, _PRIOR)
        self._rows: list[Rows] = []
        self._full: list[float] = []
        self._values, self._vague = np.zeros(0), np.zeros(0)  # (n,): y or its stand-in; variance on top of the noise
        self._belief: Belief | None = None
        self._fitted_on = 0

    @property
    def told(self) -> bool:
        """Whether a run reported its peak."""
        return any(math.isfinite(y) for y in self._full)

    def stale(self, growth: float) -> bool:
        """Whether the rows grew by this factor since the last fit."""
        return len(self._full) > 0 and len(self._full) >= growth * self._fitted_on

    def tell(self, row: Rows, y: float) -> None:
        """One row, and its fullness."""
        self._rows.append(row)
        self._full.append(y)

    def fit(self) -> None:
        """Refits the hyper-parameters, and the stand-ins for censored rows."""
        if not self._full:
            return
        if len(self._full) > _HELD * 4 // 3:
            kept = np.sort(self._nearest()[:_HELD]).tolist()
            self._rows, self._full = [self._rows[i] for i in kept], [self._full[i] for i in kept]
        steps = _STEPS[self._fitted_on > 0 or len(self._full) > _FITTED]
        rows, ran, self._fitted_on = _joined(self._rows), np.isfinite(self._full), len(self._full)
        self._settle(rows, ran)
        at = np.sort(self._nearest()[:_FITTED])
        self._posterior.fit(rows[at], self._values[at], np.zeros((len(at), 0)), np.zeros(0), self._vague[at], steps)
        self._settle(rows, ran)

    def _nearest(self) -> np.ndarray:
        """(n,) all rows, nearest to the limit first; a censored row, whose distance is unknown, counts as at it."""
        far = np.where(np.isfinite(self._full), np.abs(self._full), 0.0)
        return np.argsort(far, kind="stable")

    def _settle(self, rows: Rows, ran: np.ndarray) -> None:
        """Stand-ins for the censored rows under the present hyper-parameters (Rasmussen and Williams, algorithm 3.5,
        all sites in parallel and damped)."""
        self._measured = self._features(rows)
        k = self._posterior.kernel(self._measured, self._measured) + np.eye(len(ran)) * self._noise
        y, vague = np.where(ran, self._full, 0.0), np.where(ran, 0.0, _VAGUE)
        out, kept = ~ran, 0.0
        for _ in range(_SWEEPS if out.any() else 0):
            inverse = np.linalg.inv(k + np.diag(vague))
            left = 1 / np.diag(inverse)  # variance of each row, given all the others
            value, variance = _censored((y - left * (inverse @ y))[out], (left - vague)[out])
            precision = (1 - kept) / variance + kept / vague[out]
            before = y[out]
            y[out] = ((1 - kept) * value / variance + kept * before / vague[out]) / precision
            vague[out], kept = 1 / precision, _KEPT
            if np.abs(y[out] - before).max() < _SETTLED:
                break
        self._values, self._vague = y, vague

    def watch(self, rows: Rows) -> None:
        """Sets the rows that `chance` is about."""
        if len(self._values):
            self._values = self._values[: len(self._vague)]  # `chance` takes in again the rows told since the fit
            self._belief = Belief(self._posterior, self._measured, self._features(rows), self._vague)

    def turn(self, kept: np.ndarray, fresh: Rows) -> None:
        """Keeps the watched rows at `kept` (positions) and appends fresh ones."""
        if self._belief is not None:
            self._belief.turn(kept, self._features(fresh))

    def chance(self) -> np.ndarray | float:
        """(m,) chance that the watched rows fit; 1 while nothing is known."""
        if self._belief is None:
            return 1.0
        for row, y in list(zip(self._rows, self._full, strict=True))[len(self._values) :]:
            features, vague = self._features(row), 0.0
            if math.isinf(y):
                y, vague = map(float, _censored(*self._belief.expected(features, self._values)))
            self._belief.append(features, vague)
            self._values = np.append(self._values, y)
        deviation = np.sqrt(self._belief.deviation**2 + self._noise + _SOFT**2)
        return ndtr(-self._belief.mean(self._values) / deviation)

    @property
    def _noise(self) -> float:
        return self._posterior.theta.noise**2 + 1e-6

    def _features(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        return self._posterior.features(rows, np.zeros((len(rows), 0)), np.zeros(0))


def _censored(mean: np.ndarray | float, variance: np.ndarray | float) -> tuple[np.ndarray, np.ndarray]:
    """The pseudo-measurement and its variance that move y ~ N(mean, variance) to the moments of y given y > 0."""
    total = np.sqrt(variance + _SOFT**2)
    z = mean / total
    ratio = np.exp(-0.5 * z * z - 0.5 * math.log(2 * math.pi) - log_ndtr(z))
    curve = np.maximum(ratio * (z + ratio) / total**2, 1 / (variance + _VAGUE))
    return mean + ratio / total / curve, 1 / curve - variance


def _joined(rows: list[Rows]) -> Rows:
    return Rows(np.concatenate([r.points for r in rows]), np.concatenate([r.effects for r in rows]))
