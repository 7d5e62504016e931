"""What an analytic member gets wrong, learned from few rows: a Bayesian linear regression of log(measured / predicted).

Every effect starts at zero with a prior of a few per cent (a constant, each knob's doublings and values, products of
two knobs), so that one row already corrects the level, and where nothing was measured the physics stands. The noise
and the size of the effects are chosen by the evidence (MacKay, "Bayesian interpolation", 1992).
"""

import itertools

import numpy as np

from autoscout.simulate.encode import Seen, length
from autoscout.simulate.member import Columns, Member, Prediction

_LEVEL = 0.4  # prior standard deviations of effects on log(value): how far off the level may be,
_DOUBLING, _VALUE, _PRODUCT = 0.06, 0.05, 0.03  # and what a doubling, a value, a product of two doublings may add
_SCALES = (0.25, 0.5, 1.0, 2.0, 4.0)  # of all effects but the level
_NOISES = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32)
_CARRIES = 8.0  # doublings outside of what was seen over which half of what was learned is taken to hold
_MOST_VALUES, _MOST_PRODUCTS = 12, 8


class Residual:
    def __init__(self, base: Member) -> None:
        self.base = base
        self.name = f"{base.name} + residual"
        self.min_rows = 1
        self._seen: Seen | None = None

    def applies(self, columns: Columns) -> str:
        if self._seen is None:
            return "not fitted: it needs a measured row"
        return self.base.applies(columns)

    def why_outside(self, columns: Columns) -> str:
        return self._seen.why_outside(columns) if self._seen else ""

    def fit(self, columns: Columns, values: np.ndarray) -> None:
        self.base.fit(columns, values)
        target = np.log(values) - np.log(self.base.predict(columns).value)
        known = np.isfinite(target)
        self._seen = None
        if not known.any():
            return
        self._seen = Seen(columns)
        self._prepare(columns)
        x = self._effects(columns)[known]
        best = max(
            (
                _posterior(x, target[known], self._prior * np.where(np.arange(len(self._prior)), scale, 1.0), noise)
                for scale in _SCALES
                for noise in _NOISES
            ),
            key=lambda fitted: fitted[0],
        )
        _, self._mean, self._root, self._noise = best

    def predict(self, columns: Columns) -> Prediction:
        n = length(columns)
        if self._seen is None:
            nothing = np.full(n, np.nan)
            return Prediction(value=nothing, error=nothing)
        base = self.base.predict(columns)
        x = self._effects(columns)
        outside = np.broadcast_to(self._seen.outside(columns), n)
        fade = 2.0 ** -(outside / _CARRIES)
        variance = self._noise**2 + ((x @ self._root) ** 2).sum(1) + (_DOUBLING * outside) ** 2
        variance += (1 - fade) * base.error**2
        return Prediction(value=base.value * np.exp(fade * (x @ self._mean)), error=np.sqrt(variance))

    def _prepare(self, columns: Columns) -> None:
        """Which effects there are: the columns that varied, and their values."""
        assert self._seen is not None
        self._names = self._seen.varying
        x = self._seen.matrix(columns, self._names) if self._names else np.empty((length(columns), 0))
        self._values = [np.unique(c[np.isfinite(c)]) for c in x.T]
        self._numeric = [
            i for i, name in enumerate(self._names) if name in self._seen.ranges and len(self._values[i]) > 2
        ]
        logs = np.log2(1 + np.maximum(np.nan_to_num(x[:, self._numeric]), 0))
        self._centre = logs.mean(0)
        strong = np.argsort(-logs.std(0), kind="stable")[:_MOST_PRODUCTS]
        self._products = list(itertools.combinations(sorted(strong.tolist()), 2))
        values = sum(len(v) for v in self._values if len(v) <= _MOST_VALUES)
        self._prior = np.array(
            [_LEVEL] + [_DOUBLING] * len(self._numeric) + [_PRODUCT] * len(self._products) + [_VALUE] * values
        )

    def _effects(self, columns: Columns) -> np.ndarray:
        """(n, effects)"""
        assert self._seen is not None
        n = length(columns)
        if not self._names:
            return np.ones((n, 1))
        x = self._seen.matrix(columns, self._names)
        logs = np.log2(1 + np.maximum(np.nan_to_num(x[:, self._numeric]), 0)) - self._centre
        parts = [np.ones((n, 1)), logs]
        parts += [logs[:, [i]] * logs[:, [j]] for i, j in self._products]
        parts += [
            (x[:, [i]] == values).astype(float) for i, values in enumerate(self._values) if len(values) <= _MOST_VALUES
        ]
        return np.concatenate(parts, axis=1)


def _posterior(
    x: np.ndarray, y: np.ndarray, prior: np.ndarray, noise: float
) -> tuple[float, np.ndarray, np.ndarray, float]:
    """(log evidence, mean of the effects, a root of their covariance, noise) for y = x·w + noise, w ~ N(0, prior²)."""
    scaled = x * prior  # w = prior · v, v ~ N(0, 1)
    precision = np.eye(len(prior)) + scaled.T @ scaled / noise**2
    factor = np.linalg.cholesky(precision)
    half = np.linalg.solve(factor, scaled.T @ y / noise**2)
    evidence = -len(y) * np.log(noise) - np.log(np.diag(factor)).sum() - 0.5 * (y @ y) / noise**2 + 0.5 * (half @ half)
    root = prior[:, None] * np.linalg.inv(factor).T
    return float(evidence), root @ half, root, noise
