"""Corrects the analytic model by measured rows of the job itself, or of other jobs.

The logarithm of measured / predicted is a Gaussian process over rows, with the covariance

    LEVEL²                      everything is slower or faster than predicted
  + JOB² [same job]             so is one job
  + SOFTWARE² [same software]   so is what runs one framework on one kind of device
  + (FAR or 1 [same software]) ×
        ( EACH² Σₖ sₖ sₖ'       one part is slower; sₖ is its share of a row's time (a ridge on the parts' log factors)
        + LOCAL² exp(−d² / 2) × (OTHERS or 1 [same job]) )   like layouts err alike, for reasons that no part knows
  + NOISE²                      of one measurement,

all but NOISE (a log error) as shares of the error claimed without measured rows. So a job's own rows say most, those of
the same framework and device less, and those of others hardly change how the layouts of a job compare. Outliers count
less (Huber), so that one odd measurement does not move all others. The posterior mean is the correction, its spread the
new error.
"""

from typing import NamedTuple

import numpy as np

from autoscout.simulate.member import Prediction

Array = np.ndarray
Parts = dict[str, Array]
LEVEL, JOB, SOFTWARE, EACH, LOCAL = 0.3, 0.25, 0.35, 0.4, 1.0
FAR, OTHERS = 0.2, 0.5
NOISE = 0.02
MOST = 256  # rows, evenly spaced ones of more: the time to correct a space grows with their square
_BLOCK = 1 << 13  # rows corrected per block, in single precision
_OUTLIER = 2.0  # claimed errors from the median residual beyond which a row counts less


class Alike(NamedTuple):
    """What makes rows err alike, (n, …) each. `layouts`: (n, knobs), logarithms to base 2 over each knob's length
    scale; `job`, `software`: (n,) numbers, equal for equal ones."""

    layouts: Array
    job: Array
    software: Array

    def take(self, rows: Array | slice) -> "Alike":
        return Alike(self.layouts[rows].astype(np.float32), self.job[rows], self.software[rows])


class Correction:
    def __init__(self, parts: Parts, alike: Alike, error: Array, values: Array) -> None:
        """Rows without a value are left out."""
        total = np.sum(list(parts.values()), axis=0)
        usable = np.flatnonzero(np.isfinite(values) & (values > 0) & np.isfinite(total))
        usable = usable[:: -(-len(usable) // MOST) or 1]
        self.claimed = float(np.median(error[usable])) if len(usable) else 0.0
        self.names = list(parts)
        self.shares = self._shares(parts)[:, usable]
        self.alike = Alike(*(of[usable] for of in alike))
        residual = np.log(values[usable] / total[usable])
        spread = np.full(len(residual), NOISE)
        for _ in range(5):
            covariance = self._covariance(self.shares, self.alike) + np.diag(spread**2)
            self.inverse = np.linalg.inv(covariance)
            self.weights = self.inverse @ residual
            far = np.abs(residual - np.median(residual)) / (_OUTLIER * self.claimed)
            spread = NOISE * np.maximum(far, 1) + 0.5 * self.claimed * (far > 1)

    def apply(self, parts: Parts, alike: Alike, error: Array) -> Prediction:
        shares = self._shares(parts).astype(np.float32)
        before = LEVEL**2 + JOB**2 + SOFTWARE**2 + LOCAL**2 + EACH**2 * (shares**2).sum(axis=0)
        before = before * self.claimed**2
        shift, explained = np.empty(len(before)), np.empty(len(before))
        known = self.shares.astype(np.float32), self.alike.take(slice(None))
        weights, root = self.weights.astype(np.float32), np.linalg.cholesky(self.inverse).astype(np.float32)
        for start in range(0, len(before), _BLOCK):
            some = slice(start, start + _BLOCK)
            cross = self._covariance(shares[:, some], alike.take(some), *known)
            shift[some] = cross @ weights
            explained[some] = np.square(cross @ root).sum(axis=1)
        variance = before - explained + NOISE**2
        factor = np.exp(shift)
        return Prediction(
            value=factor * np.sum(list(parts.values()), axis=0),
            error=np.minimum(np.sqrt(np.maximum(variance, NOISE**2)), error),
            parts={name: factor * part for name, part in parts.items()},
        )

    def _shares(self, parts: Parts) -> Array:
        matrix = np.array([parts[name] for name in self.names])
        return matrix / matrix.sum(axis=0)

    def _covariance(self, s: Array, a: Alike, t: Array | None = None, b: Alike | None = None) -> Array:
        t, b = s if t is None else t, a if b is None else b
        x, z = a.layouts, b.layouts
        distance = np.maximum((x**2).sum(axis=1)[:, None] + (z**2).sum(axis=1) - 2 * x @ z.T, 0)
        job, software = _same(a.job, b.job), _same(a.software, b.software)
        near = LOCAL**2 * np.exp(-distance / 2) * (OTHERS + (1 - OTHERS) * job)
        kin = FAR + (1 - FAR) * software
        levels = LEVEL**2 + JOB**2 * job + SOFTWARE**2 * software
        return self.claimed**2 * (levels + kin * (EACH**2 * s.T @ t + near))


def _same(a: Array, b: Array) -> Array:
    """(n, m) or (1, 1): 1 where they are equal."""
    if np.ptp(a) == 0 and np.ptp(b) == 0:  # one job, as in a session
        return np.array([[a[0] == b[0]]], dtype=np.float32)
    return (a[:, None] == b).astype(np.float32)


def layout(columns: list[tuple[Array, float]], n: int) -> Array:
    """(n, knobs) of (values, length): two rows that differ by `length` doublings of a knob are one apart."""
    return np.array([np.broadcast_to(np.log2(np.maximum(v, 0.5)), n) / length for v, length in columns]).T
