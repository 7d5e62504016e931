"""The chance that a configuration qualifies: memory where peaks are known, the job's other constraints, other failures,
what simulators foresee.

    P(x runs) = P(x fits its memory) · Π_c P(x keeps constraint c)
              · P(x runs, given that it fits) · P(x runs, given what simulators foresee)

What an experiment is expected to gain is multiplied by P(x runs)², as a failure gains nothing and tells little, and it
is where nothing ever ran that improvements are expected too readily. Each failure beyond the budget of failures doubles
the exponent, so that a search is as careful as it must be, and at no time more: one that is daring until the budget is
spent and then tries only what is sure spends half of its experiments where little is to be gained. The budget is what
the job says, or less than half of what is believed to fail of the space. Where runs report how near they are to a
bound, one failure more is allowed; chances that rest on reported peaks are known well enough to be held to more
strictly, and what is not likely to keep a bound on another metric comes last beyond the budget.
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
_MOST, _MOST_OF_PEAKS = 32.0, 512.0  # at most; where runs report their memory
_AIM = 0.4  # budget, as a share of what is believed to fail of the space: at most half may fail, the opening included
_FREE = 1.0  # failures allowed before the share applies, where runs report how close they are to a bound
# beyond the budget, where runs report how close they are to a bound on another metric than memory:
_CAREFUL = 6  # exponent
_SURER, _LAST = 0.95, 1e-3  # minimum probability of running; weight of candidates below it
_LITTLE = 1e-5  # what likely ones are worth at least: what is unlikely stays last when all promise less
_OFF, _OVER = 0.12, 1e3  # how far simulators are off in log memory; log-cost of what cannot fit
_FORECAST = (0.1, 5.0)  # probability that a predicted failure runs, and its weight in experiments


class Chances:
    def __init__(self, encoding: Encoding, means: list[Mean], allowed: float, foreseen: Foreseen) -> None:
        """`allowed`: share of the experiments that may fail; 0: less than half of what is believed to fail of the
        space. `foreseen`: of MEMORY and of constraints."""
        self.feasibility, self.limits = Feasibility(encoding), Limits(encoding, foreseen)
        self.memory = PeakBelief(encoding, MEMORY in foreseen)
        self._foreseen, self._encoding = foreseen, encoding
        self._hinting = means
        self._allowed = allowed
        self.fails = 0.0  # share of the space believed to fail
        self._despite = [0, 0]  # of the rows predicted to fail: how many did, how many ran

    def tell(
        self, row: int, encoded: EncodedRows, ran: bool, full: float, for_memory: bool, over: Mapping[str, float]
    ) -> None:
        """`full`: how full its memory was (peaks.py). A memory failure says nothing about other failures. `over`: log
        excess over each other constraint (held_back.py); a run that broke one of them still ran."""
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
        """(m,) of the watched rows; `importance` (m,) says which matter most."""
        fits = self.memory.chance() * self.limits.chance() * self._against_forecast(rows)
        return np.ones(len(rows)) * fits * self.feasibility.chance(importance)

    def weighed(self, gain: np.ndarray, runs: np.ndarray, tried: int, failed: int) -> np.ndarray:
        """(m,) gains discounted by the chance `runs` that each row runs, after `tried` experiments of which `failed`
        failed."""
        reported = self.memory.told or self.limits.told
        beyond = failed - (self._allowed or _AIM * self.fails) * tried - _FREE * reported
        if beyond > 0 and self.limits.told:
            likely = runs >= _SURER
            return gain * runs**_CAREFUL * np.where(likely, 1.0, _LAST) + np.where(likely, _LITTLE, 0.0)
        return gain * runs ** min(_DARING * 2 ** max(beyond, 0.0), _MOST_OF_PEAKS if self.memory.told else _MOST)

    def risk(self, rows: np.ndarray) -> np.ndarray:
        """(n,) to be added to a log-cost before anything is fitted: −2 log P(x fits), by what simulators foresee of its
        memory and how far off they are; rows that need as much as one that ran out of it come last."""
        if MEMORY not in self._foreseen:
            return np.zeros(len(rows))
        over = np.where(self.as_full_as_one_that_died(rows), _OVER, 0.0)
        return over - _DARING * log_ndtr(-self._foreseen.of(MEMORY, rows) / _OFF)

    def as_full_as_one_that_died(self, rows: np.ndarray) -> np.ndarray:
        """(n,) whether simulators foresee of a row at least the memory of one that ran out of it."""
        told = MEMORY in self._foreseen
        return self._foreseen.of(MEMORY, rows) >= (self.memory.least_over if told else np.inf)

    def _against_forecast(self, rows: np.ndarray) -> np.ndarray | float:
        """(m,) the chance that rows run, given the simulators' forecast: one in ten where they predict a failure, until
        experience says otherwise. Where they say how full a memory is, and runs do too, that tells more."""
        forecast = self._forecast(rows)
        if forecast is None or self.memory.heeds:
            return 1.0
        believed, worth = _FORECAST
        failed, ran = self._despite
        return 1 - forecast * (1 - (ran + believed * worth) / (failed + ran + worth))

    def _forecast(self, rows: np.ndarray) -> np.ndarray | None:
        """(n,) 1 where a simulator predicts a failure; None where none does."""
        said = [mean.fails[rows] for mean in self._hinting if mean.foresees and mean.fails is not None]
        return np.max(said, axis=0) if said else None

    def _for_others(self, rows: np.ndarray, encoded: EncodedRows) -> tuple[np.ndarray, np.ndarray]:
        return self.feasibility.features(encoded, self._hints(rows))

    def _for_memory(self, rows: np.ndarray, encoded: EncodedRows) -> EncodedRows:
        """Failures predicted by simulators and past jobs are main effects beside those of the knobs."""
        encoded = self._encoding.of_memory(encoded)
        hints = None if MEMORY in self._foreseen else self._hints(rows)
        return (
            encoded if hints is None else EncodedRows(encoded.points, np.concatenate([encoded.effects, hints], axis=1))
        )

    def _hints(self, rows: np.ndarray) -> np.ndarray | None:
        """(n, H) predicted failures, a column per prior mean that predicts any."""
        hints = [mean.fails[rows] for mean in self._hinting if mean.fails is not None]
        return np.stack(hints, axis=1) if hints else None
