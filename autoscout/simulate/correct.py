"""A few measured rows of a job correct the analytic model's parts: a factor for each, near 1 unless the rows say else.

log value = b + log Σₖ exp(wₖ) partₖ, with b ~ N(0, σ_b²) and wₖ ~ N(0, σ_w²) (a ridge in log space), found by
Gauss-Newton steps whose rows are weighted down where they stand far out (Huber). The curvature at the end says how
sure the factors are, and so how far to trust a prediction.
"""

import numpy as np

from autoscout.simulate.member import Prediction

Array = np.ndarray
Parts = dict[str, Array]
LEVEL = 1.0  # how far the common factor may be off, relative to the error claimed without measured rows
EACH = 1.5  # the same for one part
NOISE = 0.02  # of one measurement
_HUBER = 2.0  # standard deviations


class Correction:
    def __init__(self, names: list[str], weights: Array, covariance: Array, noise: float) -> None:
        self.names = names
        self.weights = weights  # (parts + 1,): logarithms of the factors, the common one first
        self.covariance = covariance
        self.noise = noise

    @classmethod
    def of(cls, parts: Parts, error: Array, values: Array) -> "Correction | None":
        """None if no row is usable."""
        names = list(parts)
        matrix = np.array([parts[name] for name in names])
        usable = np.isfinite(values) & (values > 0) & np.isfinite(matrix.sum(axis=0))
        if not usable.any():
            return None
        matrix, target = matrix[:, usable], np.log(values[usable])
        claimed = float(np.median(error[usable]))
        prior = np.array([LEVEL * claimed] + [EACH * claimed] * len(names))
        weights = np.zeros(len(prior))
        noise = max(NOISE, 0.25 * claimed)
        precision = np.diag(prior**-2.0)
        for _ in range(12):
            value, slopes = _model(matrix, weights)
            residual = target - value
            scale = 1 / np.maximum(1.0, np.abs(residual) / (_HUBER * noise)) / noise**2
            precision = np.diag(prior**-2.0) + (slopes * scale) @ slopes.T
            weights = weights + np.linalg.solve(precision, (slopes * scale) @ residual - weights / prior**2)
            # What the factors cannot explain is noise: pooled with what is expected beforehand.
            spent = min(len(target) / 2, len(prior) / 2)
            left = float(np.sum((target - _model(matrix, weights)[0]) ** 2))
            noise = max(NOISE, np.sqrt((left + 4 * (0.2 * claimed) ** 2) / (len(target) - spent + 4)))
        return cls(names, weights, np.linalg.inv(precision), noise)

    def apply(self, parts: Parts, error: Array) -> Prediction:
        matrix = np.array([parts[name] for name in self.names])
        value, slopes = _model(matrix, self.weights)
        variance = np.einsum("kn,kl,ln->n", slopes, self.covariance, slopes) + self.noise**2
        factors = np.exp(self.weights[0] + self.weights[1:])
        return Prediction(
            value=np.exp(value),
            error=np.minimum(np.sqrt(variance), error),
            parts={name: f * parts[name] for name, f in zip(self.names, factors, strict=True)},
        )


def _model(matrix: Array, weights: Array) -> tuple[Array, Array]:
    """log value (n,), and its derivatives by the weights (parts + 1, n)."""
    scaled = np.exp(weights[1:])[:, None] * matrix
    total = scaled.sum(axis=0)
    return weights[0] + np.log(total), np.concatenate([np.ones((1, matrix.shape[1])), scaled / total])
