"""What a look at a configuration is expected to gain."""

import numpy as np
from scipy.special import ndtr


def improvement(mean: np.ndarray, deviation: np.ndarray, best: float) -> np.ndarray:
    """Expected improvement E[max(best − f, 0)] of f ~ N(mean, deviation²)."""
    u = (best - mean) / deviation
    return deviation * (u * ndtr(u) + np.exp(-0.5 * u * u) / np.sqrt(2 * np.pi))
