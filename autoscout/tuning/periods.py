"""Converts a value of another measuring period to today's terms.

Every period (here: an earlier session) shifts the log of all costs by its own offset. It is estimated from
configurations measured both then and in this session, which always include the reference:

    offset ~ N(0, 0.3²),   log today − log then = offset + noise of both

An old value is shifted by the offset and carries the offset's remaining uncertainty. It guides the search but is never
the only measurement of the reference or of a finalist.
"""

import math
import statistics
from collections.abc import Iterable

import msgspec

from autoscout.job.objective import DRIFT, cost_of_run, to_metric
from kb.records import Job, Measurement

_SPREAD = 0.3  # prior standard deviation of a period's effect on the log cost
_NOISE = 0.05  # default standard deviation of the difference of two measurements of one configuration


class Periods:
    def __init__(self, job: Job, remembered: Iterable[tuple[str, Measurement]]) -> None:
        """`remembered`: (session, measurement) of earlier sessions."""
        self.job = job
        self._then: dict[str, dict[str, list[float]]] = {}  # session → configuration → log-costs
        self._now: dict[str, list[float]] = {}
        self._offsets: dict[str, tuple[float, float]] = {}  # cache by session, needed at each step; `tell` clears it
        for session, m in remembered:
            if (c := cost_of_run(job.objective, m)) is not None:
                self._then.setdefault(session, {}).setdefault(m.configuration.id, []).append(math.log(c))

    def tell(self, measurement: Measurement) -> None:
        """Takes in a measurement of this session."""
        if (c := cost_of_run(self.job.objective, measurement)) is not None:
            self._now.setdefault(measurement.configuration.id, []).append(math.log(c))
            self._offsets.clear()

    def offset(self, session: str) -> tuple[float, float]:
        """(log of today's costs over those of `session`, its standard deviation)."""
        if session not in self._offsets:
            self._offsets[session] = self._learned(session)
        return self._offsets[session]

    def _learned(self, session: str) -> tuple[float, float]:
        then = self._then.get(session, {})
        differences = [
            statistics.fmean(self._now[key]) - statistics.fmean(values)
            for key, values in then.items()
            if key in self._now
        ]
        if not differences:
            return 0.0, _SPREAD
        noise = _NOISE
        if len(differences) > 2:
            noise = max(0.005, statistics.stdev(differences))
        precision = len(differences) / noise**2 + 1 / _SPREAD**2
        return sum(differences) / noise**2 / precision, math.sqrt(1 / precision)

    def as_today(self, session: str, measurement: Measurement) -> Measurement:
        """A copy rescaled to today, for the search only; its conditions include `doubt` (standard deviation of the
        log-cost)."""
        metric, objective = self.job.objective.metric, self.job.objective
        then = cost_of_run(objective, measurement)
        if then is None:
            return measurement
        offset, doubt = self.offset(session)
        value = to_metric(objective, then * math.exp(offset))
        kept = {name: value for name, value in measurement.conditions.items() if name != DRIFT}
        metrics = {**measurement.metrics, metric: value}
        return doubted(msgspec.structs.replace(measurement, metrics=metrics, conditions=kept), doubt)


def doubted(measurement: Measurement, doubt: float) -> Measurement:
    """A copy whose log-cost is uncertain by an additional standard deviation."""
    doubt = math.hypot(doubt, measurement.conditions.get("doubt", 0.0))
    return msgspec.structs.replace(measurement, conditions={**measurement.conditions, "doubt": doubt})
