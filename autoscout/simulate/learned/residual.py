"""Corrects a base simulator from few measurements: a Bayesian linear regression of log(measured / predicted).

The regressors (effects) are a constant; an offset per job and per pair of framework and device, so that layouts are
compared within a job; log2 of each numeric column; an indicator of each value of a column; and products of two log2
columns. All coefficients have a prior with mean zero and a standard deviation proportional to the error that the base
states. So a single row already corrects the constant, and without measurements the base's prediction is unchanged. Two
factors, on all prior standard deviations and on the noise, are chosen to maximize the evidence (MacKay, "Bayesian
interpolation", 1992), less a penalty that keeps them near 1 while there are few rows."""

import itertools
from typing import NamedTuple

import numpy as np

from autoscout.simulate.encode import FittedColumns, job_of, length, software_of
from autoscout.simulate.member import Columns, Member, Prediction

# Prior standard deviations of the constant, log2 columns, indicators, products and noise, in units of the log error
# that the base states. Assumed, not fitted.
_LEVEL, _DOUBLING, _VALUE, _PRODUCT, _NOISE = 0.7, 0.3, 0.3, 0.15, 0.5
_JOB, _SOFTWARE = 0.2, 0.4  # prior standard deviations of the offset of a job, and of a framework on a device
_OUTLIER = 5.0  # log errors of the base are clipped at their median ± this multiple of the median absolute deviation
_SCALES = (0.25, 0.5, 1.0, 2.0, 4.0)  # candidate factors on the prior standard deviations of coefficients and of noise
_UNUSUAL = 0.5  # penalty on (log factor)²: the gain in log evidence that justifies a factor of e or 1/e
_CARRIES = 8.0  # number of doublings beyond the fitted range after which a correction is halved
# Limits on indicators per column, multiplied columns, and offsets, because a fit's time is cubic in the regressors.
_MOST_VALUES, _MOST_PRODUCTS, _MOST_LEVELS = 12, 8, 200


class _Posterior(NamedTuple):
    mean: np.ndarray  # (effects,)
    root: np.ndarray  # (effects, effects): root·rootᵀ is the covariance of the coefficients
    noise: float


