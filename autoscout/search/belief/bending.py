"""Bends log-costs above the best, so that all hopeless configurations count nearly alike: u ↦ b (1 − e^(−u/b)); u below
the best is unchanged. Predictions are bent like measurements: a simulator that is right about an overloaded queue must
not seem wrong because it predicts ×600 and the bent measurement is ×2.

How far above the best differences still matter is not known beforehand. If nearly all configurations cost many times
the best, as with overloaded queues, their bent costs are nearly equal and carry no information. So a belief without a
prior mean is kept on two scales, BEND and nearly the logarithm itself, and evidence decides (surrogate.py).
"""

import numpy as np

BEND = 0.8  # b: differences stop mattering at about e^0.8 = 2.2 times the best cost
STRAIGHT = 50.0  # b so large that no measured cost is bent noticeably


def bent(u: np.ndarray, b: float = BEND) -> np.ndarray:
    return b * -np.expm1(-np.maximum(u, 0) / b) + np.minimum(u, 0)


def unbent(v: np.ndarray, b: float = BEND) -> np.ndarray:
    """Inverts the bending. Far above the best the log-cost cannot be recovered."""
    return np.where(v < 0, v, -b * np.log1p(-np.clip(v, 0, 0.95 * b) / b))


def slope(v: np.ndarray, b: float) -> np.ndarray:
    """Factor from a small difference on the scale of `b` to one on the scale of BEND, at costs `v` on the former."""
    return np.exp(-np.maximum(unbent(v), 0) * (1 / BEND - 1 / b))
