"""For the Bayesian rivals: scikit-learn's Gaussian process, refitted as the data grow, and expected improvement."""

import warnings
from typing import Any

import numpy as np


class Refitted:
    """A Gaussian process whose hyper-parameters are refitted when the data have grown by a tenth."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self._fitted_on = 0

    def fit(self, x: np.ndarray, y: np.ndarray) -> bool:
        """Fits x (n, d) and y (n,); returns whether the hyper-parameters were refitted."""
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.gaussian_process import GaussianProcessRegressor

        refit = len(y) >= 1.1 * self._fitted_on
        self.model = GaussianProcessRegressor(
            self.kernel,
            normalize_y=True,
            alpha=1e-8,
            optimizer="fmin_l_bfgs_b" if refit else None,  # type: ignore[arg-type]
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            self.model.fit(x, y)
        if refit:
            self.kernel, self._fitted_on = self.model.kernel_, len(y)
        # scikit-learn's predictions contain the noise of a WhiteKernel: findings/sklearn-noise-in-the-uncertainty.sh
        levels = (v for name, v in self.model.kernel_.get_params().items() if name.endswith("noise_level"))
        self._noise = sum(levels) * (float(np.var(y)) or 1.0)  # normalize_y divides y by its standard deviation
        return refit

    def predict(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns (mean, standard deviation), each (k,), of the noise-free function at x (k, d)."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # hides warnings about negative variances, which rounding causes
            mean, sd = self.model.predict(x, return_std=True)
        return mean, np.maximum(np.sqrt(np.maximum(sd**2 - self._noise, 0.0)), 1e-12)


def expected_improvement(mean: np.ndarray, sd: np.ndarray, best: float) -> np.ndarray:
    """Returns E[max(best − f, 0)] for f ~ N(mean, sd²), elementwise."""
    from scipy.stats import norm

    z = (best - mean) / sd
    return sd * (z * norm.cdf(z) + norm.pdf(z))


def most_promising(mean: np.ndarray, sd: np.ndarray, best: float) -> int:
    """Returns the index of the largest expected improvement; if all underflow to 0, that of (best − mean) / sd."""
    return int(np.lexsort(((best - mean) / sd, expected_improvement(mean, sd, best)))[-1])
