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
_OUTLIER = 2.0  # standard deviations of the job's residuals


class Correction:
    def __init__(self, parts: Parts, layouts: Array, error: Array, values: Array) -> None:
        """`layouts`: (n, knobs), logarithms to base 2 of what makes rows alike. Rows without a value are left out."""
        total = np.sum(list(parts.values()), axis=0)
        usable = np.isfinite(values) & (values > 0) & np.isfinite(total)
        self.claimed = float(np.median(error[usable])) if usable.any() else 0.0
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
        shares = self._shares(parts)
        cross = self._covariance(shares, layouts, self.shares, self.layouts)
        shift = cross @ self.weights
        before = (LEVEL**2 + LOCAL**2) * self.claimed**2 + EACH**2 * self.claimed**2 * (shares**2).sum(axis=0)
        variance = before - np.einsum("ij,jk,ik->i", cross, self.inverse, cross) + NOISE**2
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
        distance = ((x[:, None, :] - z[None, :, :]) ** 2).sum(axis=2)
        return self.claimed**2 * (LEVEL**2 + EACH**2 * s.T @ t + LOCAL**2 * np.exp(-distance / 2))


def layout(columns: list[tuple[Array, float]], n: int) -> Array:
    """(n, knobs) of (values, length): two rows that differ by `length` doublings of a knob are one apart."""
    return np.array([np.broadcast_to(np.log2(np.maximum(v, 0.5)), n) / length for v, length in columns]).T