class Residual:
    def __init__(self, base: Member) -> None:
        self.base = base
        self.name = f"{base.name} + residual"
        self.min_rows = 1
        self._seen: FittedColumns | None = None

    def applies(self, columns: Columns) -> str:
        if self._seen is None:
            return "not fitted: this model needs at least one measured row"
        return self.base.applies(columns)

    def why_outside(self, columns: Columns) -> str:
        return self._seen.why_outside(columns) if self._seen else ""

    def fit(self, columns: Columns, values: np.ndarray) -> None:
        self._seen = None
        self.base.fit(columns, values)
        said = self.base.predict(columns)
        with np.errstate(divide="ignore", invalid="ignore"):  # a rate of 0 means out of memory
            target = np.log(values) - np.log(said.value)
        known = np.isfinite(target)
        if not known.any():
            return
        self._seen = FittedColumns(columns)
        self._claimed = float(np.median(said.error[known]))
        self._prepare(columns)
        x, y = self._effects(columns)[known], _held(target[known]) / self._claimed
        self._posterior = _posterior(x, y, self._prior)

    def predict(self, columns: Columns) -> Prediction:
        n = length(columns)
        if self._seen is None:
            return Prediction(value=np.full(n, np.nan), error=np.full(n, np.nan))
        said = self.base.predict(columns)
        x = self._effects(columns)
        outside = np.broadcast_to(self._seen.outside(columns), n)
        kept = 2.0 ** -(outside / _CARRIES)
        unsure = np.square(x @ self._posterior.root.astype(np.float32)).sum(1)
        known = self._posterior.noise**2 + unsure + (_DOUBLING * outside) ** 2
        learned = self._claimed * kept * (x @ self._posterior.mean.astype(np.float32))
        return Prediction(
            value=said.value * np.exp(learned),
            error=np.sqrt(self._claimed**2 * known + (1 - kept) * said.error**2),
        )

    def _prepare(self, columns: Columns) -> None:
        """Chooses the regressors, given the columns that varied and their values."""
        assert self._seen is not None
        self._names = self._seen.varying
        x = self._table(columns)
        self._values = [np.unique(c[np.isfinite(c)]) for c in x.T]
        self._numeric = [
            i for i, name in enumerate(self._names) if name in self._seen.ranges and len(self._values[i]) > 2
        ]
        logs = _doublings(x[:, self._numeric])
        self._centre = logs.mean(0)
        strong = np.argsort(-logs.std(0), kind="stable")[:_MOST_PRODUCTS]
        self._products = list(itertools.combinations(sorted(strong.tolist()), 2))
        values = sum(len(v) for v in self._values if len(v) <= _MOST_VALUES)
        sizes = {_LEVEL: 1, _DOUBLING: len(self._numeric), _PRODUCT: len(self._products)}
        self._levels = [(np.unique(of(columns)), of, size) for of, size in ((job_of, _JOB), (software_of, _SOFTWARE))]
        self._levels = [level for level in self._levels if 1 < len(level[0]) <= _MOST_LEVELS]
        sizes_of = [np.full(n, size) for size, n in sizes.items()] + [np.full(values, _VALUE)]
        self._prior = np.concatenate([*sizes_of, *(np.full(len(names), size) for names, _, size in self._levels)])

    def _effects(self, columns: Columns) -> np.ndarray:
        """The regressors (n, effects), in single precision to save memory, because spaces are large."""
        x = self._table(columns)
        logs = (_doublings(x[:, self._numeric]) - self._centre).astype(np.float32)
        parts = [np.ones((len(x), 1), np.float32), logs]
        parts += [logs[:, [i]] * logs[:, [j]] for i, j in self._products]
        parts += [
            (x[:, [i]] == values).astype(np.float32)
            for i, values in enumerate(self._values)
            if len(values) <= _MOST_VALUES
        ]
        for names, of, _ in self._levels:
            parts.append((np.broadcast_to(of(columns), len(x))[:, None] == names).astype(np.float32))
        return np.concatenate(parts, axis=1)

    def _table(self, columns: Columns) -> np.ndarray:
        assert self._seen is not None
        return self._seen.matrix(columns, self._names) if self._names else np.empty((length(columns), 0))


def _held(target: np.ndarray) -> np.ndarray:
    centre = np.median(target)
    most = _OUTLIER * np.median(np.abs(target - centre)) + 1e-3
    return np.clip(target, centre - most, centre + most)


def _doublings(x: np.ndarray) -> np.ndarray:
    return np.log2(1 + np.maximum(np.nan_to_num(x), 0))


def _posterior(x: np.ndarray, y: np.ndarray, prior: np.ndarray) -> _Posterior:
    """The posterior of w in y = x·w + noise, with w ~ N(0, (scale·prior)²) and noise ~ N(0, (noisier·_NOISE)²), for the
    factors `scale` and `noisier` of _SCALES with the largest evidence."""
    scaled = (x * prior).astype(float)
    powers, directions = np.linalg.eigh(scaled.T @ scaled)
    along = directions.T @ (scaled.T @ y)
    best = (-np.inf, 1.0, 1.0)
    for scale, noisier in itertools.product(_SCALES, _SCALES):
        noise = noisier * _NOISE
        precision = scale**-2 + np.maximum(powers, 0) / noise**2
        explained = (along**2 / precision).sum() / noise**4
        evidence = 0.5 * (explained - (y @ y) / noise**2 - np.log(scale**2 * precision).sum()) - len(y) * np.log(noise)
        unusual = _UNUSUAL * (np.log(scale) ** 2 + np.log(noisier) ** 2)
        best = max(best, (float(evidence) - unusual, scale, noise))
    _, scale, noise = best
    precision = scale**-2 + np.maximum(powers, 0) / noise**2
    root = prior[:, None] * directions / np.sqrt(precision)
    return _Posterior(prior * (directions @ (along / precision)) / noise**2, root, noise)
