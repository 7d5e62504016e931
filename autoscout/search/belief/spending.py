"""Predicts an experiment's cost in device-seconds, that is, devices × (launch + loading + iterations).

    log t(x) = a + Σ_d g_d(x_d) + b · log c(x) + w · [same launch as the one before] + ε

g_d are main effects of the knobs (more devices, longer loading), c is the objective's cost (slow configurations take
longer), and w is the saving if the previous launch can be reused. All have Gaussian priors, so this is a ridge
regression on the experiments so far, without failures, which would look cheap.

An unmeasured configuration is priced as if its cost were the best one, because better configurations take no longer,
and worse ones are stopped early. Using the expected cost instead made searches stay near known configurations: of 24
generated landscapes they solved 18 instead of 22, and spent 1.08 times as much.

`prices` are relative to a typical experiment. They are 1 until leave-one-out errors show that t can be predicted."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autoscout.search.belief.encoding import Encoding

_NOISE = 0.1  # variance of ε, as a share of the prior variance of all regressors together
_LEAST, _HELD = 6, 300  # experiments needed for a fit; limit on experiments kept (the latest)
_SPREAD = 0.05  # if the standard deviation of log t is smaller, all prices are 1
_EXPLAINED = 0.5  # share of the variance that leave-one-out predictions must explain


@dataclass(frozen=True)
class _Paid:
    codes: np.ndarray  # (knobs,)
    cost: float  # log of the objective's cost
    log: float  # log device-seconds
    warm: bool  # whether it reused the previous experiment's launch


# (regressors (n, r), dual weights (n,)).
_Fit = tuple[np.ndarray, np.ndarray]


class Spending:
    """Learns prices from the n experiments that ran, and predicts the prices of m rows."""

    def __init__(self, encoding: Encoding, launch: Sequence[int] = ()) -> None:
        """`launch`: columns of codes whose change requires a new launch; empty: every experiment requires one."""
        self._encoding, self._launch = encoding, list(launch)
        self._paid: list[_Paid] = []
        self._last: np.ndarray | None = None  # codes of the latest experiment
        self._fit: _Fit | None = None
        self._fitted_on = 0  # number of experiments that `_fit` used
        self._told = 0

    def tell(self, codes: np.ndarray, device_s: float, cost: float | None) -> None:
        """Adds one experiment: codes (knobs,), device-seconds (0: unknown) and log-cost (None: it failed)."""
        warm, self._last = bool(self._same(codes)), codes
        if cost is None or not 0 < device_s < np.inf:
            return
        self._told += 1
        self._paid = [*self._paid[1 - _HELD :], _Paid(codes, cost, float(np.log(device_s)), warm)]

    def _same(self, codes: np.ndarray) -> np.ndarray:
        """(…) whether rows of codes (…, knobs) can reuse the launch of the latest experiment."""
        if not self._launch or self._last is None:
            return np.zeros(codes.shape[:-1], dtype=bool)
        return (codes[..., self._launch] == self._last[self._launch]).all(axis=-1)

    def price(self, device_s: float) -> float:
        """The price of a finished experiment relative to a typical one; 1 if its time or all prices are unknown."""
        return float(device_s / np.exp(self._middle)) if self._fitted() and device_s > 0 else 1.0

    def prices(self, codes: np.ndarray) -> np.ndarray:
        """(m,) expected price of each row of codes (m, knobs), relative to a typical experiment."""
        fit = self._fitted()
        if fit is None:
            return np.ones(len(codes))
        x, weights = fit
        best = np.full(len(codes), min(p.cost for p in self._paid))
        return np.exp(self._regressors(codes, best, self._same(codes)) @ (x.T @ weights))

    @property
    def _middle(self) -> float:
        return float(np.mean([p.log for p in self._paid]))

    def _fitted(self) -> _Fit | None:
        if self._fitted_on < self._told:  # once per new row, since a fit is O(n³)
            self._fit, self._fitted_on = self._refitted(), self._told
        return self._fit

    def _refitted(self) -> _Fit | None:
        paid = self._paid
        y = np.array([p.log for p in paid])
        if len(y) < _LEAST or np.std(y) < _SPREAD:
            return None
        y = y - self._middle
        x = self._regressors(*(np.array(v) for v in zip(*((p.codes, p.cost, p.warm) for p in paid), strict=True)))
        inverse = np.linalg.inv(x @ x.T + _NOISE * np.eye(len(y)))
        weights = inverse @ y
        left_out = weights / np.diag(inverse)
        return (x, weights) if np.sum(left_out**2) < (1 - _EXPLAINED) * np.sum(y**2) else None

    def _regressors(self, codes: np.ndarray, costs: np.ndarray, warm: np.ndarray) -> np.ndarray:
        """(k, r) regressors. Those of the main effects have a squared norm of about 1 in each row."""
        effects = self._encoding.rows(codes).effects / np.sqrt(max(len(self._encoding), 1))
        others = [costs - np.mean([p.cost for p in self._paid]), warm.astype(float)]
        return np.concatenate([effects, np.stack(others, axis=1)], axis=1)
