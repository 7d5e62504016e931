"""Which of n successive changes made it slower? A noisy bisection.

    log cost of point p in pair r = level + δ [p ≥ change] + p_r + ε,    p_r ~ N(0, ρ σ²)

Point 0 is before all changes, point n after the last, and each change has the same prior probability. The levels (one
for each speed of the machine) and the logarithm of σ are integrated out over flat priors, δ over a log-uniform prior,
and ρ over a few values, from a machine without drift to one that drifts completely. The next pair is the most
informative about which change it is (probabilistic bisection: Horstein 1963; Waeber, Frazier and Henderson 2013).
"""

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln

_DRIFTS = (0.0, 0.3, 1.0, 10.0)  # ρ
_SLOWDOWNS = np.log1p(np.geomspace(0.01, 2.0, 30))  # δ: less is not worth finding by noisy comparisons
FIRST = 3  # pairs of the two ends that precede pairs in between
_OUT = math.log(1.3)
_TWO_SPEEDS = 0.1  # prior probability of a machine of two speeds
_APART = 2.0  # of a change's slowdown, from which a second speed is told from it
_TURNS = 6  # of dividing runs by speed and of fitting, which rarely needs more than three
_LEAST = 1e-4  # standard deviation of a log cost below which clocks are not precise enough

Row = tuple[int, int, float]  # pair, point, log cost


def posterior(rows: Sequence[Row], changes: int) -> np.ndarray:
    """(changes,): probability that it is each change; change k, from 0, leads from point k to point k + 1."""
    logs = np.logaddexp.reduce([fits.logs for _, fits in _hypotheses(rows, changes)])
    weights = np.exp(logs - logs.max())
    return weights / weights.sum()


def usual(rows: Sequence[Row]) -> list[Row]:
    """Drops runs that are farther above the median than any change that is worth finding by noisy comparisons, and than
    four deviations of the others (from their median absolute deviation)."""
    logs = np.array([log for _, _, log in rows])
    off = logs - np.median(logs)
    deviation = 1.4826 * float(np.median(np.abs(off)))
    return [row for row, far in zip(rows, off > max(4 * deviation, _OUT), strict=True) if not far]


def _hypotheses(rows: Sequence[Row], changes: int) -> list[tuple[float, "_Fits"]]:
    """ρ and what follows from it, for a machine of one speed and for the likeliest division of the runs between two.
    All divisions with the same number of slow runs are equally likely before, and so are all numbers."""
    kept = usual(rows)
    slow, n = _slow(kept, changes), len(kept)
    cost = math.log(math.comb(n, int(slow.sum())) * n) - math.log(_TWO_SPEEDS)
    speeds = [(slow & False, 0.0), (slow, cost)] if 0 < slow.sum() < n else [(slow & False, 0.0)]
    return [(drift, _fits(kept, each, changes, drift, less)) for each, less in speeds for drift in _DRIFTS]


def _slow(rows: Sequence[Row], changes: int) -> np.ndarray:
    """(n,) which runs are of a slower speed: least squares for the change that explains most, in turns with dividing
    what it leaves over. None where that is not far from the change, which bursts of others' load are taken for."""
    y = np.array([log for _, _, log in rows])
    after = (np.array([point for _, point, _ in rows])[:, None] > np.arange(changes)).astype(float)
    slow = y > (y.min() + y.max()) / 2
    for _ in range(_TURNS):
        if slow.all() or not slow.any():
            break
        fits = []
        for column in after.T:
            design = np.column_stack([np.ones(len(y)), column, slow])
            effects = np.linalg.lstsq(design, y)[0]
            fits.append((float(((y - design @ effects) ** 2).sum()), effects, column))
        _, effects, column = min(fits, key=lambda fit: fit[0])
        if effects[2] < _APART * abs(effects[1]):
            return slow & False
        divided = y - effects[0] - effects[1] * column > effects[2] / 2
        if (divided == slow).all():
            break
        slow = divided
    return slow


class _Fits(NamedTuple):
    """For all changes, (changes,) each: the log of the evidence up to a constant, and the expected level, δ and σ²."""

    logs: np.ndarray
    level: np.ndarray
    delta: np.ndarray
    squares: np.ndarray


def _fits(rows: Sequence[Row], slow: np.ndarray, changes: int, drift: float, less: float) -> _Fits:
    pair, point, y = (np.array(column) for column in zip(*rows, strict=True))
    covariance = np.eye(len(y)) + drift * (pair[:, None] == pair[None, :])
    half = np.linalg.cholesky(covariance)
    after = (point[:, None] > np.arange(changes)).astype(float)  # (rows, changes)
    speeds = np.column_stack([np.ones(len(y)), slow])[:, : 1 + slow.any()]
    basis, scale = np.linalg.qr(np.linalg.solve(half, speeds))
    white = np.linalg.solve(half, np.column_stack([y, after]))
    along_basis = basis.T @ white
    level = np.linalg.solve(scale, along_basis)[0]  # at the usual speed, of y and of what each change explains
    y, after = (white - basis @ along_basis)[:, 0], (white - basis @ along_basis)[:, 1:]
    length, along, dof = (after**2).sum(axis=0), y @ after, max(1, len(y) - len(scale))

    def squares(delta: np.ndarray) -> np.ndarray:
        return np.maximum(y @ y - 2 * delta * along + delta**2 * length, 0) + dof * _LEAST**2

    logs = gammaln(dof / 2) - dof / 2 * np.log(math.pi * squares(_SLOWDOWNS[:, None]))  # (slowdowns, changes)
    weights = np.exp(logs - logs.max(axis=0))
    delta = _SLOWDOWNS @ weights / weights.sum(axis=0)
    evidence = np.logaddexp.reduce(logs) - np.log(np.diag(half)).sum() - np.log(np.abs(np.diag(scale))).sum()
    return _Fits(evidence - less, level[0] - delta * level[1:], delta, squares(delta) / dof)


def next_pair(rows: Sequence[Row], changes: int, broken: Collection[int] = ()) -> tuple[int, int]:
    """The two points of the next pair, none of them `broken` (they do not run); the two ends at first.

    Each change predicts the cost of every point. The next pair are the two points whose predicted costs differ most
    between the likely changes, jointly and in units of the noise: those with the largest determinant of the
    covariance of their costs."""
    if len({pair for pair, _, _ in rows}) < FIRST:
        return 0, changes
    works = np.array([point for point in range(changes + 1) if point not in broken])
    p = posterior(rows, changes)
    drift, fits = max(_hypotheses(rows, changes), key=lambda each: each[1].logs.max())
    costs = fits.level[:, None] + fits.delta[:, None] * (works > np.arange(changes)[:, None])  # (changes, points)
    off = np.sqrt(p)[:, None] * (costs - p @ costs)
    shared = off.T @ off / float(p @ fits.squares)
    own = 1 + drift + np.diag(shared)
    information = np.where(np.triu(np.ones_like(shared), 1) > 0, np.outer(own, own) - (drift + shared) ** 2, -np.inf)
    low, high = np.unravel_index(int(np.argmax(information)), information.shape)
    return int(works[low]), int(works[high])


def slowdown(rows: Sequence[Row], change: int) -> float:
    """Mean log cost after a change minus that before it, as far as drift allows: in pairs with a point on either
    side, else of all."""
    sides: dict[int, dict[bool, list[float]]] = {}
    for pair, point, log in rows:
        sides.setdefault(pair, {}).setdefault(point >= change, []).append(log)
    within = [float(np.mean(s[True]) - np.mean(s[False])) for s in sides.values() if len(s) == 2]
    return float(np.mean(within)) if within else math.nan
