"""Corrects the analytic model by measured rows of the job itself, or of other jobs.

The logarithm of measured / predicted is a Gaussian process over rows, with the covariance

    u u' × ( LEVEL²                    everything is slower or faster than predicted
           + FAR × layouts )
  + e e' × ( JOB² [same job]           one job is slower or faster
           + SOFTWARE² [same software] one framework on one kind of device is
           + (1 − FAR) × layouts [same software] )
  + NOISE²                             log error of one measurement, with

    layouts = EACH² Σₖ sₖ sₖ'   one part is slower; sₖ is its share of a row's time (a ridge on the parts' log factors)
            + LOCAL² exp(−d² / 2) × (OTHERS or 1 [same job])   similar layouts err alike for unknown reasons

e is the error that a row claims without measured rows; u is the smallest error that any row claims. Errors beyond u (of
a device known only by its data sheet, of experts) are shared at most with rows of the same software, so they hardly
affect other rows. A job's own rows count most, those of the same framework and device less, and the rest hardly change
how the layouts of a job compare. Outliers count less (Huber), so that one odd measurement does not move all
predictions. The posterior mean is the correction, and its spread the new error.
"""

from typing import NamedTuple

import numpy as np

from autoscout.simulate.member import Prediction

Array = np.ndarray
Parts = dict[str, Array]
# Prior standard deviations of the terms in the docstring, relative to a row's claimed error: assumed, and checked
# against the published tables by tests/tools/ensemble_accuracy.py. NOISE is the log error of one measurement, 2 %.
LEVEL, JOB, SOFTWARE, EACH, LOCAL = 0.3, 0.25, 0.35, 0.4, 1.0
FAR, OTHERS = 0.2, 0.5
NOISE = 0.02
MOST = 256  # most rows used, evenly spaced if there are more: the time to correct a space grows with their square
_BLOCK = 1 << 13  # rows corrected per block, in single precision
_OUTLIER = 2.0  # residuals farther from the median than this many claimed errors count less


class Alike(NamedTuple):
    """Inputs of the covariance, (n, …) each. `layouts`: (n, knobs), logarithms to base 2 over each knob's length scale;
    `job`, `software`: (n,) numbers, equal for equal ones."""

    layouts: Array
    job: Array
    software: Array


class _Rows(NamedTuple):
    """Shares of the parts (parts, n), inputs of the covariance, the error that each row claims (e), and the smallest
    claimed error (u); (n,) each."""

    shares: Array
    alike: Alike
    claimed: Array
    usual: Array

    def take(self, rows: Array | slice) -> "_Rows":
        alike = Alike(*(of[rows] for of in self.alike))
        return _Rows(self.shares[:, rows], alike, self.claimed[rows], self.usual[rows])


class Correction:
    def __init__(self, parts: Parts, alike: Alike, error: Array, values: Array) -> None:
        """Rows without a value are left out."""
        total = np.sum(list(parts.values()), axis=0)
        usable = np.flatnonzero(np.isfinite(values) & (values > 0) & np.isfinite(total))
        usable = usable[:: -(-len(usable) // MOST) or 1]
        self.names, self.least = list(parts), float(error[usable].min(initial=np.inf))
        self.known = known = self._rows(parts, alike, error).take(usable)
        residual = np.log(values[usable] / total[usable])
        spread = np.full(len(residual), NOISE)
        for _ in range(5):
            self.inverse = np.linalg.inv(_covariance(known, known) + np.diag(spread**2))
            self.weights = self.inverse @ residual
            far = np.abs(residual - np.median(residual)) / (_OUTLIER * known.claimed)
            spread = NOISE * np.maximum(far, 1) + 0.5 * known.claimed * (far > 1)

    def apply(self, parts: Parts, alike: Alike, error: Array) -> Prediction:
        asked, known = _single(self._rows(parts, alike, error)), _single(self.known)
        layouts = LOCAL**2 + EACH**2 * (asked.shares**2).sum(axis=0)
        before = asked.usual**2 * (LEVEL**2 + FAR * layouts)
        before += asked.claimed**2 * (JOB**2 + SOFTWARE**2 + (1 - FAR) * layouts)
        shift, explained = np.empty(len(before)), np.empty(len(before))
        weights, root = self.weights.astype(np.float32), np.linalg.cholesky(self.inverse).astype(np.float32)
        for start in range(0, len(before), _BLOCK):
            some = slice(start, start + _BLOCK)
            cross = _covariance(asked.take(some), known)
            shift[some] = cross @ weights
            explained[some] = np.square(cross @ root).sum(axis=1)
        variance = before - explained + NOISE**2
        factor = np.exp(shift)
        return Prediction(
            value=factor * np.sum(list(parts.values()), axis=0),
            error=np.minimum(np.sqrt(np.maximum(variance, NOISE**2)), error),
            parts={name: factor * part for name, part in parts.items()},
        )

    def _rows(self, parts: Parts, alike: Alike, error: Array) -> _Rows:
        matrix = np.array([parts[name] for name in self.names])
        return _Rows(matrix / matrix.sum(axis=0), alike, error, np.minimum(error, self.least))


def _single(rows: _Rows) -> _Rows:
    """The rows in single precision, since spaces are large."""
    alike = rows.alike._replace(layouts=rows.alike.layouts.astype(np.float32))
    shares, claimed, usual = (each.astype(np.float32) for each in (rows.shares, rows.claimed, rows.usual))
    return _Rows(shares, alike, claimed, usual)


def _covariance(a: _Rows, b: _Rows) -> Array:
    x, z = a.alike.layouts, b.alike.layouts
    distance = np.maximum((x**2).sum(axis=1)[:, None] + (z**2).sum(axis=1) - 2 * x @ z.T, 0)
    job, software = (_same(mine, its) for mine, its in zip(a.alike[1:], b.alike[1:], strict=True))
    layouts = EACH**2 * a.shares.T @ b.shares + LOCAL**2 * np.exp(-distance / 2) * (OTHERS + (1 - OTHERS) * job)
    own = JOB**2 * job + SOFTWARE**2 * software + (1 - FAR) * software * layouts
    everyones = LEVEL**2 + FAR * layouts
    return np.outer(a.usual, b.usual) * everyones + np.outer(a.claimed, b.claimed) * own


def _same(a: Array, b: Array) -> Array:
    """(n, m) or (1, 1): 1 where rows of a and b are equal, else 0."""
    if np.ptp(a) == 0 and np.ptp(b) == 0:  # all rows are of one job, as in a session
        return np.array([[a[0] == b[0]]], dtype=np.float32)
    return (a[:, None] == b).astype(np.float32)


def layout(columns: list[tuple[Array, float]], n: int) -> Array:
    """(n, knobs) of (values, length): two rows that differ by `length` doublings of a knob are one apart."""
    return np.array([np.broadcast_to(np.log2(np.maximum(v, 0.5)), n) / length for v, length in columns]).T
