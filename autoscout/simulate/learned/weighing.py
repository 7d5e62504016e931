"""Computes the weights of the ensemble's members from their predictions of held-out rows.

Notation: y (n,) log of the measured values; L (n, m) log predictions of m members, NaN where a member has none; E (n,
m) their stated errors, as standard deviations of log(value); s (m,) each member's usual error (see `usual_errors`); w
(m,) weights. A miss is log(predicted / measured). All constants below are assumed, not fitted."""

import math

import numpy as np

SPAN = 1.6449  # half-width of a normal distribution's central 90 %, in standard deviations
_COVERAGE = 0.9  # nominal coverage of the printed intervals
_PRIOR_ROWS = 4.0  # number of measured rows that a member's stated error counts as
_PRIOR_CHECKS = 4.0  # number of held-out rows that the ensemble's stated spread counts as
_QUANTILE_ROWS = 30  # from this number of held-out rows on, intervals are empirical quantiles
_OUTLIER = 5.0  # misses are clipped at this multiple of their median absolute value
_USELESS = 0.6  # members with a larger usual log error are not used as a fallback
_LOST = 0.9  # a row on which over this share of the weight is lost gets no prediction if all errors exceed _USELESS
_MOST_ALIKE = 0.95  # cap on the correlation of residuals within a job
_LEAST = 0.05  # members with less than this share of the largest weight are dropped


def r_squared(y: np.ndarray, L: np.ndarray) -> np.ndarray:
    """(m,) R² of the values, not of the log values; −inf for members that could not predict every row."""
    values, predicted = np.exp(y), np.exp(L)
    spread = len(y) * values.var() if len(y) else 0.0
    if spread == 0:
        return np.full(L.shape[1], -np.inf)
    return np.nan_to_num(1 - ((values[:, None] - predicted) ** 2).sum(0) / spread, nan=-np.inf)


def published(y: np.ndarray, L: np.ndarray) -> np.ndarray:
    """Equation 2 (AutoScout paper): wᵢ = max(0, Rᵢ²) / Σ max(0, Rⱼ²); all zero if no member explains held-out rows."""
    positive = np.maximum(0.0, r_squared(y, L))
    return positive / positive.sum() if positive.sum() > 0 else positive


