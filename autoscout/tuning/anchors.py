"""Anchors: the reference, measured again now and then. They tell what the machine does to everything, whatever the
search is about: what it costs at the start, at intervals that depend on how far it moved, and in the rounds at the end.
"""

import math

from autoscout.job.objective import cost
from kb.records import Configuration, Job, Measurement

_FIRST = 8  # search experiments between the first two anchors
_MOST, _LEAST = 40, 4
# Change between consecutive anchors: below the first they come half as often, above the second twice as often.
_STEADY, _MOVED = 0.01, 0.05


class Anchors:
    def __init__(self, job: Job, reference: Configuration, exact: bool = False) -> None:
        """`exact`: nothing is measured, so that nothing moves."""
        self.job, self.reference, self.exact = job, reference, exact
        self.costs: list[float] = []
        self.again: list[Measurement] = []  # all but the first
        self._last = 0  # experiments of search when the last one was measured
        self._every = _FIRST
        self._given_up = False

    def due(self, searched: int) -> bool:
        """Whether the reference is to be measured again after so many experiments of search."""
        return bool(self.costs) and not self._given_up and not self.exact and searched - self._last >= self._every

    def tell(self, measurement: Measurement, searched: int) -> None:
        """A measurement of the reference in this session. One that fails after it had worked is no anchor any more:
        the rounds at the end will tell whether it still runs."""
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
