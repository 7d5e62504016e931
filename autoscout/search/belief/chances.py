"""The probability that a configuration qualifies: that it fits into memory, keeps the job's other constraints and does
not fail otherwise, given the simulators' forecasts.

    P(x runs) = P(x fits its memory) · Π_c P(x keeps constraint c)
              · P(x runs, given that it fits) · P(x runs, given the simulators' forecast)

An experiment's expected gain is multiplied by P(x runs)²: a failure gains nothing and teaches little, and expected
improvements are most exaggerated where nothing has run. The failure budget is the job's, or _AIM times the share of the
space that is believed to fail; one more failure is allowed if runs report how close they are to a bound. Each failure
beyond the budget doubles the exponent, so that a search is only as careful as necessary. (A search that ignored risk
until the budget is spent, and then tried only safe configurations, would spend half of its experiments where little can
be gained.) Probabilities based on reported peaks are more reliable, so their exponent may grow further. Beyond the
budget, configurations that probably break a constraint on a metric other than memory come last."""

from collections.abc import Mapping

import numpy as np
from scipy.special import log_ndtr

from autoscout.search.belief.encoding import EncodedRows, Encoding
from autoscout.search.belief.feasibility import Feasibility
from autoscout.search.belief.foreseen import MEMORY, Foreseen
from autoscout.search.belief.limits import Limits
from autoscout.search.belief.peaks import PeakBelief
from autoscout.search.belief.prior_means import Mean

_DARING = 2.0  # exponent of P(x runs) within the failure budget
# limits on the exponent of P(x runs). _MOST: in general; _MOST_OF_PEAKS: if runs report their peak memory.
_MOST, _MOST_OF_PEAKS = 32.0, 512.0
_AIM = 0.4  # default failure budget, as a share of the space's believed share of failures
_FREE = 1.0  # additional failures allowed if runs report how close they are to a bound
# The next three apply beyond the budget if runs report how close they are to a bound on a metric other than memory.
_CAREFUL = 6  # exponent of P(x runs)
_SURER, _LAST = 0.95, 1e-3  # _SURER: required P(x runs); _LAST: factor on the gain of candidates below _SURER
_LITTLE = 1e-5  # added to the gain of candidates above _SURER, which keeps them first even if all gains are tiny
_OFF, _OVER = 0.12, 1e3  # simulators' usual log error of memory; log-cost penalty of configurations that cannot fit
# prior probability that a predicted failure runs; number of experiments that this prior counts as
_FORECAST = (0.1, 5.0)


