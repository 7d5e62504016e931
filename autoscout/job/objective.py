"""Converts a measurement to a cost: positive, lower is better, None for failures and broken constraints."""

import functools
import math
import operator
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from kb.records import AutoscoutError, Configuration, Measurement, Objective

_CONSTRAINT = re.compile(r"^\s*(\w+)\s*(<=|>=)\s*(\d+\.?\d*(?:[eE][+-]?\d+)?)\s*$")
# Metrics or costs outside the range from 1 / _MOST to _MOST are errors. Ratios and squares of numbers in this range are
# finite doubles.
_MOST = 1e150
Row = tuple[Configuration, float | None]
_COMPARE = {"<=": operator.le, ">=": operator.ge}
# Key of Measurement.conditions for the factor by which the machine slowed down since the session's reference was first
# measured.
DRIFT = "drift"


def constraint(text: str) -> tuple[str, str, float]:
    """Parses a constraint: "peak_memory_gib <= 78" → (metric, operator, bound). Errors: AutoscoutError (exit 2)."""
    match = _CONSTRAINT.match(text)
    if not match:
        raise AutoscoutError(f"'{text}' is not a constraint; write for example peak_memory_gib <= 78", 2)
    return match[1], match[2], float(match[3])


def within_limits(objective: Objective, metrics: Mapping[str, Any]) -> Any:
    """Returns whether metrics satisfy the objective's constraints: a bool for numbers, an (n,) array for (n,)
    arrays."""
    limits = map(constraint, objective.constraints)
    kept = (_COMPARE[compare](metrics[metric], bound) for metric, compare, bound in limits)
    return functools.reduce(operator.and_, kept, True)


def request_limits(objective: Objective) -> dict[str, float]:
    """Returns "ttft", "tpot" or "e2el" → latency limit in ms, from the constraints. Requests within these limits count
    for goodput."""
    found: dict[str, float] = {}
    for metric, bound in latency_limits(objective):
        what = metric.split("_")[0]
        if what != "itl":
            found[what] = min(bound, found.get(what, math.inf))
    return found


def latency_limits(objective: Objective) -> list[tuple[str, float]]:
    """Returns (metric, bound in ms) of each latency constraint."""
    limited = [constraint(text) for text in objective.constraints]
    return [
        (metric, bound)
        for metric, compare, bound in limited
        if compare == "<=" and metric.split("_")[0] in ("ttft", "tpot", "itl", "e2el")
    ]


def cost(objective: Objective, measurement: Measurement) -> float | None:
    """Returns the metric (minimize) or its inverse (maximize); None for failures and broken constraints.

    A constraint on an unmeasured metric counts as broken, except in predictions, because these have only the
    objective's metric."""
    found = cost_of_run(objective, measurement)
    if found is None:
        return None
    for text in objective.constraints:
        metric, compare, bound = constraint(text)
        known = measurement.metrics.get(metric)
        if known is None and measurement.fidelity == "predicted":
            continue
        if known is None or not _COMPARE[compare](known, bound):
            return None
    return found


def cost_of_run(objective: Objective, measurement: Measurement) -> float | None:
    """Like `cost`, but also returns a cost for a run that breaks a constraint, because a search can learn from this
    run. The cost is corrected for drift of the machine's speed since the session began (tuning/anchors.py)."""
    value = measurement.metrics.get(objective.metric)
    if measurement.status != "ok" or value is None or not measurable(value):
        return None
    return from_metric(objective, value) / measurement.conditions.get(DRIFT, 1.0)


def measurable(value: float) -> bool:
    """Whether the value is positive, finite, and within the bounds of plausible measurements."""
    return 1 / _MOST <= value <= _MOST  # this is False for NaN


def others(objective: Objective) -> list[Objective]:
    """Returns the secondary objectives, each as an Objective. Errors: AutoscoutError (exit 2) for an invalid
    objective."""
    found = []
    for text in objective.also:
        goal, _, metric = text.strip().partition(" ")
        if goal not in ("minimize", "maximize") or not metric.strip().isidentifier():
            raise AutoscoutError(
                f"objective.also: '{text}' is not an objective; write for example minimize ttft_p99_ms", 2
            )
        metric = metric.strip()
        found.append(Objective(minimize=metric) if goal == "minimize" else Objective(maximize=metric))
    return found


def costs(objective: Objective, measurement: Measurement) -> list[float] | None:
    """Returns the costs for the first objective and for each objective in `also`; None if any cost is None."""
    raw = msgspec.structs.replace(measurement, conditions={})  # drift is corrected only for the first objective
    found = [cost(objective, measurement), *(cost(other, raw) for other in others(objective))]
    return _all_known(found)


def costs_of_run(objective: Objective, measurement: Measurement) -> list[float] | None:
    """Like `costs`, but also returns costs for a run that breaks a constraint."""
    raw = msgspec.structs.replace(measurement, conditions={})
    return _all_known([cost_of_run(objective, measurement), *(cost_of_run(each, raw) for each in others(objective))])


def rows_of(
    objective: Objective, measurements: Iterable[Measurement]
) -> tuple[list[Row], list[tuple[Configuration, float]]]:
    """Returns the data from which a search learns, as two lists of (configuration, cost or None for failures): runs
    without a broken constraint, and runs that broke a constraint."""
    rows: list[Row] = []
    broken: list[tuple[Configuration, float]] = []
    for m in measurements:
        kept, ran = cost(objective, m), cost_of_run(objective, m)
        if kept is None and ran is not None:
            broken.append((m.configuration, ran))
        else:
            rows.append((m.configuration, kept))
    return rows, broken


def _all_known(found: list[float | None]) -> list[float] | None:
    known = [c for c in found if c is not None]
    return known if len(known) == len(found) else None


def memory_bounds(objective: Objective) -> list[float]:
    """Returns the upper bounds of constraints on peak_memory_gib."""
    limits = [constraint(text) for text in objective.constraints]
    return [bound for metric, compare, bound in limits if (metric, compare) == ("peak_memory_gib", "<=") and bound > 0]


def broken(objective: Objective, measurement: Measurement) -> str:
    """Returns a sentence on the first constraint that a successful run breaks; "" if it breaks none."""
    for text in objective.constraints:
        metric, compare, bound = constraint(text)
        known = measurement.metrics.get(metric)
        if known is None or not _COMPARE[compare](known, bound):
            found = "not measured" if known is None else f"{known:.4g}"
            return f"breaks the constraint {text}: the value is {found}"
    return ""


def nearest_miss(objective: Objective, measurements: Iterable[Measurement]) -> str:
    """Returns a sentence on the run that breaks the constraints least, and on the constraint that it breaks; "" if
    there is no such run."""
    ran = [m for m in measurements if m.status == "ok" and m.counts and broken(objective, m)]
    nearest = min(ran, key=lambda m: _excess(objective, m), default=None)
    return f"The nearest is {nearest.name}: {broken(objective, nearest)}" if nearest else ""


def _excess(objective: Objective, measurement: Measurement) -> float:
    """Returns the largest factor by which a limit is exceeded; infinity if a metric was not measured."""
    factors = [1.0]
    for text in objective.constraints:
        metric, compare, bound = constraint(text)
        known = measurement.metrics.get(metric)
        if known is None:
            return math.inf
        over, under = (known, bound) if compare == "<=" else (bound, known)
        factors.append(over / under if under > 0 else math.inf if over > 0 else 1.0)
    return max(factors)


def from_metric(objective: Objective, value: float) -> float:
    return value if objective.minimize else 1.0 / value


def to_metric(objective: Objective, cost: float) -> float:
    return cost if objective.minimize else 1.0 / cost
