"""A run that the machine disturbed is repeated once, at once, and the less disturbed of the two counts; both are kept.
A run whose host was lost is run again, on other hosts if there are any.

Disturbed means that others used more of the machine than is usual in this session. An absolute bound would repeat every
run on a machine that is always shared, without effect; there only the final rounds and their noise estimate help.
"""

import statistics
from collections import Counter

from autoscout.running.outcome import HOST_LOST
from kb.records import Measurement

# Condition → largest accepted excess over the session's median.
_TOO_FAR = {"foreign_cpu_share": 0.15, "steal_share": 0.05, "throttled": 0.5}
_KNOWN = 3  # runs needed before one can be called an outlier
_SHARE = 0.25  # largest share of runs spent on repeats
_ELSEWHERE = 2  # restarts after a lost host


class Disturbances:
    def __init__(self, exact: bool = False) -> None:
        """`exact`: costs are computed, not measured, so nothing disturbs them."""
        self._exact = exact
        self._seen: dict[str, list[float]] = {name: [] for name in _TOO_FAR}
        self._runs = self._repeats = 0
        self._held: dict[str, tuple[str, Measurement]] = {}  # configuration → (purpose, first run)
        self._lost: Counter[str] = Counter()  # configuration → consecutive runs whose host was lost

    def again(self, purpose: str, measurement: Measurement) -> bool:
        """Whether to repeat this run before it counts."""
        if self._exact:
            return False
        if HOST_LOST in measurement.conditions:
            return self._elsewhere(purpose, measurement)
        self._lost.pop(measurement.configuration.id, None)
        self._runs += 1
        how_far = self._excess(measurement)
        for name, values in self._seen.items():
            if name in measurement.conditions:
                values.append(measurement.conditions[name])
        if purpose == "repeat" or how_far <= 1.0 or measurement.status != "ok":
            return False
        if self._repeats + 1 > _SHARE * max(self._runs, 4):
            return False
        self._repeats += 1
        self._held[measurement.configuration.id] = purpose, measurement
        return True

    def settled(self, purpose: str, measurement: Measurement) -> tuple[str, Measurement]:
        """The purpose and the run that count, after a repeat."""
        if purpose != "repeat" or measurement.configuration.id not in self._held:
            return purpose, measurement
        wanted, first = self._held.pop(measurement.configuration.id)
        if HOST_LOST in first.conditions:
            return wanted, measurement
        repeated = measurement.status == "ok" and self._excess(measurement) <= self._excess(first)
        return wanted, measurement if repeated else first

    def _elsewhere(self, purpose: str, measurement: Measurement) -> bool:
        which = measurement.configuration.id
        wanted = self._held[which][0] if purpose == "repeat" and which in self._held else purpose
        self._held[which] = wanted, measurement
        self._lost[which] += 1
        return self._lost[which] <= _ELSEWHERE

    def _excess(self, measurement: Measurement) -> float:
        """The largest excess over the median, as a multiple of its bound."""
        found = [0.0]
        for name, bound in _TOO_FAR.items():
            usual = self._seen[name]
            if name in measurement.conditions and len(usual) >= _KNOWN:
                found.append((measurement.conditions[name] - statistics.median(usual)) / bound)
        return max(found)
