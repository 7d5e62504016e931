"""The chance that a configuration keeps a job's constraints, each a belief of its own (latency, goodput, cost, …).

    y(x) = log of the metric over its bound (of the bound over the metric for >=),    P(x keeps it) = P(y(x) < 0)

A run that broke a constraint still ran: its metric is a value like any other. Runs that kept it show where the limit
lies before any breaks it. Where simulators predict the metric, that is the mean of the belief, if it explains what was
measured better than none. Memory has rules of its own (peaks.py), whose Gaussian process this shares.
"""

import math
from collections.abc import Mapping

import numpy as np

from autoscout.job.objective import constraint
from autoscout.search.belief.encoding import EncodedRows, Encoding
from autoscout.search.belief.foreseen import Foreseen
from autoscout.search.belief.peaks import PeakBelief
from kb.records import Measurement, Objective

_BEYOND = 1.5  # log excess over a bound at which values saturate; queues exceed theirs by ×600


def beyond(objective: Objective, measurement: Measurement) -> dict[str, float]:
    """Constraint → y of a successful run; without constraints on memory, and those that have no logarithm or were not
    measured, which count as failures where broken."""
    found: dict[str, float] = {}
    for text in objective.constraints if measurement.status == "ok" else []:
        metric, compare, bound = constraint(text)
        known = measurement.metrics.get(metric, math.nan)
        if metric != "peak_memory_gib" and bound > 0 and 0 < known < math.inf:
            found[text] = float(_squashed(closeness(np.array(known), compare, bound)))
    return found


def closeness(value: np.ndarray, compare: str, bound: float) -> np.ndarray:
    """y of values of a metric."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(value / bound) if compare == "<=" else np.log(bound / value)


def _squashed(y: np.ndarray) -> np.ndarray:
    return np.where(y > 0, _BEYOND * np.tanh(y / _BEYOND), y)


class Limits:
    """n rows told, m watched; one belief per constraint with data."""

    def __init__(self, encoding: Encoding, foreseen: Foreseen) -> None:
        self._encoding, self._foreseen = encoding, foreseen
        self._of: dict[str, PeakBelief] = {}

    @property
    def told(self) -> bool:
        """Whether any constraint has data."""
        return bool(self._of)

    def tell(self, row: np.ndarray, encoded: EncodedRows, over: Mapping[str, float]) -> None:
        """One row of the pool, and its y per constraint."""
        for text, y in over.items():
            if text not in self._of:
                self._of[text] = PeakBelief(self._encoding, text in self._foreseen)
            self._of[text].tell(encoded, y, float(self._said(text, row)[0]))

    def stale(self, growth: float) -> bool:
        return any(each.stale(growth) for each in self._of.values())

    def fit(self) -> None:
        for each in self._of.values():
            each.fit()

    def watch(self, rows: np.ndarray, encoded: EncodedRows) -> None:
        """Sets the rows that `chance` is about."""
        for text, each in self._of.items():
            each.watch(encoded, self._said(text, rows))

    def turn(self, kept: np.ndarray, fresh: np.ndarray, encoded: EncodedRows) -> None:
        """Keeps the watched rows at `kept` (positions) and appends fresh ones."""
        for text, each in self._of.items():
            each.turn(kept, encoded, self._said(text, fresh))

    def chance(self) -> np.ndarray | float:
        """(m,) chance that the watched rows keep all constraints; 1 while nothing is known."""
        found: np.ndarray | float = 1.0
        for each in self._of.values():
            found = found * each.chance()
        return found

    def _said(self, text: str, rows: np.ndarray) -> np.ndarray:
        return _squashed(self._foreseen.of(text, rows))
