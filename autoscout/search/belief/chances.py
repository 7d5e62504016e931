"""The chance that a configuration qualifies: that it fits its memory, keeps the job's other constraints and does not
fail otherwise, given what simulators foresee.

    P(x runs) = P(x fits its memory) · Π_c P(x keeps constraint c)
              · P(x runs, given that it fits) · P(x runs, given what simulators foresee)

An experiment's expected gain is multiplied by P(x runs)²: a failure gains nothing and teaches little, and expected
improvements are most inflated where nothing ever ran. Each failure beyond the budget of failures doubles the exponent,
so that a search is only as careful as it must be. (A search that ignores risk until the budget is spent, and then tries
only safe configurations, spends half of its experiments where little can be gained.) The budget is the job's, or less
than half of the share of the space that is believed to fail. If runs report how near they are to a bound, one more
failure is allowed. Chances that rest on reported peaks are more reliable and are enforced more strictly. Beyond the
budget, configurations that probably break a bound on another metric come last.
"""

from collections.abc import Mapping

import numpy as np
from scipy.special import log_ndtr

from autoscout.search.belief.encoding import EncodedRows, Encoding
from autoscout.search.belief.feasibility import Feasibility
from autoscout.search.belief.foreseen import MEMORY, Foreseen
from autoscout.search.belief.limits import Limits
from autoscout.search.belief.peaks import PeakBelief
from autoscout.search.belief.prior_means import Mean

_DARING = 2.0  # exponent on the probability of running, within the failure budget
_MOST, _MOST_OF_PEAKS = 32.0, 512.0  # largest exponents: in general, and if runs report their memory
_AIM = 0.4  # failure budget over the share of the space believed to fail; so less than half fail, opening included
_FREE = 1.0  # failures allowed before the share applies, if runs report how close they are to a bound
# Beyond the budget, if runs report how close they are to a bound on a metric other than memory:
_CAREFUL = 6  # exponent
_SURER, _LAST = 0.95, 1e-3  # minimum probability of running; weight of candidates below it
_LITTLE = 1e-5  # least worth of likely candidates, so that unlikely ones stay last when all promise less
_OFF, _OVER = 0.12, 1e3  # simulators' usual error in log memory; log-cost of a configuration that cannot fit
_FORECAST = (0.1, 5.0)  # probability that a predicted failure runs, and its weight in experiments


