"""The expected gain of hypervolume: how much one more point is expected to add to the volume that a front dominates,
for m objectives to be minimized, up to a reference point.

    HVI(y) = Σ_b Π_j [u_bj − max(l_bj, y_j)]₊        over disjoint boxes b = (l, u) that the front does not dominate
    E[HVI] = Σ_b Π_j [ψ_j(u_bj) − ψ_j(l_bj)],        ψ_j(t) = E[(t − y_j)₊]

for independent y_j ~ N(mean_j, deviation_j²)

(Yang, Emmerich, Deutz and Bäck 2019, for any number of objectives; ψ is the expected improvement over t.)
"""

import itertools

import numpy as np
from scipy.special import ndtr


def front(points: np.ndarray) -> np.ndarray:
    """(n, m) → (k, m): the points that no other dominates, without duplicates."""
    points = np.unique(points, axis=0)
    weak = (points[:, None] <= points[None]).all(axis=2)  # [i, j]: i is nowhere worse than j
    return points[weak.sum(axis=0) == 1]


def reference(points: np.ndarray) -> np.ndarray:
    """(m,) the worst of all points plus a tenth of their range. With the worst of the front alone, points that trade
    much of one objective for another would add nothing."""
    span = np.ptp(points, axis=0)
    return points.max(axis=0) + 0.1 * np.where(span > 0, span, 1.0)


def boxes(points: np.ndarray, beyond: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(b, m) lower (−inf) and upper corners of disjoint boxes: together they cover everything that is better than
    `beyond` (m,) and that none of the points (n, m) dominates. They are cut at each point's last objective."""
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
    """(c,) expected gain of candidates with independent objectives `mean`, `deviation` (c, m), given `points` (n,
    m)."""
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
    """ψ(t) of each candidate."""
    return np.zeros(len(mean)) if np.isinf(t) else improvement(mean, deviation, t)


def improvement(mean: np.ndarray, deviation: np.ndarray, best: float) -> np.ndarray:
    """Expected improvement E[max(best − f, 0)] of f ~ N(mean, deviation²)."""
    u = (best - mean) / deviation
    return deviation * (u * ndtr(u) + np.exp(-0.5 * u * u) / np.sqrt(2 * np.pi))
