"""Ending a run early: one that cannot win any more, and one of which as much is known as a run can tell.

A run says its cost iteration by iteration. It is ended when it is slower than the best by more than noise allows: the
noise of its own iterations, and that between two runs of the same configuration. The risk that a configuration is given
up wrongly is that of a normal deviate beyond `ending.Z`, about 1 in 1000, where that noise is what it was so far. Such
a run is a measurement on the rung "short": the search learns from it, nothing is recommended on its strength.
"""

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from autoscout.job.objective import cost
from autoscout.running.worker import ending
from kb.records import Measurement, Objective

_SPREAD = 0.03  # prior relative spread between runs of one configuration, weighted as one repeat


class Bar(msgspec.Struct, frozen=True):
    """What a run has to beat: the `cost` of the best (inf: it is not given up, as in the rounds at the end), and what
    two runs of one configuration differ by: `spread`, a standard deviation, as a share."""

    cost: float
    spread: float = _SPREAD


@runtime_checkable
class Aimed(Protocol):
    """A profiler that can end its runs early."""

    def aim(self, bar: Bar | None) -> None:
        """What the next run has to beat; None: it is to be measured in full."""
        ...


def hopeless(costs: Sequence[float], bar: Bar | None) -> str:
    """ "" or why a run with these costs of its iterations (after warm-up) cannot win."""
    return ending.hopeless(costs, bar.cost, bar.spread) if bar else ""


def known_well(costs: Sequence[float], wanted: int, spent_s: float, measure_s: float, bar: Bar | None) -> str:
    """ "" or why a run may end: it is settled after as many iterations as wanted (of the usual number fewer will do),
    or the time for it is over."""
    if len(costs) < 2:
        return ""
    if spent_s >= measure_s:
        return f"measured for {spent_s:.1f} s"
    if len(costs) < (wanted if wanted > ending.USUAL else min(wanted, ending.FEW)):
        return ""
    if not ending.settled(costs, bar.spread if bar else 0.0):
        return ""
    return f"known within {ending.width(costs):.1%}"


def conditions(costs: Sequence[float], ended: bool) -> dict[str, float]:
    """How well its own iterations say it (`width`); of a run that was ended early the search doubts it as much."""
    if len(costs) < 2:
        return {}
    half = ending.width(costs)
    return {"width": half, "doubt": half / 2} if ended else {"width": half}


def bar(objective: Objective, told: Iterable[Measurement], gives_up: bool) -> Bar | None:
    """From what a session has measured so far; None before anything ran. `gives_up`: the next run may be."""
    by_id: dict[str, list[float]] = {}
    for m in told:
        c = cost(objective, m)
        if m.fidelity == "measured" and c is not None:
            by_id.setdefault(m.configuration.id, []).append(c)
    if not by_id:
        return None
    best = min(statistics.median(costs) for costs in by_id.values())
    steps = [
        math.log(b / a) ** 2 / 2 for costs in by_id.values() for a, b in itertools.pairwise(costs)
    ]  # not the drift
    return Bar(best if gives_up else math.inf, math.sqrt((_SPREAD**2 + sum(steps)) / (1 + len(steps))))
