"""Machines with a second, slower speed: for example, one run in ten takes twice the time, or half of all runs take 1.3
times as long.

    log cost = configuration + round + δ z + ε,   z = 1 in slow runs

Least squares would treat slow runs as noise, which hides every gain smaller than the slowdown. So runs are divided into
usual and slow ones if such a division is more probable than noise alone. A priori, all numbers of slow runs are equally
probable, and so are all divisions with the same number. Effects and the logarithm of the noise are integrated out over
flat priors, and δ over the range of the costs (Box and Tiao, Bayesian Inference in Statistical Analysis, 1973). The
slow runs either share one δ, or each has its own and carries no information. Configurations are compared at the
machine's usual speed, and a claim must be true for every division that is not improbable."""

import math

import msgspec
import numpy as np
from scipy.special import gammaln

from autoscout.tuning.repeats import FLOOR, QUIET

_SURE = 0.99  # probability that one of the returned divisions is right
_MOST = 0.5  # largest share of slow runs if each has its own δ
_LOOKED_AT = 60  # largest number of divisions; if that many are plausible, none is used
_DRAWN = 8  # number of random divisions from which the search starts, in addition to one for each run
EXPECTED = 0.2  # prior standard deviation of a log gain


Found = dict[tuple[bytes, bool], float]  # (bit mask of the slow runs, whether they share one δ) → log evidence


class Division(msgspec.Struct, frozen=True):
    """A division of n runs into usual and slow ones. `slow`: (n,) whether each run was slow; `shared`: whether the slow
    runs share one δ."""

    slow: np.ndarray
    shared: bool


def divisions(design: np.ndarray, y: np.ndarray, configurations: int) -> list[Division]:
    """Divisions of the runs into usual and slow ones, most probable first, of which one is right with probability
    _SURE; [] if none is needed. `y`: (n,) log-costs of the runs; `design`: (n, p) columns of the linear model, of which
    the first `configurations` are the configurations."""
    n = len(y)
    inverse = np.linalg.pinv(design, rcond=1e-9)
    left_over = np.eye(n) - design @ inverse
    off = left_over @ y
    dof = round(float(np.trace(left_over)))
    if dof < 3 or off @ off <= dof * QUIET**2:
        return []
    nothing = np.packbits(np.zeros(n, dtype=bool)).tobytes(), False
    found: Found = {nothing: float(_log_evidence(off @ off, dof))}
    width = math.log(float(np.ptp(off)) + FLOOR)
    _two_speeds(found, left_over, off, dof, width)
    _outliers(found, left_over, off, dof, width)
    order = sorted(found, key=lambda each: -found[each])[:_LOOKED_AT]
    each = [Division(np.unpackbits(np.frombuffer(bits, np.uint8), count=n).astype(bool), kind) for bits, kind in order]
    effects = inverse[:configurations]
    likely = np.array(
        [found[key] - _unlikely(effects, off, y, left_over, d) for key, d in zip(order, each, strict=True)]
    )
    by = np.argsort(-likely, kind="stable")
    weights = np.exp(likely[by] - likely[by[0]])
    last = int(np.searchsorted(np.cumsum(weights), _SURE * weights.sum()))
    sure = [each[i] for i in by[: last + 1]]
    return sure if len(sure) < _LOOKED_AT and all(d.slow.any() for d in sure) else []


def _unlikely(effects: np.ndarray, off: np.ndarray, y: np.ndarray, left_over: np.ndarray, by: Division) -> float:
    """− log prior density, up to a constant, of the differences between configurations that a division implies. This
    counts against divisions in which all runs of one configuration are slow, since it then seems faster by δ."""
    shift, at = np.zeros(len(y)), np.flatnonzero(by.slow)
    if by.shared and len(at):
        shift[at] = off[at].sum() / left_over[np.ix_(at, at)].sum()
    elif len(at):
        shift[at] = np.linalg.solve(left_over[np.ix_(at, at)], off[at])
    levels = effects @ (y - shift)
    return 0.5 * float(((levels - levels.mean()) ** 2).sum()) / EXPECTED**2


