"""Corrects the analytic training model by measurements of the job itself or of other jobs.

log(measured / predicted) is modelled as a Gaussian process over rows (measured or predicted configurations) with the
covariance

    u u' × ( LEVEL²                    everything is slower or faster than predicted
           + FAR × layouts )
  + e e' × ( JOB² [same job]           one job is slower or faster
           + SOFTWARE² [same software] one framework on one kind of device is slower or faster
           + (1 − FAR) × layouts [same software] )
  + NOISE²                             log error of one measurement, with

    layouts = EACH² Σₖ sₖ sₖ'   one part is slower; sₖ is its share of a row's time (as in a ridge regression)
            + LOCAL² exp(−d² / 2) × (1 [same job], else OTHERS)   similar layouts err alike for unknown reasons

where e is the error that the model states for a row without measurements, and u is e, but at most the smallest e of the
measured rows. If e exceeds u, as for mixtures of experts and for devices known only by a data sheet, almost all of the
second term is shared only with rows of the same job or software, so it hardly affects rows of other software.
Measurements of the same job count most, and measurements of the same framework and device less; all other measurements
hardly change how the layouts of a job compare. Outliers count less (Huber), so that one odd measurement does not move
all predictions. The posterior mean is the correction, its standard deviation the new error."""

from typing import NamedTuple

import numpy as np

from autoscout.simulate.member import Prediction

Array = np.ndarray
Parts = dict[str, Array]
# Prior standard deviations of the terms above, relative to a row's stated error: assumed, and checked on the published
# tables by tests/tools/ensemble_accuracy.py. NOISE is the log error of one measurement, assumed as 2 %.
LEVEL, JOB, SOFTWARE, EACH, LOCAL = 0.3, 0.25, 0.35, 0.4, 1.0
FAR, OTHERS = 0.2, 0.5
NOISE = 0.02
# most measured rows used (evenly spaced if there are more), because the time of a prediction grows with their square
MOST = 256
_BLOCK = 1 << 13  # rows corrected per block, in single precision
_OUTLIER = 2.0  # residuals farther from the median than this many stated errors count less


class Alike(NamedTuple):
    """The properties of n rows that the covariance compares. `layouts`: (n, knobs) log2(knob) / length scale; `job`,
    `software`: (n,) hashes."""

    layouts: Array
    job: Array
    software: Array


class _Rows(NamedTuple):
    """Rows in the form that the covariance needs. `shares`: (parts, n) share of each component in the predicted time;
    `claimed`, `usual`: (n,) the errors e and u in the module's docstring."""

    shares: Array
    alike: Alike
    claimed: Array
    usual: Array

    def take(self, rows: Array | slice) -> "_Rows":
        alike = Alike(*(of[rows] for of in self.alike))
        return _Rows(self.shares[:, rows], alike, self.claimed[rows], self.usual[rows])


class Correction:
    def __init__(self, parts: Parts, alike: Alike, error: Array, values: Array) -> None:
        """Fits the Gaussian process to measured `values`, ignoring rows without one. `parts`: (n,) predicted seconds of
        each component; `error`: (n,) stated errors."""
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
    """The rows in single precision, which saves time in large spaces."""
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
    """(n, m) 1 where a[i] = b[j], else 0; (1, 1) if a and b are each constant."""
    if np.ptp(a) == 0 and np.ptp(b) == 0:  # usual in a session, whose rows are all of one job
        return np.array([[a[0] == b[0]]], dtype=np.float32)
    return (a[:, None] == b).astype(np.float32)


def layout(columns: list[tuple[Array, float]], n: int) -> Array:
    """The array `Alike.layouts`, given (values, length scale) of each knob. A length scale is the number of doublings
    that count as a distance of 1."""
    return np.array([np.broadcast_to(np.log2(np.maximum(v, 0.5)), n) / length for v, length in columns]).T