def usual_errors(y: np.ndarray, L: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """(m,) s: root mean square of the held-out misses, in which the `prior` error (m,) counts as _PRIOR_ROWS rows."""
    misses = L - y[:, None]
    known = np.isfinite(misses)
    squares = np.where(known, _held(misses), 0.0) ** 2
    return np.sqrt((_PRIOR_ROWS * prior**2 + squares.sum(0)) / (_PRIOR_ROWS + known.sum(0)))


def _held(misses: np.ndarray) -> np.ndarray:
    """(n, m) misses, clipped at _OUTLIER times the member's median |miss|, so that one bad row hardly changes s."""
    usual = [np.median(np.abs(m[np.isfinite(m)])) if np.isfinite(m).any() else 0.0 for m in misses.T]
    most = _OUTLIER * np.array(usual) + 1e-3
    return np.clip(misses, -most, most)


def by_precision(s: np.ndarray) -> np.ndarray:
    """wᵢ ∝ 1/sᵢ², the weights before any row is held out."""
    return (1 / s**2) / (1 / s**2).sum()


def stacked(
    y: np.ndarray,
    L: np.ndarray,
    s: np.ndarray,
    jobs: np.ndarray | None = None,
    start: np.ndarray | None = None,
    worth: float = _PRIOR_ROWS,
) -> np.ndarray:
    """The weights w ≥ 0, Σ w = 1, that minimize (y − L·w)ᵀ Σ⁻¹ (y − L·w) + λ‖w − w₀‖². w₀ is `start`, by default
    weights by precision, and λ is chosen so that w₀ counts as `worth` rows. `jobs` (n,): rows with the same number have
    correlated errors, Σ = σ² (1 + ρ / (1 − ρ) [same job]), with σ² the variance of a row within its job. With a strong
    correlation ρ, the rows of a job together count little for its mean error, but fully for comparing its layouts
    (generalized least squares)."""
    from scipy.optimize import nnls

    start = by_precision(s) if start is None else start
    if len(y) == 0:
        return start
    filled = np.where(np.isfinite(L), L, y[:, None] + 3 * s)  # a missing prediction counts as a miss of 3 s
    misses, alone = _whitened(_trusted(filled - y[:, None]), start, jobs)
    pull = math.sqrt(worth * alone) * s  # √λ, in the units of the misses
    firm = 1e3 * float(np.abs(misses).max() + pull.max())  # weight of the equation Σ w = 1
    a = np.concatenate([misses, np.diag(pull), np.full((1, len(s)), firm)])
    b = np.concatenate([np.zeros(len(y)), pull * start, [firm]])
    return without_small(nnls(a, b)[0])


def _whitened(misses: np.ndarray, start: np.ndarray, jobs: np.ndarray | None) -> tuple[np.ndarray, float]:
    """((n, m) misses times √(1 − ρ) Σ^−½, 1 − ρ). 1 − ρ is the within-job share of a row's variance, estimated from the
    misses under the weights `start` (analysis of variance)."""
    if jobs is None:
        return misses, 1.0
    _, job, rows = np.unique(jobs, return_inverse=True, return_counts=True)
    free = len(misses) - len(rows)
    combined = misses @ start
    within = combined - (np.bincount(job, combined) / rows)[job]
    whole = float(np.mean(combined**2))
    if free == 0 or whole == 0:
        return misses, 1.0
    alone = float(np.clip((within**2).sum() / free / whole, 1 - _MOST_ALIKE, 1.0))
    kept = 1 - np.sqrt(alone / (alone + rows * (1 - alone)))
    means = np.stack([np.bincount(job, each) / rows for each in misses.T], axis=1)
    return misses - (kept[:, None] * means)[job], alone


def _trusted(misses: np.ndarray) -> np.ndarray:
    """The misses of each row times its Huber weight. A row that even the best member misses by far counts less, because
    it favours members that are biased in its direction."""
    least = np.abs(misses).min(1)
    most = _OUTLIER * np.median(least) + 1e-3
    return misses * np.minimum(1.0, most / np.maximum(least, most))[:, None]


def without_small(w: np.ndarray) -> np.ndarray:
    w = np.where(w < _LEAST * w.max(), 0.0, w)
    return w / w.sum()


def doubt(s: np.ndarray, L: np.ndarray, E: np.ndarray) -> np.ndarray:
    """(n, m) share of its weight that a member keeps on a row: below 1 where its stated error exceeds its usual error,
    0 without a prediction."""
    left = np.where(s < E, (s / np.maximum(np.nan_to_num(E, nan=np.inf), 1e-12)) ** 2, 1.0)
    return np.where(np.isfinite(L), left, 0.0)


def on_rows(w: np.ndarray, s: np.ndarray, L: np.ndarray, E: np.ndarray) -> np.ndarray:
    """(n, m) weights by row. The weight that members lose (see `doubt`) goes to the members with the smallest stated
    errors on the row, including members with w = 0, in proportion to squared precision, so that many bad members do not
    outweigh a good one. A row's weights sum to 1, or to 0 if it has no prediction, or only guesses (see _LOST)."""
    kept = w * doubt(s, L, E)
    lost = np.maximum(1.0 - kept.sum(1, keepdims=True), 0.0)
    precision = np.where(np.isfinite(L) & (s < _USELESS), 1 / np.maximum(np.nan_to_num(E, nan=1e6), s) ** 4, 0.0)
    total = precision.sum(1, keepdims=True)
    share = np.divide(precision, total, out=np.zeros_like(precision), where=total > 0)
    found = np.where(total > 0, kept + lost * share, kept / np.maximum(kept.sum(1, keepdims=True), 1e-300))
    claimed = np.where(np.isfinite(L), np.maximum(np.nan_to_num(E, nan=np.inf), s), np.inf)
    guess = (lost > _LOST) & (claimed.min(1, keepdims=True) > _USELESS)
    return np.where(guess, 0.0, found)


def combine(
    rows: np.ndarray, s: np.ndarray, L: np.ndarray, E: np.ndarray, log: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """((n,) log of the weighted mean, (n,) standard deviation of log(value)) from (n, m) weights. The deviation
    combines the members' errors (the larger of stated and usual) and their disagreement. `log`: average logs instead of
    values."""
    nobody = rows.sum(1) == 0
    filled = np.where(rows > 0, L, 0.0)
    mean = (rows * filled).sum(1) if log else np.log(np.where(nobody, 1.0, (rows * np.exp(filled)).sum(1)))
    claimed = np.where(rows > 0, np.maximum(np.nan_to_num(E), s), 0.0)
    spread = np.sqrt((rows * (claimed**2 + (filled - mean[:, None]) ** 2)).sum(1))
    return np.where(nobody, np.nan, mean), np.where(nobody, np.nan, np.maximum(spread, 1e-4))


def _students(freedom: float) -> float:
    """Half-width of the central 90 % of Student's t with `freedom` degrees of freedom."""
    from scipy.special import stdtrit  # imported here to save half a second if no row was measured

    return float(stdtrit(freedom, (1 + _COVERAGE) / 2))


def stretch(y: np.ndarray, mean: np.ndarray, spread: np.ndarray, jobs: int = 0) -> float:
    """The factor on `spread` with which ±1.64 spreads cover 90 % of new rows, calibrated on held-out rows.

    With many rows, it is the conformal quantile of the normalised misses (Lei et al., 2018). With few, it follows from
    Student's t and their root mean square, in which the stated spread counts as _PRIOR_CHECKS rows. `jobs` > 0: that
    many whole jobs were held out, so only that many misses are independent, and Student's t widens the interval."""
    z = np.abs(y - mean) / spread
    z = z[np.isfinite(z)]
    n = len(z)
    if n == 0:  # no row could be held out
        return _students(_PRIOR_CHECKS) / SPAN
    if n >= _QUANTILE_ROWS:
        found = float(np.sort(z)[min(n, math.ceil(_COVERAGE * (n + 1))) - 1]) / SPAN
        return found * (_students(_PRIOR_CHECKS + jobs) / SPAN if jobs else 1.0)
    scale = math.sqrt((_PRIOR_CHECKS + float((z**2).sum())) / (_PRIOR_CHECKS + n))
    return scale * _students(_PRIOR_CHECKS + (jobs or n)) / SPAN


def stretch_of_wholes(y: np.ndarray, mean: np.ndarray, spread: np.ndarray, whole: np.ndarray) -> float:
    """Like `stretch`, for rows of a new group, given that whole groups were held out (`whole` (n,): each row's group,
    0, 1, …). Errors in a group are correlated, so each group counts as one miss, the root mean square of its rows."""
    squares = ((y - mean) / spread) ** 2
    known = np.isfinite(squares)
    rows = np.bincount(whole[known])
    each = np.bincount(whole[known], squares[known])[rows > 0] / rows[rows > 0]
    freedom = _PRIOR_CHECKS + len(each)
    return math.sqrt((_PRIOR_CHECKS + float(each.sum())) / freedom) * _students(freedom) / SPAN