class Chances:
    def __init__(self, encoding: Encoding, means: list[Mean], allowed: float, foreseen: Foreseen) -> None:
        """`allowed`: share of the experiments that may fail; 0: less than half of the space's believed share of
        failures. `foreseen`: simulators' forecasts of MEMORY and of constraints."""
        self.feasibility, self.limits = Feasibility(encoding), Limits(encoding, foreseen)
        self.memory = PeakBelief(encoding, MEMORY in foreseen)
        self._foreseen, self._encoding = foreseen, encoding
        self._hinting = means
        self._allowed = allowed
        self.fails = 0.0  # share of the space believed to fail
        self._despite = [0, 0]  # rows predicted to fail: how many failed, how many ran

    def tell(
        self, row: int, encoded: EncodedRows, ran: bool, full: float, for_memory: bool, over: Mapping[str, float]
    ) -> None:
        """Adds a result. `full`: how full its memory was (peaks.py). A memory failure is no evidence about others.
        `over`: log excess over each other constraint (limits.py); a run that broke one of them still ran."""
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
        """Whether the rows of memory or of a constraint grew by this factor since the last fit."""
        return self.memory.stale(growth) or self.limits.stale(growth)

    def fit_bounds(self) -> None:
        self.memory.fit()
        self.limits.fit()

    def watch(self, rows: np.ndarray, encoded: EncodedRows) -> None:
        """Sets the rows that `chance` is about."""
        self.feasibility.watch(self._for_others(rows, encoded))
        self.watch_bounds(rows, encoded)

    def watch_bounds(self, rows: np.ndarray, encoded: EncodedRows) -> None:
        self.memory.watch(self._for_memory(rows, encoded), self._foreseen.of(MEMORY, rows))
        self.limits.watch(rows, encoded)

    def turn(self, kept: np.ndarray, fresh: np.ndarray, encoded: EncodedRows) -> None:
        """Keeps the watched rows at `kept` (positions) and appends fresh ones."""
        self.feasibility.turn(kept, self._for_others(fresh, encoded))
        self.memory.turn(kept, self._for_memory(fresh, encoded), self._foreseen.of(MEMORY, fresh))
        self.limits.turn(kept, fresh, encoded)

    def chance(self, rows: np.ndarray, importance: np.ndarray) -> np.ndarray:
        """(m,) chance of each watched row; rows with a large `importance` (m,) are computed most precisely."""
        fits = self.memory.chance() * self.limits.chance() * self._against_forecast(rows)
        return np.ones(len(rows)) * fits * self.feasibility.chance(importance)

    def weighed(self, gain: np.ndarray, runs: np.ndarray, tried: int, failed: int) -> np.ndarray:
        """(m,) gains discounted by the chance `runs` that each row runs, after `tried` experiments of which `failed`
        failed."""
        reported = self.memory.reported or self.limits.reported
        beyond = failed - (self._allowed or _AIM * self.fails) * tried - _FREE * reported
        if beyond > 0 and self.limits.reported:
            likely = runs >= _SURER
            return gain * runs**_CAREFUL * np.where(likely, 1.0, _LAST) + np.where(likely, _LITTLE, 0.0)
        return gain * runs ** min(_DARING * 2 ** max(beyond, 0.0), _MOST_OF_PEAKS if self.memory.reported else _MOST)

    def risk(self, rows: np.ndarray) -> np.ndarray:
        """(n,) penalty on log-costs before anything is fitted: −2 log P(x fits), from the simulators' forecast of
        memory and its usual error; rows that need as much as one that ran out of memory come last."""
        if MEMORY not in self._foreseen:
            return np.zeros(len(rows))
        over = np.where(self.as_full_as_one_that_died(rows), _OVER, 0.0)
        return over - _DARING * log_ndtr(-self._foreseen.of(MEMORY, rows) / _OFF)

    def as_full_as_one_that_died(self, rows: np.ndarray) -> np.ndarray:
        """(n,) whether simulators foresee at least as much memory as for a row that ran out of it."""
        foreseen = MEMORY in self._foreseen
        return self._foreseen.of(MEMORY, rows) >= (self.memory.least_over if foreseen else np.inf)

    def _against_forecast(self, rows: np.ndarray) -> np.ndarray | float:
        """(m,) chance that rows run, given the simulators' forecast: one in ten where they predict a failure, until
        experience changes that. It is not used if simulators and runs report how full a memory is, which is better
        evidence."""
        forecast = self._forecast(rows)
        if forecast is None or self.memory.heeds:
            return 1.0
        believed, worth = _FORECAST
        failed, ran = self._despite
        return 1 - forecast * (1 - (ran + believed * worth) / (failed + ran + worth))

    def _forecast(self, rows: np.ndarray) -> np.ndarray | None:
        """(n,) 1 where a simulator predicts a failure; None where none does."""
        forecasts = [mean.fails[rows] for mean in self._hinting if mean.foresees and mean.fails is not None]
        return np.max(forecasts, axis=0) if forecasts else None

    def _for_others(self, rows: np.ndarray, encoded: EncodedRows) -> tuple[np.ndarray, np.ndarray]:
        return self.feasibility.features(encoded, self._hints(rows))

    def _for_memory(self, rows: np.ndarray, encoded: EncodedRows) -> EncodedRows:
        """Adds failures predicted by simulators and past jobs as main effects, like those of knobs."""
        encoded = self._encoding.of_memory(encoded)
        hints = None if MEMORY in self._foreseen else self._hints(rows)
        return (
            encoded if hints is None else EncodedRows(encoded.points, np.concatenate([encoded.effects, hints], axis=1))
        )

    def _hints(self, rows: np.ndarray) -> np.ndarray | None:
        """(n, H) predicted failures, a column per prior mean that predicts any."""
        hints = [mean.fails[rows] for mean in self._hinting if mean.fails is not None]
        return np.stack(hints, axis=1) if hints else None
