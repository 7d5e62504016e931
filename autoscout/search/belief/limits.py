"""The chance that a configuration keeps a job's constraints, each a belief of its own (latency, goodput, cost, …).

    y(x) = log of the metric over its bound (of the bound over the metric for >=),    P(x keeps it) = P(y(x) < 0)

A run that broke a constraint still ran: its metric is a value like any other. Runs that kept it show where the limit
lies before any breaks it. Memory has rules of its own (peaks.py), whose Gaussian process this shares.
"""

import math
from collections.abc import Mapping

import numpy as np

from autoscout.job.objective import constraint
from autoscout.search.belief.encoding import Encoding, Rows
from autoscout.search.belief.peaks import Memory
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
            y = math.log(known / bound) if compare == "<=" else math.log(bound / known)
            found[text] = _BEYOND * math.tanh(y / _BEYOND) if y > 0 else y
    return found


class Limits:
    """n rows told, m watched; one belief per constraint with data."""

    def __init__(self, encoding: Encoding) -> None:
        self._encoding = encoding
        self._of: dict[str, Memory] = {}

    @property
    def told(self) -> bool:
        """Whether any constraint has data."""
        return bool(self._of)

    def tell(self, row: Rows, over: Mapping[str, float]) -> None:
        """One row, and its y per constraint."""
        for text, y in over.items():
            self._of.setdefault(text, Memory(self._encoding)).tell(row, y)

    def stale(self, growth: float) -> bool:
        return any(each.stale(growth) for each in self._of.values())

    def fit(self) -> None:
        for each in self._of.values():
            each.fit()

    def watch(self, rows: Rows) -> None:
        """Sets the rows that `chance` is about."""
        for each in self._of.values():
            each.watch(rows)

    def turn(self, kept: np.ndarray, fresh: Rows) -> None:
        """Keeps the watched rows at `kept` (positions) and appends fresh ones."""
        for each in self._of.values():
            each.turn(kept, fresh)

    def chance(self) -> np.ndarray | float:
        """(m,) chance that the watched rows keep all constraints; 1 while nothing is known."""
        found: np.ndarray | float = 1.0
        for each in self._of.values():
            found = found * each.chance()
        return found
