"""Corrects each phase of a predicted RL iteration by runs that timed the phase.

A knob changes some phases and leaves others as they are, so each phase has a correction of its own: log(measured /
predicted) of a phase is a Gaussian process over configurations, with the covariance

    LEVEL²               the whole phase is slower or faster than predicted
    + EACH² Σₖ sₖ sₖ'    one component is; sₖ is its share of the phase's predicted time
    + LOCAL² exp(−d²/2)  similar layouts err alike for unknown reasons (d: distance of layouts, correction.layout)
    + NOISE²             two runs differ

The posterior mean is the correction, its standard deviation the error."""

import numpy as np

Array = np.ndarray
Parts = dict[str, Array]
# Prior standard deviations of the log ratio: assumed. A level of 0.7 lets a single run correct a factor of two; a
# component may be wrong by half.
LEVEL, EACH, LOCAL, NOISE = 0.7, 0.5, 0.1, 0.05


class PhaseCorrection:
    def __init__(self, parts: Parts, layouts: Array, measured: Array) -> None:
        """`parts`: (n,) predicted seconds of the phase's components; `layouts`: (n, knobs); `measured`: (n,) seconds,
        NaN where nothing timed the phase."""
        total = np.sum([*parts.values()], axis=0)
        known = np.isfinite(measured) & (measured > 0) & (total > 0)
        self.names, self.layouts = [*parts], layouts[known]
        self.shares = self._shares(parts)[:, known]
        residual = np.log(measured[known] / total[known])
        covariance = self._covariance(self.shares, self.layouts) + NOISE**2 * np.eye(len(residual))
        self.inverse = np.linalg.inv(covariance)
        self.weights = self.inverse @ residual

    def apply(self, parts: Parts, layouts: Array) -> tuple[Array, Array]:
        """((n,) factors on the phase's seconds, (n,) their log errors)."""
        shares = self._shares(parts)
        cross = self._covariance(shares, layouts)
        before = LEVEL**2 + EACH**2 * (shares**2).sum(axis=0) + LOCAL**2 + NOISE**2
        explained = ((cross @ self.inverse) * cross).sum(axis=1)
        return np.exp(cross @ self.weights), np.sqrt(np.maximum(before - explained, NOISE**2))

    def _shares(self, parts: Parts) -> Array:
        each = np.array([parts[name] for name in self.names])
        return each / np.maximum(each.sum(axis=0), 1e-12)

    def _covariance(self, shares: Array, layouts: Array) -> Array:
        distance = np.square(layouts[:, None, :] - self.layouts).sum(axis=2)
        return LEVEL**2 + EACH**2 * shares.T @ self.shares + LOCAL**2 * np.exp(-distance / 2)
