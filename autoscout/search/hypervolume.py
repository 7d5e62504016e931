"""The expected hypervolume improvement: how much a new point is expected to add to the volume between a Pareto front
and a reference point, for m objectives to be minimized.

    HVI(y) = Σ_b Π_j [u_bj − max(l_bj, y_j)]₊        over disjoint boxes b = (l, u) of the non-dominated volume
    E[HVI] = Σ_b Π_j [ψ_j(u_bj) − ψ_j(l_bj)],        ψ_j(t) = E[(t − y_j)₊]

for independent y_j ~ N(mean_j, deviation_j²)

(Yang, Emmerich, Deutz and Bäck 2019, for any number of objectives; ψ is the expected improvement over t.)"""

import itertools

import numpy as np
from scipy.special import ndtr


def front(points: np.ndarray) -> np.ndarray:
    """(k, m) the non-dominated points among `points` (n, m), without duplicates."""
    points = np.unique(points, axis=0)
    weak = (points[:, None] <= points[None]).all(axis=2)  # [i, j]: i is not worse than j
    return points[weak.sum(axis=0) == 1]


def reference(points: np.ndarray) -> np.ndarray:
    """(m,) the reference point: the worst values of all points plus a tenth of their range. With the worst values of
    the front alone, points that extend the front would add nothing."""
    span = np.ptp(points, axis=0)
    return points.max(axis=0) + 0.1 * np.where(span > 0, span, 1.0)


def boxes(points: np.ndarray, beyond: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """((b, m) lower corners, (b, m) upper corners) of disjoint boxes that together cover the volume better than
    `beyond` (m,) that no point (n, m) dominates; lower bounds may be −inf. Slices the volume along the last objective
    at the points, then each slice along the others."""
    if len(beyond) == 1:
        return np.array([[-np.inf]]), np.array([[min([beyond[0], *points[:, 0]])]])
    levels = np.unique(points[points[:, -1] < beyond[-1], -1])
    lower, upper = [], []
    for low, high in itertools.pairwise([-np.inf, *levels, beyond[-1]]):
        below, above = boxes(points[points[:, -1] <= low][:, :-1], beyond[:-1])
        lower.append(np.column_stack([below, np.full(len(below), low)]))
        upper.append(np.column_stack([above, np.full(len(above), high)]))
    return np.concatenate(lower), np.concatenate(upper)


def expected_gain(mean: np.ndarray, deviation: np.ndarray, points: np.ndarray, beyond: np.ndarray) -> np.ndarray:
    """(c,) expected hypervolume improvement of candidates with independent normal objectives (`mean`, `deviation`: (c,
    m)), given `points` (n, m) and the reference point `beyond`."""
    lower, upper = boxes(front(points), beyond)
    total = np.zeros(len(mean))
    widths = [
        {t: _below(t, mean[:, j], deviation[:, j]) for t in {*lower[:, j], *upper[:, j]}} for j in range(len(beyond))
    ]
    for low, high in zip(lower, upper, strict=True):
        volume = np.ones(len(mean))
        for j, width in enumerate(widths):
            volume *= width[high[j]] - width[low[j]]
        total += volume
    return np.maximum(total, 0.0)


def _below(t: float, mean: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    return np.zeros(len(mean)) if np.isinf(t) else improvement(mean, deviation, t)


def improvement(mean: np.ndarray, deviation: np.ndarray, best: float) -> np.ndarray:
    """Expected improvement E[max(best − f, 0)] of f ~ N(mean, deviation²)."""
    u = (best - mean) / deviation
    return deviation * (u * ndtr(u) + np.exp(-0.5 * u * u) / np.sqrt(2 * np.pi))
