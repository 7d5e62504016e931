"""A few measured rows of a job correct the analytic model.

The logarithm of measured / predicted is a Gaussian process over the job's rows, with the covariance

    LEVEL²                      the whole job is slower or faster than predicted
  + EACH² Σₖ sₖ sₖ'             so is one part; sₖ is its share of a row's time (a ridge on the parts' log factors)
  + LOCAL² exp(−d² / 2)         rows with like layouts err alike, for reasons that no part knows
  + NOISE²                      of one measurement,

each a share of the error claimed without measured rows. A row that stands far out is believed less (Huber), so that one
odd measurement does not move all others. The posterior is the correction, its spread the new error.
"""

import numpy as np

from autoscout.simulate.member import Prediction

Array = np.ndarray
Parts = dict[str, Array]
LEVEL, EACH, LOCAL = 0.4, 0.4, 1.0
NOISE = 0.02
MOST = 256  # rows, evenly spaced ones of more: the time for a space of 100,000 configurations grows with their square
_BLOCK = 1 << 13  # rows corrected at a time, in single precision
_OUTLIER = 2.0  # standard deviations of the job's residuals


class Correction:
    def __init__(self, parts: Parts, layouts: Array, error: Array, values: Array) -> None:
        """`layouts`: (n, knobs), logarithms to base 2 of what makes rows alike. Rows without a value are left out."""
        total = np.sum(list(parts.values()), axis=0)
        usable = np.flatnonzero(np.isfinite(values) & (values > 0) & np.isfinite(total))
        usable = usable[:: -(-len(usable) // MOST) or 1]
        self.claimed = float(np.median(error[usable])) if len(usable) else 0.0
        self.names = list(parts)
        self.shares = self._shares(parts)[:, usable]
        self.layouts = layouts[usable]
        residual = np.log(values[usable] / total[usable])
        spread = np.full(len(residual), NOISE)
        for _ in range(5):
            covariance = self._covariance(self.shares, self.layouts) + np.diag(spread**2)
            self.inverse = np.linalg.inv(covariance)
            self.weights = self.inverse @ residual
            far = np.abs(residual - np.median(residual)) / (_OUTLIER * self.claimed)
            spread = NOISE * np.maximum(far, 1) + 0.5 * self.claimed * (far > 1)

    def apply(self, parts: Parts, layouts: Array, error: Array) -> Prediction:
        shares = self._shares(parts).astype(np.float32)
        before = (LEVEL**2 + LOCAL**2) * self.claimed**2 + EACH**2 * self.claimed**2 * (shares**2).sum(axis=0)
        shift, explained = np.empty(len(before)), np.empty(len(before))
        known = self.shares.astype(np.float32), self.layouts.astype(np.float32)
        weights, root = self.weights.astype(np.float32), np.linalg.cholesky(self.inverse).astype(np.float32)
        for start in range(0, len(before), _BLOCK):
            some = slice(start, start + _BLOCK)
            cross = self._covariance(shares[:, some], layouts[some].astype(np.float32), *known)
            shift[some] = cross @ weights
            explained[some] = np.square(cross @ root).sum(axis=1)
        variance = before - explained + NOISE**2
        factor = np.exp(shift)
        return Prediction(
            value=factor * np.sum(list(parts.values()), axis=0),
            error=np.minimum(np.sqrt(np.maximum(variance, NOISE**2)), error),
            parts={name: factor * part for name, part in parts.items()},
        )

    def _shares(self, parts: Parts) -> Array:
        matrix = np.array([parts[name] for name in self.names])
        return matrix / matrix.sum(axis=0)

    def _covariance(self, s: Array, x: Array, t: Array | None = None, z: Array | None = None) -> Array:
        t, z = s if t is None else t, x if z is None else z
        distance = np.maximum((x**2).sum(axis=1)[:, None] + (z**2).sum(axis=1) - 2 * x @ z.T, 0)
        return self.claimed**2 * (LEVEL**2 + EACH**2 * s.T @ t + LOCAL**2 * np.exp(-distance / 2))


def layout(columns: list[tuple[Array, float]], n: int) -> Array:
    """(n, knobs) of (values, length): two rows that differ by `length` doublings of a knob are one apart."""
    return np.array([np.broadcast_to(np.log2(np.maximum(v, 0.5)), n) / length for v, length in columns]).T
