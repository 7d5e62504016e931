"""Rescales measurements of earlier sessions to the machine's present speed.

Every earlier session differs from this one by an offset of the log of all costs. The offset is estimated from
configurations that were measured in both sessions, which always include the reference:

    offset ~ N(0, 0.3²),   log-cost in this session − log-cost then = offset + noise of both

A rescaled measurement carries the offset's remaining uncertainty. It guides the search but is never the only
measurement of the reference or of a finalist.
"""

import math
import statistics
from collections.abc import Iterable

import msgspec

from autoscout.job.objective import DRIFT, cost_of_run, to_metric
from kb.records import Job, Measurement

_SPREAD = 0.3  # prior standard deviation of an offset
_NOISE = 0.05  # assumed standard deviation of the difference of two log-costs of one configuration


class Periods:
    def __init__(self, job: Job, remembered: Iterable[tuple[str, Measurement]]) -> None:
        """`remembered`: (session, measurement) of earlier sessions."""
        self.job = job
        self._then: dict[str, dict[str, list[float]]] = {}  # session → configuration → log-costs
        self._now: dict[str, list[float]] = {}
        self._offsets: dict[str, tuple[float, float]] = {}  # cache of `offset` by session, since each step needs it
        for session, m in remembered:
            if (c := cost_of_run(job.objective, m)) is not None:
                self._then.setdefault(session, {}).setdefault(m.configuration.id, []).append(math.log(c))

    def tell(self, measurement: Measurement) -> None:
        if (c := cost_of_run(self.job.objective, measurement)) is not None:
            self._now.setdefault(measurement.configuration.id, []).append(math.log(c))
            self._offsets.clear()

    def offset(self, session: str) -> tuple[float, float]:
        """Mean and standard deviation of log(cost in this session / cost in the given session)."""
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
        """A copy of a session's measurement for the search, rescaled to this session; the offset's standard deviation
        is among its conditions (`doubt`)."""
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
    """A copy whose log-cost has an additional error with the standard deviation `doubt`."""
    doubt = math.hypot(doubt, measurement.conditions.get("doubt", 0.0))
    return msgspec.structs.replace(measurement, conditions={**measurement.conditions, "doubt": doubt})
