"""Log-costs above the best, bent so that all hopeless ones count nearly alike: u ↦ b (1 − e^(−u/b)), and u
itself below the best. Predictions are bent like measurements: a simulator that is right about an overflowing queue must
not seem wrong because it says ×600 and the bent measurement ×2."""

import numpy as np

BEND = 0.8  # b: e^0.8 = 2.2 times the best cost is about where differences stop mattering


def bent(u: np.ndarray) -> np.ndarray:
    return BEND * -np.expm1(-np.maximum(u, 0) / BEND) + np.minimum(u, 0)


def unbent(v: np.ndarray) -> np.ndarray:
    """The log-cost; capped far above the best, where bending has lost it."""
    return np.where(v < 0, v, -BEND * np.log1p(-np.clip(v, 0, 0.95 * BEND) / BEND))
