"""Decides which runs to repeat. A run that other load disturbed is immediately repeated once, and the less disturbed
one of the two runs counts; both are stored. A run whose host was lost is repeated, on other hosts if there are any.

A run counts as disturbed if other processes used more of the machine than is usual in this session. With an absolute
limit, every run on a machine that is always shared would be repeated without effect; there, only the noise estimate of
the final rounds helps.
"""

import statistics
from collections import Counter

from autoscout.running.outcome import HOST_LOST
from kb.records import Measurement

# Condition → largest accepted excess over the session's median.
_TOO_FAR = {"foreign_cpu_share": 0.15, "steal_share": 0.05, "throttled": 0.5}
_KNOWN = 3  # number of runs needed before a run can count as disturbed
_SHARE = 0.25  # largest number of repeats, as a share of all runs
_ELSEWHERE = 2  # number of restarts of an experiment after lost hosts


class Disturbances:
    def __init__(self, exact: bool = False) -> None:
        """`exact`: whether costs come from a deterministic model, so that nothing disturbs them."""
        self._exact = exact
        self._seen: dict[str, list[float]] = {name: [] for name in _TOO_FAR}
        self._runs = self._repeats = 0
        self._held: dict[
            str, tuple[str, Measurement]
        ] = {}  # configuration → (purpose, suspicious run that waits for its repeat)
        self._lost: Counter[str] = Counter()  # configuration → consecutive runs whose host was lost

    def again(self, purpose: str, measurement: Measurement) -> bool:
        """Whether to repeat this run; if so, its result is not used yet."""
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
        """(purpose, measurement) to use. After a repeat, these are the first run's purpose and the less disturbed of
        the two measurements."""
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
        """The largest excess of a condition over the session's median, as a multiple of the accepted excess."""
        found = [0.0]
        for name, bound in _TOO_FAR.items():
            usual = self._seen[name]
            if name in measurement.conditions and len(usual) >= _KNOWN:
                found.append((measurement.conditions[name] - statistics.median(usual)) / bound)
        return max(found)
