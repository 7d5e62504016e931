"""Anchors: re-measurements of the reference, which track the machine's drift independently of the search. They are made
at the start, at intervals that adapt to how far the reference moved, when several runs in a row are ended early, and in
the final rounds.

A reference that moved is measured again at once. If the move persists, the machine drifted, and from then on costs are
converted to the machine's state at the session's start; else one run was disturbed.
"""

import math
import statistics

import msgspec

from autoscout.job.objective import DRIFT, cost
from kb.records import Configuration, Job, Measurement

_FIRST = 8  # search experiments between the first two anchors
_MOST, _LEAST = 40, 4
# Change of the reference: below the first value, anchors come half as often; above the second, twice as often.
_STEADY, _MOVED = 0.01, 0.05
_FAR = 3.0  # a move must also exceed this many standard deviations of the reference's scatter
_AGREE = 0.25  # largest difference, as a share of a move, between two successive anchors that confirm it
_GIVEN_UP = 5  # after this many successive runs ended early, the machine is suspected instead of them


class Anchors:
    def __init__(self, job: Job, reference: Configuration, exact: bool = False) -> None:
        """`exact`: costs are computed, not measured, so nothing drifts."""
        self.job, self.reference, self.exact = job, reference, exact
        self._again: list[Measurement] = []  # all anchors but the first
        self.drift = 0.0  # id → standard deviation that drift adds to a run's log-cost
        self.doubts: dict[str, float] = {}  # id → standard deviation of the log-cost of runs while the machine drifted
        self._since: list[str] = []  # ids of the search's runs since the last anchor that did not move
        self._logs: list[float] = []  # log-cost of each anchor, converted to the session's start
        self._disturbed: list[float] = []  # moves of the reference that are not drift
        self._suspect: float | None = None  # log-cost of an anchor that moved and still has to be confirmed
        self._last = 0  # search experiments done when the last anchor was measured
        self._every = _FIRST
        self._given_up, self._alarm = 0, _GIVEN_UP
        self._over = False

    @property
    def costs(self) -> list[float]:
        """The anchors' costs, converted to the machine's present state."""
        return [math.exp(log + self.drift) for log in self._logs]

    @property
    def again(self) -> list[Measurement]:
        """All anchors but the first, each with the drift that it had."""
        now = zip(self._again, self.costs[1:], strict=True)
        return [_of_drift(m, math.log((cost(self.job.objective, m) or c) / c) + self.drift) for m, c in now]

    def due(self, searched: int) -> bool:
        """Whether an anchor is due after `searched` search experiments."""
        if not self._logs or self._over or self.exact:
            return False
        return self._suspect is not None or self._given_up >= self._alarm or searched - self._last >= self._every

    def heard(self, measurement: Measurement) -> Measurement:
        """Adds the present drift to the conditions of any experiment of the search."""
        self._given_up = self._given_up + 1 if measurement.fidelity == "short" else 0
        self._since.append(measurement.configuration.id)
        return _of_drift(measurement, self.drift)

    def tell(self, measurement: Measurement, searched: int) -> bool:
        """Takes in a measurement of the reference from this session. If it fails after having worked, there are no more
        anchors: the final rounds show whether it still runs. Returns whether the machine drifted."""
        if measurement.status == "infrastructure":
            self._last = searched
            return False
        c = cost(self.job.objective, measurement)
        if c is None:
            self._over = True
            return False
        log, before = math.log(c * measurement.conditions.get(DRIFT, 1.0)), self.drift
        if self._logs:
            self._again.append(measurement)
            self._follow(log)
        self._logs.append(log - self.drift)
        self._last, self._given_up = searched, 0
        moved = self.drift - before
        if moved:
            self.doubts |= dict.fromkeys(self._since, abs(moved))
        if self._suspect is None:
            self._since = []
        return moved != 0

    def _follow(self, log: float) -> None:
        """Decides from the anchor that follows those so far whether the machine drifted."""
        first, self._suspect = self._suspect, None
        usual = statistics.fmean(self._logs if first is None else self._logs[:-1]) + self.drift
        moved = log - usual
        if abs(moved) <= _STEADY and first is None:
            self._every, self._alarm = min(_MOST, 2 * self._every), 2 * self._alarm
        elif abs(moved) >= _MOVED:
            self._every = max(_LEAST, self._every // 2)
        if first is not None and abs(log - first) <= _AGREE * abs(moved):
            self.drift += (first + log) / 2 - usual
            self._logs[-1], self._alarm = first - self.drift, _GIVEN_UP
            return
        if first is not None:
            self._disturbed.append(first - usual)
        if abs(moved) >= max(_MOVED, _FAR * math.sqrt(statistics.fmean([0.0, *(m**2 for m in self._disturbed)]))):
            self._suspect = log
        else:
            self._disturbed.append(moved)


def _of_drift(measurement: Measurement, drift: float) -> Measurement:
    if not drift:
        return measurement
    return msgspec.structs.replace(measurement, conditions={**measurement.conditions, DRIFT: math.exp(drift)})
