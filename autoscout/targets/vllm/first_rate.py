"""Chooses the request rate from which the search for a configuration's highest rate starts: the predicted highest rate,
corrected by this session's earlier results; without a prediction, the median of these results; without results, the
job's rate."""

import math
import statistics
from typing import Any

import numpy as np

from autoscout.simulate import encode
from autoscout.targets.jobs import JobSpace, simulators_of
from kb.records import Configuration, Job


class FirstRate:
    def __init__(self, job: Job) -> None:
        self._job, self._space = job, JobSpace.of_job(job)
        self._members = simulators_of(job)
        self._known: list[tuple[float, float]] = []  # (predicted highest rate or NaN, measured one)

    def of(self, configuration: Configuration) -> float | None:
        """Returns the initial rate in requests per second; None if there are neither predictions nor results."""
        predicted = self._predicted(configuration)
        if math.isnan(predicted):
            return statistics.median(measured for _, measured in self._known) if self._known else None
        off = [math.log(measured / predicted) for predicted, measured in self._known if not math.isnan(predicted)]
        return predicted * math.exp(statistics.median(off) if off else 0.0)

    def learn(self, configuration: Configuration, measured: float) -> None:
        self._known.append((self._predicted(configuration), measured))

    def _predicted(self, configuration: Configuration) -> float:
        columns: dict[str, Any] = encode.of_configurations(self._space, [configuration])
        columns = {**encode.of_job(self._job), **columns, **encode.serving_devices(self._job, columns)}
        for member in self._members:
            if not member.applies(columns):
                value = float(np.ravel(member.predict(columns).value)[0])
                if math.isfinite(value) and value > 0:
                    return value
        return math.nan
