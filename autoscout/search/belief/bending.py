"""Compresses ("bends") log-costs above the best one, u ↦ b (1 − e^(−u/b)), so that all hopeless configurations count
nearly alike; values below the best are unchanged. Predictions are bent like measurements. Otherwise a simulator that
correctly predicts 600 times the best cost for an overloaded queue would seem wrong, because the bent measurement is at
most 2.2 times the best cost.

The right b is not known beforehand: if nearly all configurations cost many times the best one, as with overloaded
queues, their bent costs are nearly equal and carry no information. So there are two models without a prior mean, one on
each of the scales BEND and STRAIGHT (nearly the plain logarithm), weighted by evidence (surrogate.py)."""

import numpy as np

BEND = 0.8  # b: costs above e^0.8 = 2.2 times the best one are hardly distinguished
STRAIGHT = 50.0  # b so large that costs are practically not compressed


def bent(u: np.ndarray, b: float = BEND) -> np.ndarray:
    return b * -np.expm1(-np.maximum(u, 0) / b) + np.minimum(u, 0)


def unbent(v: np.ndarray, b: float = BEND) -> np.ndarray:
    """Inverts `bent`; values near b are clipped, because the log-cost cannot be recovered there."""
    return np.where(v < 0, v, -b * np.log1p(-np.clip(v, 0, 0.95 * b) / b))


def slope(v: np.ndarray, b: float) -> np.ndarray:
    """The factor from standard deviations on the scale `b` to those on BEND, at `v`, compressed log-costs on BEND."""
    return np.exp(-np.maximum(unbent(v), 0) * (1 / BEND - 1 / b))
