"""The chance that a configuration keeps a job's constraints (latency, goodput, cost, …), with one belief for each.

    y(x) = log of the metric over its bound (of the bound over the metric for >=),    P(x keeps it) = P(y(x) < 0)

A run that broke a constraint still ran, and its metric is a value like any other. Runs that kept it show where the
limit is before any breaks it. If simulators predict the metric, their prediction is the belief's mean, provided that it
explains the measurements better than no mean. Memory has its own rules (peaks.py), but the same Gaussian process.
"""

import math
from collections.abc import Mapping

import numpy as np

from autoscout.job.objective import constraint
from autoscout.search.belief.encoding import EncodedRows, Encoding
from autoscout.search.belief.foreseen import Foreseen
from autoscout.search.belief.peaks import PeakBelief
from kb.records import Measurement, Objective

_BEYOND = 1.5  # log excess over a bound at which values saturate; the latencies of full queues exceed a bound by ×600


def beyond(objective: Objective, measurement: Measurement) -> dict[str, float]:
    """Constraint → y of a successful run. Leaves out constraints on memory, and those without a logarithm or a
    measurement, whose violations count as failures."""
    found: dict[str, float] = {}
    for text in objective.constraints if measurement.status == "ok" else []:
        metric, compare, bound = constraint(text)
        known = measurement.metrics.get(metric, math.nan)
        if metric != "peak_memory_gib" and bound > 0 and 0 < known < math.inf:
            found[text] = float(_squashed(closeness(np.array(known), compare, bound)))
    return found


def closeness(value: np.ndarray, compare: str, bound: float) -> np.ndarray:
    """y of a metric's values."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(value / bound) if compare == "<=" else np.log(bound / value)


def _squashed(y: np.ndarray) -> np.ndarray:
    return np.where(y > 0, _BEYOND * np.tanh(y / _BEYOND), y)


class Limits:
    """n rows are known, m are watched; there is one belief per constraint with data."""

    def __init__(self, encoding: Encoding, foreseen: Foreseen) -> None:
        self._encoding, self._foreseen = encoding, foreseen
        self._of: dict[str, PeakBelief] = {}

    @property
    def reported(self) -> bool:
        """Whether any constraint has data."""
        return bool(self._of)

    def tell(self, row: np.ndarray, encoded: EncodedRows, over: Mapping[str, float]) -> None:
        """Adds one row of the pool, with its y per constraint."""
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
        """Sets the rows that `chance` is about."""
        for text, each in self._of.items():
            each.watch(encoded, self._predicted(text, rows))

    def turn(self, kept: np.ndarray, fresh: np.ndarray, encoded: EncodedRows) -> None:
        """Keeps the watched rows at `kept` (positions) and appends fresh ones."""
        for text, each in self._of.items():
            each.turn(kept, encoded, self._predicted(text, fresh))

    def chance(self) -> np.ndarray | float:
        """(m,) chance that each watched row keeps all constraints; 1 while nothing is known."""
        found: np.ndarray | float = 1.0
        for each in self._of.values():
            found = found * each.chance()
        return found

    def _predicted(self, text: str, rows: np.ndarray) -> np.ndarray:
        return _squashed(self._foreseen.of(text, rows))
