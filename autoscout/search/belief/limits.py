"""The probability that a configuration keeps a job's constraints (latency, goodput, …), with one model per constraint.

    y(x) = log of the metric over its bound (of the bound over the metric for >=),    P(x keeps it) = P(y(x) < 0)

Metrics of runs that broke the constraint are used like those of other runs. Runs that kept the constraint show how
close the limit is before any run breaks it. If simulators predict the metric, their prediction is the model's mean,
provided that it explains the measurements better than a mean of 0. The Gaussian process is the one for memory
(peaks.py)."""

import math
from collections.abc import Mapping

import numpy as np

from autoscout.job.objective import constraint
from autoscout.search.belief.encoding import EncodedRows, Encoding
from autoscout.search.belief.foreseen import Foreseen
from autoscout.search.belief.peaks import PeakBelief
from kb.records import Measurement, Objective

# log excess over a bound at which y saturates, because latencies of full queues may be 600 times a bound
_BEYOND = 1.5


def beyond(objective: Objective, measurement: Measurement) -> dict[str, float]:
    """Constraint → y of a successful run. Omits constraints on memory, and those whose y is undefined (bound or value
    not positive, or no measurement); violations of omitted constraints count as failures."""
    found: dict[str, float] = {}
    for text in objective.constraints if measurement.status == "ok" else []:
        metric, compare, bound = constraint(text)
        known = measurement.metrics.get(metric, math.nan)
        if metric != "peak_memory_gib" and bound > 0 and 0 < known < math.inf:
            found[text] = float(_squashed(closeness(np.array(known), compare, bound)))
    return found


def closeness(value: np.ndarray, compare: str, bound: float) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(value / bound) if compare == "<=" else np.log(bound / value)


def _squashed(y: np.ndarray) -> np.ndarray:
    return np.where(y > 0, _BEYOND * np.tanh(y / _BEYOND), y)


class Limits:
    """The models of all constraints with data. n rows have results; m rows are watched (predicted)."""

    def __init__(self, encoding: Encoding, foreseen: Foreseen) -> None:
        self._encoding, self._foreseen = encoding, foreseen
        self._of: dict[str, PeakBelief] = {}

    @property
    def reported(self) -> bool:
        return bool(self._of)

    def tell(self, row: np.ndarray, encoded: EncodedRows, over: Mapping[str, float]) -> None:
        for text, y in over.items():
            if text not in self._of:
                self._of[text] = PeakBelief(self._encoding, text in self._foreseen)
            self._of[text].tell(encoded, y, float(self._predicted(text, row)[0]))

    def stale(self, growth: float) -> bool:
        return any(each.stale(growth) for each in self._of.values())

    def fit(self) -> None:
        for each in self._of.values():
            each.fit()

    def watch(self, rows: np.ndarray, encoded: EncodedRows) -> None:
        for text, each in self._of.items():
            each.watch(encoded, self._predicted(text, rows))

    def turn(self, kept: np.ndarray, fresh: np.ndarray, encoded: EncodedRows) -> None:
        """Replaces the watched rows by those at the positions `kept`, followed by the `fresh` ones."""
        for text, each in self._of.items():
            each.turn(kept, encoded, self._predicted(text, fresh))

    def chance(self) -> np.ndarray | float:
        """(m,) probability that each watched row keeps all constraints; 1 without data."""
        found: np.ndarray | float = 1.0
        for each in self._of.values():
            found = found * each.chance()
        return found

    def _predicted(self, text: str, rows: np.ndarray) -> np.ndarray:
        return _squashed(self._foreseen.of(text, rows))
