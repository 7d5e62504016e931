"""Decides whether a run may end early, because it can no longer win, or because its cost is known as precisely as one
run allows.

A run reports its cost per iteration. A run is ended when it is slower than the best configuration by more than noise
explains. Noise includes the variation between iterations and between two runs of one configuration. If the noise does
not change, the risk of wrongly giving up a configuration is the tail of a normal distribution beyond `ending.Z`
standard deviations, about 1 in 1000. A run that was ended because it cannot win has fidelity "short": the search learns
from it, but never recommends it."""

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from autoscout.job.objective import cost
from autoscout.running.worker import ending
from kb.records import Measurement, Objective

_SPREAD = 0.03  # prior for the relative standard deviation between runs of a configuration; weighs as much as one run


class Bar(msgspec.Struct, frozen=True):
    """The limit above which a run is ended early. `cost`: cost of the best configuration so far (inf: the run is not
    ended for its cost, as in the final rounds); `spread`: relative standard deviation between runs of one
    configuration."""

    cost: float
    spread: float = _SPREAD


@runtime_checkable
class Aimed(Protocol):
    """A profiler that can end its runs early."""

    def aim(self, bar: Bar | None) -> None:
        """Sets the limit above which the next run is ended early; None: the run is not ended for its cost."""
        ...


def hopeless(costs: Sequence[float], bar: Bar | None) -> str:
    """The reason why a run with these costs per iteration (after warm-up) cannot win; "" if it still can."""
    return ending.hopeless(costs, bar.cost, bar.spread) if bar else ""


def known_well(costs: Sequence[float], wanted: int, spent_s: float, measure_s: float, bar: Bar | None) -> str:
    """The reason why a run may end: its mean cost is precise enough, or its time is up; "" if it must continue. A run
    needs `wanted` iterations. If `wanted` is at most `ending.USUAL`, `ending.FEW` iterations are enough in the final
    rounds, and `ending.SEARCHED` in the search."""
    if len(costs) < 2:
        return ""
    if spent_s >= measure_s:
        return f"measured for {spent_s:.1f} s"
    few = ending.SEARCHED if bar is not None and bar.cost < math.inf else ending.FEW
    if len(costs) < (wanted if wanted > ending.USUAL else min(wanted, few)):
        return ""
    if not ending.settled(costs, bar.spread if bar else 0.0):
        return ""
    return f"known within {ending.width(costs):.1%}"


def conditions(costs: Sequence[float], ended: bool) -> dict[str, float]:
    """Measurement conditions by name. `width`: relative half-width of the 95 % interval of the mean cost; `doubt`:
    relative standard error of the mean, only for a run that was `ended` early."""
    if len(costs) < 2:
        return {}
    half = ending.width(costs)
    return {"width": half, "doubt": half / 2} if ended else {"width": half}


def bar(objective: Objective, measurements: Iterable[Measurement], gives_up: bool) -> Bar | None:
    """The limit for the next run, from a session's measurements so far; None before anything ran. `gives_up`: whether
    the next run may be ended because it cannot win."""
    by_id: dict[str, list[float]] = {}
    for m in measurements:
        c = cost(objective, m)
        if m.fidelity == "measured" and c is not None:
            by_id.setdefault(m.configuration.id, []).append(c)
    if not by_id:
        return None
    best = min(statistics.median(costs) for costs in by_id.values())
    # Differences between successive runs are not affected by slow drift.
    steps = [math.log(b / a) ** 2 / 2 for costs in by_id.values() for a, b in itertools.pairwise(costs)]
    return Bar(best if gives_up else math.inf, math.sqrt((_SPREAD**2 + sum(steps)) / (1 + len(steps))))
