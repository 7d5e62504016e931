"""Anchors: re-measurements of the reference, which track the machine's drift independently of the search. They are made
at the start, at intervals that adapt to how far the reference moved, and in the rounds at the end.
"""

import math

from autoscout.job.objective import cost
from kb.records import Configuration, Job, Measurement

_FIRST = 8  # search experiments between the first two anchors
_MOST, _LEAST = 40, 4
# Change between consecutive anchors: below the first value they come half as often, above the second twice as often.
_STEADY, _MOVED = 0.01, 0.05


class Anchors:
    def __init__(self, job: Job, reference: Configuration, exact: bool = False) -> None:
        """`exact`: costs are computed, not measured, so nothing drifts."""
        self.job, self.reference, self.exact = job, reference, exact
        self.costs: list[float] = []
        self.again: list[Measurement] = []  # all anchors but the first
        self._last = 0  # search experiments done when the last anchor was measured
        self._every = _FIRST
        self._given_up = False

    def due(self, searched: int) -> bool:
        """Whether an anchor is due after `searched` search experiments."""
        return bool(self.costs) and not self._given_up and not self.exact and searched - self._last >= self._every

    def tell(self, measurement: Measurement, searched: int) -> None:
        """Takes in a measurement of the reference from this session. If it fails after having worked, there are no more
        anchors: the final rounds show whether it still runs."""
        if measurement.status == "infrastructure":
            self._last = searched
            return
        c = cost(self.job.objective, measurement)
        if c is None:
            self._given_up = True
            return
        if self.costs:
            self.again.append(measurement)
            moved = abs(math.log(c / self.costs[-1]))
            if moved <= _STEADY:
                self._every = min(_MOST, 2 * self._every)
            elif moved >= _MOVED:
                self._every = max(_LEAST, self._every // 2)
        self.costs.append(c)
        self._last = searched
