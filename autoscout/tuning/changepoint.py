"""Which of n changes in a row made it slower? A noisy bisection.

    log cost of point p in pair r = level + δ [p ≥ change] + p_r + ε,    p_r ~ N(0, ρ σ²)

Point 0 is before all changes, point n after the last; each of them is the change with the same prior probability. The
level, δ > 0 and the logarithm of σ are integrated out over flat priors, ρ over a few values, from a machine that does
not drift to one that drifts wholly. The next pair is of the points that are bad with a probability of about one third
and two thirds: without drift its three outcomes are equally likely, and with drift, where only the pair's difference
tells, it still says whether the change lies between (probabilistic bisection: Horstein 1963; Waeber, Frazier and
Henderson 2013).
"""

import math
from collections.abc import Collection, Sequence

import numpy as np
from scipy.special import stdtr

_DRIFTS = (0.0, 0.3, 1.0, 10.0)  # ρ
FIRST = 3  # pairs of the two ends, before anything can be said of what lies between
_OUT = math.log(1.3)
_LEAST = 1e-4  # standard deviation of a log cost below which no clock tells

Row = tuple[int, int, float]  # pair, point, log cost


def posterior(rows: Sequence[Row], changes: int) -> np.ndarray:
    """(changes,): probability that it is each change; change k, from 0, leads from point k to point k + 1."""
    rows = usual(rows)
    logs = np.logaddexp.reduce([_log_evidence(rows, changes, drift) for drift in _DRIFTS])
    weights = np.exp(logs - logs.max())
    return weights / weights.sum()


def usual(rows: Sequence[Row]) -> list[Row]:
    """Without runs at a slower speed of the machine: farther above the median than any change that is worth finding by
    noisy comparisons, and than four deviations of the others (by their median absolute deviation)."""
    logs = np.array([log for _, _, log in rows])
    off = logs - np.median(logs)
    deviation = 1.4826 * float(np.median(np.abs(off)))
    return [row for row, far in zip(rows, off > max(4 * deviation, _OUT), strict=True) if not far]


def _log_evidence(rows: Sequence[Row], changes: int, drift: float) -> np.ndarray:
    """(changes,), but for a constant; least squares of the level and of δ for all changes at once."""
    pair, point, y = (np.array(column) for column in zip(*rows, strict=True))
    covariance = np.eye(len(y)) + drift * (pair[:, None] == pair[None, :])
    half = np.linalg.cholesky(covariance)
    after = (point[:, None] > np.arange(changes)).astype(float)  # (rows, changes)
    white = np.linalg.solve(half, np.column_stack([np.ones(len(y)), y, after]))
    one, y, after = white[:, 0], white[:, 1], white[:, 2:]
    size = one @ one
    after = after - np.outer(one, one @ after) / size
    y = y - one * (one @ y) / size
    length = (after**2).sum(axis=0)
    known = length > 1e-9  # runs on both sides of it
    length = np.where(known, length, 1.0)
    along = y @ after
    dof = max(1, len(y) - 2)
    squares = np.maximum(y @ y - along**2 / length, 0) + dof * _LEAST**2
    slower = stdtr(dof, along / np.sqrt(length * squares / dof))
    value = -np.log(np.diag(half)).sum() - 0.5 * np.log(size * length) - dof / 2 * np.log(squares)
    return np.where(known, value + np.log(np.maximum(slower, 1e-300)), -1e300)


def next_pair(rows: Sequence[Row], changes: int, broken: Collection[int] = ()) -> tuple[int, int]:
    """The two points of the next pair, none of them `broken` (they do not run); the two ends at first."""
    if len({pair for pair, _, _ in rows}) < FIRST:
        return 0, changes
    works = [point for point in range(changes + 1) if point not in broken]
    bad = np.concatenate([[0.0], np.cumsum(posterior(rows, changes))])[works]  # of each point
    own = bad * (1 - bad)
    shared = np.minimum.outer(bad, bad) * (1 - np.maximum.outer(bad, bad))
    signal, drift = _signal(rows, changes)
    one, off = 1 + drift, drift  # covariance of a pair's noise, in σ²
    with_signal = (one + signal * own[:, None]) * (one + signal * own[None, :]) - (off + signal * shared) ** 2
    told = np.where(np.triu(np.ones_like(shared), 1) > 0, with_signal, -np.inf)
    low, high = np.unravel_index(int(np.argmax(told)), told.shape)
    return works[int(low)], works[int(high)]


def _signal(rows: Sequence[Row], changes: int) -> tuple[float, float]:
    """(δ²/σ², ρ) where they are likeliest."""
    rows = usual(rows)
    found = [(_log_evidence(rows, changes, drift), drift) for drift in _DRIFTS]
    logs, drift = max(found, key=lambda each: float(each[0].max()))
    change = int(np.argmax(logs)) + 1
    before = [log for _, point, log in rows if point < change]
    after = [log for _, point, log in rows if point >= change]
    squares = sum(float(np.var(side)) * len(side) for side in (before, after)) / max(1, len(rows) - 2)
    return (float(np.mean(after) - np.mean(before))) ** 2 * (1 + drift) / max(squares, _LEAST**2), drift


def slowdown(rows: Sequence[Row], change: int) -> float:
    """Mean log cost after a change minus that before it, as far as drift allows: in pairs with a point on either
    side, else of all."""
    sides: dict[int, dict[bool, list[float]]] = {}
    for pair, point, log in rows:
        sides.setdefault(pair, {}).setdefault(point >= change, []).append(log)
    within = [float(np.mean(s[True]) - np.mean(s[False])) for s in sides.values() if len(s) == 2]
    return float(np.mean(within)) if within else math.nan
