"""The chance that a configuration runs, learned from those that did and did not: Bayesian logistic regression.

A failure says nothing about speed, so it never reaches the posterior of the cost; here it is all that counts. What
runs out (memory, registers, time) is mostly a product of knobs, so that in logarithms its boundary is nearly a plane.
"""

import numpy as np

from autoscout.search.encoding import Rows

_SPREAD = 2.0  # prior standard deviation of a weight; features lie within 0 … 1
_OFFSET = (2.0, 2.0)  # prior of the intercept: most of what a space calls valid runs
_STEPS = 12  # Newton steps; converges in half of them


class Feasibility:
    def __init__(self) -> None:
        self._weights: np.ndarray | None = None
        self._covariance = np.zeros((0, 0))
        self._failed = False

    @staticmethod
    def features(rows: Rows, hints: np.ndarray | None = None) -> np.ndarray:
        """(n, F) float32; `hints` (n, H): 1 where a simulator predicts a failure."""
        columns = [np.ones((len(rows), 1), np.float32), rows.points]
        if hints is not None:
            columns.append(hints)
        return np.concatenate(columns, axis=1, dtype=np.float32)

    def fit(self, features: np.ndarray, ran: np.ndarray) -> None:
        """`ran` (n,) bool. Starts from the last weights, so that one more row costs a few steps."""
        x, y = features.astype(float), ran.astype(float)
        self._failed = not ran.all()
        if not self._failed:
            return
        mean = np.zeros(x.shape[1])
        mean[0] = _OFFSET[0]
        precision = np.full(x.shape[1], _SPREAD**-2.0)
        precision[0] = _OFFSET[1] ** -2.0
        w = mean if self._weights is None else self._weights
        hessian = np.diag(precision)
        for _ in range(_STEPS):
            p = 1 / (1 + np.exp(-np.clip(x @ w, -30, 30)))
            gradient = x.T @ (y - p) - precision * (w - mean)
            hessian = (x.T * (p * (1 - p))) @ x + np.diag(precision)
            step = np.linalg.solve(hessian, gradient)
            w = w + step * min(1.0, 4.0 / (np.abs(x @ step).max() + 1e-12))
            if np.abs(step).max() < 1e-3:
                break
        self._weights = w
        self._covariance = np.linalg.inv(hessian)

    def chance(self, features: np.ndarray) -> np.ndarray:
        """(n,) in 0 … 1, averaged over what the weights may be (MacKay's approximation); 1 while nothing failed."""
        if not self._failed or self._weights is None:
            return np.ones(len(features), dtype=np.float32)
        a = features @ self._weights.astype(np.float32)
        variance = ((features @ self._covariance.astype(np.float32)) * features).sum(axis=1)
        return 1 / (1 + np.exp(-a / np.sqrt(1 + np.pi / 8 * variance)))
