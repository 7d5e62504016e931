"""Why no configuration is feasible: how close runs came to each constraint, and failures by status."""

import math

import msgspec

from autoscout.job.objective import constraint
from tui.session.state import Run, State


class Miss(msgspec.Struct, frozen=True):
    """A constraint and the run that comes closest to meeting it. `factor`: the factor by which this run misses the
    limit (1: it meets the limit)."""

    text: str
    value: float
    factor: float
    run: Run


class Failed(msgspec.Struct, frozen=True):
    status: str
    count: int
    example: Run


def misses(state: State) -> list[Miss]:
    """One entry per constraint whose metric was measured, with the largest `factor` first."""
    if state.job is None:
        return []
    found = []
    for text in state.job.objective.constraints:
        metric, compare, bound = constraint(text)
        near: list[Miss] = []
        for run in state.runs:
            value = run.measurement.metrics.get(metric) if run.measurement and run.measurement.status == "ok" else None
            if value is not None:
                over, under = (value, bound) if compare == "<=" else (bound, value)
                factor = max(1.0, over / under) if under > 0 else math.inf if over > 0 else 1.0
                near.append(Miss(text, value, factor, run))
        if near:
            found.append(min(near, key=lambda m: m.factor))
    return sorted(found, key=lambda m: -m.factor)


def nearest(state: State) -> Run | None:
    """The run closest to meeting all constraints at once."""
    limits = [run for run in state.runs if run.status == "limit" and run.measurement]
    return min(limits, key=lambda run: _excess(state, run), default=None)


def failures(state: State) -> list[Failed]:
    found = []
    for status, count in sorted(state.failures.items(), key=lambda item: -item[1]):
        example = next(run for run in reversed(state.runs) if run.status == status)
        found.append(Failed(status, count, example))
    return found


def _excess(state: State, run: Run) -> float:
    assert state.job is not None
    assert run.measurement is not None
    factors = [1.0]
    for text in state.job.objective.constraints:
        metric, compare, bound = constraint(text)
        value = run.measurement.metrics.get(metric)
        if value is None:
            return math.inf
        over, under = (value, bound) if compare == "<=" else (bound, value)
        factors.append(over / under if under > 0 else math.inf if over > 0 else 1.0)
    return max(factors)