class Chances:
    def __init__(self, encoding: Encoding, means: list[Mean], allowed: float, foreseen: Foreseen) -> None:
        """`allowed`: share of the experiments that may fail; 0: the default (see _AIM). `foreseen`: simulators'
        forecasts of memory and of constraints."""
        self.feasibility, self.limits = Feasibility(encoding), Limits(encoding, foreseen)
        self.memory = PeakBelief(encoding, MEMORY in foreseen)
        self._foreseen, self._encoding = foreseen, encoding
        self._hinting = means
        self._allowed = allowed
        self.fails = 0.0  # believed share of failures in the space
        self._despite = [0, 0]  # among rows predicted to fail: [number that failed, number that ran]

    def tell(
        self, row: int, encoded: EncodedRows, ran: bool, full: float, for_memory: bool, over: Mapping[str, float]
    ) -> None:
        """Adds a result. `full`: log fullness of the memory (peaks.py); `for_memory`: whether the run failed for
        memory, which is not evidence for other failures; `over`: log excess over each other constraint (limits.py). A
        run that broke only constraints counts as having run."""
        rows = np.array([row])
        if (forecast := self._forecast(rows)) is not None and forecast[0] > 0.5:
            self._despite[ran] += 1
        if not np.isnan(full):
            self.memory.tell(self._for_memory(rows, encoded), full, float(self._foreseen.of(MEMORY, rows)[0]))
        self.limits.tell(rows, encoded, over)
        if not for_memory:
            ran = ran or any(y > 0 for y in over.values())
            self.feasibility.tell(self._for_others(rows, encoded), np.array([ran]))

    def fit(self) -> None:
        if self.feasibility.failed:
            self.feasibility.fit()

    def stale(self, growth: float) -> bool:
        """Whether the data on memory or on a constraint grew by this factor since the last fit."""
        return self.memory.stale(growth) or self.limits.stale(growth)

    def fit_bounds(self) -> None:
        self.memory.fit()
        self.limits.fit()

    def watch(self, rows: np.ndarray, encoded: EncodedRows) -> None:
        """Sets the m watched rows, whose probabilities `chance` computes."""
        self.feasibility.watch(self._for_others(rows, encoded))
        self.watch_bounds(rows, encoded)

    def watch_bounds(self, rows: np.ndarray, encoded: EncodedRows) -> None:
        self.memory.watch(self._for_memory(rows, encoded), self._foreseen.of(MEMORY, rows))
        self.limits.watch(rows, encoded)

    def turn(self, kept: np.ndarray, fresh: np.ndarray, encoded: EncodedRows) -> None:
        """Replaces the watched rows by those at the positions `kept`, followed by the `fresh` ones."""
        self.feasibility.turn(kept, self._for_others(fresh, encoded))
        self.memory.turn(kept, self._for_memory(fresh, encoded), self._foreseen.of(MEMORY, fresh))
        self.limits.turn(kept, fresh, encoded)

    def chance(self, rows: np.ndarray, importance: np.ndarray) -> np.ndarray:
        """(m,) probability of each watched row; rows with the largest `importance` (m,) are computed most precisely."""
        fits = self.memory.chance() * self.limits.chance() * self._against_forecast(rows)
        return np.ones(len(rows)) * fits * self.feasibility.chance(importance)

    def weighed(self, gain: np.ndarray, runs: np.ndarray, tried: int, failed: int) -> np.ndarray:
        """(m,) expected gains, discounted by the probability `runs` that each row runs. `tried`, `failed`: number of
        experiments and of failures so far."""
        reported = self.memory.reported or self.limits.reported
        beyond = failed - (self._allowed or _AIM * self.fails) * tried - _FREE * reported
        if beyond > 0 and self.limits.reported:
            likely = runs >= _SURER
            return gain * runs**_CAREFUL * np.where(likely, 1.0, _LAST) + np.where(likely, _LITTLE, 0.0)
        return gain * runs ** min(_DARING * 2 ** max(beyond, 0.0), _MOST_OF_PEAKS if self.memory.reported else _MOST)

    def risk(self, rows: np.ndarray) -> np.ndarray:
        """(n,) penalty on log-costs in the opening: −2 log P(x fits) by the simulators' forecast and its usual error,
        plus a large penalty for rows forecast to need at least as much memory as a row that ran out of memory."""
        if MEMORY not in self._foreseen:
            return np.zeros(len(rows))
        over = np.where(self.as_full_as_an_oom(rows), _OVER, 0.0)
        return over - _DARING * log_ndtr(-self._foreseen.of(MEMORY, rows) / _OFF)

    def as_full_as_an_oom(self, rows: np.ndarray) -> np.ndarray:
        """(n,) whether rows are forecast to need at least as much memory as a row that ran out of it."""
        foreseen = MEMORY in self._foreseen
        return self._foreseen.of(MEMORY, rows) >= (self.memory.least_over if foreseen else np.inf)

    def _against_forecast(self, rows: np.ndarray) -> np.ndarray | float:
        """(m,) probability that rows run, given the simulators' forecast: 0.1 where they predict a failure, updated by
        results. 1 if forecasts of the peak memory are in use, which are better evidence."""
        forecast = self._forecast(rows)
        if forecast is None or self.memory.heeds:
            return 1.0
        believed, worth = _FORECAST
        failed, ran = self._despite
        return 1 - forecast * (1 - (ran + believed * worth) / (failed + ran + worth))

    def _forecast(self, rows: np.ndarray) -> np.ndarray | None:
        """(n,) 1 where a simulator predicts a failure, else 0; None if no simulator predicts failures."""
        forecasts = [mean.fails[rows] for mean in self._hinting if mean.foresees and mean.fails is not None]
        return np.max(forecasts, axis=0) if forecasts else None

    def _for_others(self, rows: np.ndarray, encoded: EncodedRows) -> tuple[np.ndarray, np.ndarray]:
        return self.feasibility.features(encoded, self._hints(rows))

    def _for_memory(self, rows: np.ndarray, encoded: EncodedRows) -> EncodedRows:
        """The encoding for the memory model, which excludes knobs that cannot affect device memory. If no simulator
        forecasts memory, predicted failures are additional regressors."""
        encoded = self._encoding.of_memory(encoded)
        hints = None if MEMORY in self._foreseen else self._hints(rows)
        return (
            encoded if hints is None else EncodedRows(encoded.points, np.concatenate([encoded.effects, hints], axis=1))
        )

    def _hints(self, rows: np.ndarray) -> np.ndarray | None:
        """(n, H) predicted failures, with a column per prior mean that predicts failures."""
        hints = [mean.fails[rows] for mean in self._hinting if mean.fails is not None]
        return np.stack(hints, axis=1) if hints else None
