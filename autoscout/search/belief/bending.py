"""Log-costs above the best, bent so that what is hopeless counts alike, however hopeless: u ↦ b (1 − e^(−u/b)), and u
itself below the best. What is predicted is bent as what is measured is: a simulator that is right about a queue that
runs over must not seem wrong because the one says ×600 and the other, bent, ×2.

How far above the best differences still matter is not known beforehand: where nearly all costs many times the best, as
of queues that run over, those that are bent are nearly all alike and tell nothing. So a belief without a prior mean is
held on two scales, BEND and nearly the logarithm itself, and evidence decides (surrogate.py).
"""

import numpy as np

BEND = 0.8  # b: e^0.8 = 2.2 times the best cost is about where differences stop to matter
STRAIGHT = 50.0  # b of which nothing is bent that is ever measured


def bent(u: np.ndarray, b: float = BEND) -> np.ndarray:
    return b * -np.expm1(-np.maximum(u, 0) / b) + np.minimum(u, 0)


def unbent(v: np.ndarray, b: float = BEND) -> np.ndarray:
    """Far above the best the log-cost is not known any more."""
    return np.where(v < 0, v, -b * np.log1p(-np.clip(v, 0, 0.95 * b) / b))


def slope(v: np.ndarray, b: float) -> np.ndarray:
    """By how much a small difference on the scale of `b` is larger on that of BEND, where the costs are `v` there."""
    return np.exp(-np.maximum(unbent(v), 0) * (1 / BEND - 1 / b))
