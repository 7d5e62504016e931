"""A session's Pareto front: which configurations are not dominated, by their medians of two metrics."""

import math
import statistics
from typing import Literal

import msgspec

from autoscout.job.objective import others
from kb.records import Objective
from tui.session.state import State

# Candidates, best first, for the second axis of a job that has only one objective.
_BESIDE = ("peak_memory_gib", "ttft_p99_ms", "tpot_p99_ms", "output_tokens_per_s")


class FrontPoint(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    x: float
    y: float
    kind: Literal["front", "knee", "beaten"]


class Front(msgspec.Struct, frozen=True, kw_only=True):
    x_name: str
    y_name: str
    wanted: bool  # whether the job has several objectives
    points: list[FrontPoint]  # points on the front in order, then dominated points


def front(state: State) -> Front | None:
    """The front; None without a second metric, or until two configurations have run within the constraints."""
    if state.job is None:
        return None
    objective = state.job.objective
    first, least = objective.metric, bool(objective.minimize)
    groups: dict[str, tuple[str, list[dict[str, float]]]] = {}
    for run in state.runs:
        if run.measurement is not None and run.value is not None:
            groups.setdefault(run.configuration.id, (run.name, []))[1].append(run.measurement.metrics)
    there = {name for _, rows in groups.values() for row in rows for name in row}
    measured_too = [
        Objective(maximize=m) if "per_s" in m else Objective(minimize=m) for m in _BESIDE if m in there and m != first
    ]
    goals = [other for other in others(objective) or measured_too[:1] if other.metric in there]
    if not goals:
        return None
    second, low = goals[0].metric, bool(goals[0].minimize)
    rows = []
    for key, (name, metrics) in groups.items():
        xs, ys = [m[first] for m in metrics if first in m], [m[second] for m in metrics if second in m]
        if xs and ys:
            rows.append((key, name, statistics.median(xs), statistics.median(ys)))
    costs = [(x if least else -x, y if low else -y) for _, _, x, y in rows]
    best = _unbeaten(costs)
    knee = _knee([costs[i] for i in best])
    points = [
        FrontPoint(id=key, name=name, x=x, y=y, kind="knee" if at == knee else "front")
        for at, (key, name, x, y) in enumerate(rows[i] for i in best)
    ]
    unbeaten = set(best)
    points += [
        FrontPoint(id=key, name=name, x=x, y=y, kind="beaten")
        for i, (key, name, x, y) in enumerate(rows)
        if i not in unbeaten
    ]
    return Front(x_name=first, y_name=second, wanted=bool(objective.also), points=points) if len(rows) > 1 else None


def _unbeaten(costs: list[tuple[float, float]]) -> list[int]:
    """Indices of the points that are not dominated, in order along the front; equal points are all included."""
    best: list[int] = []
    for i in sorted(range(len(costs)), key=costs.__getitem__):
        if not best or costs[i] == costs[best[-1]] or costs[i][1] < costs[best[-1]][1]:
            best.append(i)
    return best


def _knee(line: list[tuple[float, float]]) -> int | None:
    """The knee (best compromise) of a front: the point farthest from the straight line between its ends, with both axes
    scaled to 1; None for fewer than three points."""
    if len(line) < 3:
        return None
    (x0, y0), (x1, y1) = line[0], line[-1]
    away = [(x - x0) / (x1 - x0) + (y - y1) / (y0 - y1) if x1 > x0 and y0 > y1 else math.inf for x, y in line]
    return min(range(len(line)), key=away.__getitem__)
