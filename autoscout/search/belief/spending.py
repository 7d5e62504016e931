"""What an experiment is expected to cost in device-seconds: devices × (launch, loading, iterations).

    log t(x) = a + Σ_d g_d(x_d) + b · log c(x) + w · [same launch as the one before] + ε

g_d are main effects of the knobs (more devices, longer loading), c is the objective's cost (slow configurations take
longer), w is what a launch costs that need not be repeated: all Gaussian a priori, so that t is a ridge regression on
what was paid so far, failures apart.

What is not yet measured is priced as if it were as good as the best: what is better takes no longer, and what is worse
is ended early. With its expected cost in its place a search pays for staying where it is: on 24 drawn landscapes it
solved 18 and not 22, and paid 1.08 times as much. For the same reason a failure is not taken for cheap.

`prices` are relative to a typical experiment, and all 1 until leaving each measured row out shows that t can be
predicted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autoscout.search.belief.encoding import Encoding

_NOISE = 0.1  # variance of ε, as a share of that of all regressors together
_LEAST, _HELD = 6, 300  # measured rows needed, and most that are kept (the latest)
_SPREAD = 0.05  # standard deviation of log t below which differences do not matter
_EXPLAINED = 0.5  # share of the variance to be explained in rows left out


@dataclass(frozen=True)
class _Paid:
    codes: np.ndarray  # (knobs,)
    cost: float  # log-cost by the objective
    log: float  # log device-seconds
    warm: bool  # shared the launch of the one before


# (n, regressors) and the (n,) dual weights; None where prices are not worth telling apart.
_Fit = tuple[np.ndarray, np.ndarray]


class Spending:
    """n rows told that ran, m asked about."""

    def __init__(self, encoding: Encoding, launch: Sequence[int] = ()) -> None:
        """`launch`: columns of the codes that need a new launch where they change; none: each experiment needs one."""
        self._encoding, self._launch = encoding, list(launch)
        self._paid: list[_Paid] = []
        self._last: np.ndarray | None = None  # codes of the latest experiment
        self._fit: _Fit | None = None
        self._fitted_on = 0  # rows told when `_fit` was made
        self._told = 0

    def tell(self, codes: np.ndarray, device_s: float, cost: float | None) -> None:
        """One experiment: (knobs,) its codes, what was paid for it (0: unknown), its log-cost (None: it failed)."""
        warm, self._last = bool(self._same(codes)), codes
        if cost is None or not 0 < device_s < np.inf:
            return
        self._told += 1
        self._paid = [*self._paid[1 - _HELD :], _Paid(codes, cost, float(np.log(device_s)), warm)]

    def _same(self, codes: np.ndarray) -> np.ndarray:
        """Whether codes (…, knobs) share the launch of the latest experiment, (…)."""
        if not self._launch or self._last is None:
            return np.zeros(codes.shape[:-1], dtype=bool)
        return (codes[..., self._launch] == self._last[self._launch]).all(axis=-1)

    def price(self, device_s: float) -> float:
        """What was paid, relative to a typical experiment; 1 where it is unknown or differences do not matter."""
        return float(device_s / np.exp(self._middle)) if self._fitted() and device_s > 0 else 1.0

    def prices(self, codes: np.ndarray) -> np.ndarray:
        """(m,) expected cost of each row of codes (m, knobs) relative to a typical experiment."""
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
        if self._fitted_on < self._told:  # the work grows with the cube of the rows
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
        """(k, regressors); each row's inner product with itself is about 1, costs and launches beside it."""
        effects = self._encoding.rows(codes).effects / np.sqrt(max(len(self._encoding), 1))
        beside = [costs - np.mean([p.cost for p in self._paid]), warm.astype(float)]
        return np.concatenate([effects, np.stack(beside, axis=1)], axis=1)
