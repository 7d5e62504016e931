"""Anchors: measurements of the reference configuration that are repeated to track the machine's drift. They are made at
the start, after an adaptive number of experiments (fewer if the reference's cost has changed), when several runs in a
row were ended early, and in the final rounds.

If the reference's cost has changed, it is measured again at once. If the change persists, the machine has drifted, and
the costs of later runs are converted to the machine's state at the session's start; otherwise only one run was
disturbed.
"""

import math
import statistics

import msgspec

from autoscout.job.objective import DRIFT, cost
from kb.records import Configuration, Job, Measurement

_FIRST = 8  # search experiments between the first two anchors
_MOST, _LEAST = 40, 4  # limits on the search experiments between two anchors
# Relative change of the reference's cost below which anchors are made half as often, and above which twice as often.
_STEADY, _MOVED = 0.01, 0.05
_FAR = 3.0  # a change must also exceed this many standard deviations of the reference's scatter
_AGREE = 0.25  # two successive anchors confirm a change if they differ by at most this share of the change
_GIVEN_UP = 5  # after this many successive runs that were ended early, an anchor shows whether the machine is slower


class Anchors:
    def __init__(self, job: Job, reference: Configuration, exact: bool = False) -> None:
        """`exact`: whether costs come from a deterministic model, so that they do not drift."""
        self.job, self.reference, self.exact = job, reference, exact
        self._again: list[Measurement] = []  # all anchors but the first
        self.drift = 0.0  # log of (the machine's present costs / costs at the session's start)
        self.doubts: dict[str, float] = {}  # configuration id → standard deviation that drift adds to its log-cost
        self._since: list[str] = []  # ids of configurations measured since the last anchor whose cost had not changed
        self._logs: list[float] = []  # log-cost of each anchor, converted to the session's start
        self._disturbed: list[float] = []  # changes of the reference's log-cost that did not persist
        self._suspect: float | None = None  # log-cost of an anchor with a change that is still to be confirmed
        self._last = 0  # number of search experiments when the last anchor was measured
        self._every = _FIRST
        self._given_up, self._alarm = 0, _GIVEN_UP
        self._over = False

    @property
    def costs(self) -> list[float]:
        """The anchors' costs, converted to the machine's present state."""
        return [math.exp(log + self.drift) for log in self._logs]

    @property
    def again(self) -> list[Measurement]:
        """All anchors but the first. The `conditions` of each contain how far the machine had drifted at that time."""
        now = zip(self._again, self.costs[1:], strict=True)
        return [_of_drift(m, math.log((cost(self.job.objective, m) or c) / c) + self.drift) for m, c in now]

    def due(self, searched: int) -> bool:
        """Whether an anchor is due after `searched` search experiments."""
        if not self._logs or self._over or self.exact:
            return False
        return self._suspect is not None or self._given_up >= self._alarm or searched - self._last >= self._every

    def heard(self, measurement: Measurement) -> Measurement:
        """Takes in a measurement of the search; returns it with the machine's present drift in its `conditions`."""
        self._given_up = self._given_up + 1 if measurement.fidelity == "short" else 0
        self._since.append(measurement.configuration.id)
        return _of_drift(measurement, self.drift)

    def tell(self, measurement: Measurement, searched: int) -> bool:
        """Takes in a measurement of the reference from this session. After a failure there are no more anchors, since
        the final rounds will show whether the reference still runs. Returns whether the machine drifted."""
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
        """Decides from the log-cost of a new anchor whether the machine drifted."""
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