def _log_evidence(squares: float | np.ndarray, dof: int) -> np.ndarray:
    """Log evidence of noise with the given sum of squares, up to a constant that is equal for all divisions."""
    return gammaln(dof / 2) - dof / 2 * np.log(math.pi * (np.maximum(squares, 0) + dof * FLOOR**2))


def _divisions(n: int, slow: np.ndarray | int) -> np.ndarray:
    """− log prior of a division of n runs, `slow` of which are slow: log(number of such divisions × n)."""
    return gammaln(n + 1) - gammaln(slow + 1.0) - gammaln(n - slow + 1.0) + math.log(n)


def _two_speeds(found: Found, left_over: np.ndarray, off: np.ndarray, dof: int, width: float) -> None:
    """Adds divisions with one δ to `found`: local searches from several starts change one run between slow and usual as
    long as the log evidence grows; then all divisions that differ from their results in one run are added, too."""
    n, squares, diagonal = len(off), off @ off, np.diag(left_over)
    drawn = np.random.default_rng(0).random((_DRAWN, n)) < 0.5
    z = np.vstack([off[None] >= off[:, None], drawn]).astype(float)  # (starts, n)
    changes = np.hstack([np.zeros((n, 1)), np.eye(n)])
    while True:  # ends, because the log evidence grows each time
        sign = 1 - 2 * z
        alongs = (z @ off)[:, None] + (sign * off) @ changes
        lengths = ((z @ left_over) * z).sum(axis=1)[:, None] + (2 * sign * (z @ left_over) + diagonal) @ changes
        count = z.sum(axis=1)[:, None] + sign @ changes
        apart = lengths > 1e-6
        lengths = np.where(apart, lengths, 1.0)
        value = _log_evidence(squares - alongs**2 / lengths, dof - 1) - _divisions(n, count) - 0.5 * np.log(lengths)
        # (starts, 1 + n): first without a change, then with run i changed
        value = np.where(apart, value - width, -math.inf)
        at = np.where(value.max(axis=1) > value[:, 0] + 1e-9, value.argmax(axis=1), 0)
        if not at.any():
            break
        moving = np.flatnonzero(at)
        z[moving, at[moving] - 1] = 1 - z[moving, at[moving] - 1]
    distinct = np.unique(z, axis=0, return_index=True)[1]
    around = np.abs(z[distinct][:, None] - changes.T[None]).reshape(-1, n).astype(bool)
    values = value[distinct].ravel()
    best = np.argsort(-values, kind="stable")[: 4 * _LOOKED_AT]  # with a margin, since there are duplicates
    around = around[best] ^ (around[best] @ off < 0)[:, None]
    for slow, each in zip(np.packbits(around, axis=1), values[best].tolist(), strict=True):
        if math.isfinite(each):
            found[slow.tobytes(), True] = each


def _outliers(found: Found, left_over: np.ndarray, off: np.ndarray, dof: int, width: float) -> None:
    """Adds divisions whose slow runs each have their own δ to `found`, greedily by the run that stands out most."""
    n, m, r, out = len(off), left_over.copy(), off.copy(), np.zeros(len(off), dtype=bool)
    volume = 0.0
    for count in range(1, min(int(_MOST * n), dof - 2) + 1):
        own = np.diag(m)
        stands = np.where((own > 1e-6) & ~out & (r > 0), r**2 / np.maximum(own, 1e-6), -1.0)
        at = int(np.argmax(stands))
        if stands[at] < 0:
            break
        for other in np.flatnonzero(stands >= 0):
            slow = out.copy()
            slow[other] = True
            value = _log_evidence(r @ r - stands[other], dof - count) - _divisions(n, count)
            value -= count * width + 0.5 * (volume + math.log(own[other]))
            found[np.packbits(slow).tobytes(), False] = float(value)
        volume += math.log(own[at])
        r, m = r - m[at] * r[at] / own[at], m - np.outer(m[at], m[at]) / own[at]
        out[at] = True
