"""A well-tuned Gaussian process for rivals: one length scale per feature (Matérn 5/2), and all hyper-parameters by
maximum a posteriori, with priors that prevent lengths from collapsing while there are few rows.

    log ℓ_k ~ N(−0.5 + log(D) / 2, 1.2²), for features in [0, 1], whose distances grow with √D
    log σ_noise ~ N(−4, 1), for y of unit variance

Hvarfner, Hellsten and Nardi (2024) use √2 and 3 instead of −0.5 and 1.2², which is too smooth for measured kernels.

It is refitted when the data have grown by a tenth, starting from the last values and from the prior means."""

import numpy as np
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.optimize import minimize

from autoscout.search.belief.posterior import matern

_NOISE = -4.0, 1.0  # prior mean and standard deviation of log σ_noise
_LENGTH = -0.5, 1.2  # prior mean and standard deviation of log ℓ − log(D) / 2
_STEPS = 50  # limit on the steps of a fit
_SQRT5 = np.sqrt(5.0)  # for Matérn 5/2


class MapGP:
    def __init__(self) -> None:
        self._fitted_on = 0
        self._theta = np.zeros(0)  # [log ℓ (D,), log σ_noise]

    def fit(self, x: np.ndarray, y: np.ndarray) -> bool:
        """Fits x (n, D) in [0, 1] and y (n,); returns whether the hyper-parameters were refitted."""
        self._x, self._middle, self._unit = x, float(y.mean()), float(y.std()) or 1.0
        z = (y - self._middle) / self._unit
        refit = len(y) >= 1.1 * self._fitted_on
        if refit:
            d = x.shape[1]
            middle = np.append(np.full(d, _LENGTH[0] + np.log(d) / 2), _NOISE[0])
            width = np.append(np.full(d, _LENGTH[1]), _NOISE[1])
            apart = (x[:, None] - x[None]) ** 2  # (n, n, D)
            starts = [middle, self._theta] if self._fitted_on else [middle]
            bounds = [(m - 4 * w, m + 4 * w) for m, w in zip(middle, width, strict=True)]
            found = [
                minimize(
                    _loss,
                    start,
                    (apart, z, middle, width),
                    jac=True,
                    method="L-BFGS-B",
                    bounds=bounds,
                    options={"maxiter": _STEPS},
                )
                for start in starts
            ]
            self._theta, self._fitted_on = min(found, key=lambda f: f.fun).x, len(y)
        scaled = self._scaled(x)
        k = matern(_apart(scaled, scaled)) + (np.exp(2 * self._theta[-1]) + 1e-8) * np.eye(len(x))
        self._low = np.linalg.cholesky(k)
        self._alpha = cho_solve((self._low, True), z)
        return refit

    def predict(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns (mean, standard deviation), each (k,), of the noise-free function at x (k, D)."""
        across = matern(_apart(self._scaled(x), self._scaled(self._x)))
        left = 1 - (solve_triangular(self._low, across.T, lower=True) ** 2).sum(axis=0)
        mean = self._middle + self._unit * (across @ self._alpha)
        return mean, self._unit * np.sqrt(np.maximum(left, 1e-12))

    def _scaled(self, x: np.ndarray) -> np.ndarray:
        return x / np.exp(self._theta[:-1])


def _apart(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    squares = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None] - 2 * a @ b.T
    return np.sqrt(np.maximum(squares, 0))


def _loss(
    theta: np.ndarray, apart: np.ndarray, z: np.ndarray, middle: np.ndarray, width: np.ndarray
) -> tuple[float, np.ndarray]:
    """Returns (−log p(z, θ) up to a constant, its gradient (D + 1,))."""
    scales = np.exp(-2 * theta[:-1])
    r = np.sqrt(apart @ scales)
    noise = np.exp(2 * theta[-1])
    factor = cho_factor(matern(r) + (noise + 1e-8) * np.eye(len(z)), lower=True)
    alpha = cho_solve(factor, z)
    off = (theta - middle) / width
    value = 0.5 * z @ alpha + np.log(np.diag(factor[0])).sum() + 0.5 * (off**2).sum()
    outer = cho_solve(factor, np.eye(len(z))) - np.outer(alpha, alpha)
    slope = 5 / 3 * (1 + _SQRT5 * r) * np.exp(-_SQRT5 * r) * outer  # dK / d log ℓ_k = slope × apart / ℓ_k²
    gradient = 0.5 * np.append(np.einsum("ij,ijk->k", slope, apart) * scales, 2 * noise * np.trace(outer))
    return float(value), gradient + off / width
