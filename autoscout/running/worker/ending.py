"""Rules for when warm-up is over, when enough was measured, and when a run can no longer win. This file imports none of
our packages, so that workers can use it as well as running/early.py. All ranks evaluate the same iteration times, so
all make the same decision."""

import math
import statistics
from collections.abc import Sequence

Z = 3.0  # standard deviations by which a run must be slower than the best to be ended
LEAST = 0.05  # smallest relative slowdown for which a run is ended, since iteration times may drift this much
NEEDED = 3  # iterations needed before a run may be ended
WIDE = 0.1  # a precise mean ends a run only if it is known within this share, even if repeats differ by more
FEW = 4  # iterations needed for a usable interval
# iterations that suffice during the search, which needs only rough values, since finalists are measured again
SEARCHED = 2
USUAL = 10  # if a job asks for more iterations than this, a precise mean does not end its runs early
NARROW = 0.01  # relative half-width of the mean's interval below which more iterations add little
MOST_WARM = 5  # largest number of warm-up iterations beyond those requested
_FALLING = 0.1  # an iteration counts as warm-up if the next one is faster by more than this share
_LEAST = 2  # minimum number of measured iterations


def still_warm(seconds: Sequence[float], warmed: int, asked: int) -> bool:
    """Whether the first of two measured iterations counts as warm-up, too, because the second is much faster. `warmed`:
    warm-up iterations so far; `asked`: the requested number."""
    return len(seconds) == _LEAST and warmed < asked + MOST_WARM and seconds[1] < (1 - _FALLING) * seconds[0]


def warm_up(seconds: Sequence[float], asked: int) -> int:
    """Number of warm-up iterations of a run: at least `asked`, but the last two always count as measured."""
    warmed = asked
    while len(seconds) > warmed + _LEAST and still_warm(seconds[warmed : warmed + _LEAST], warmed, asked):
        warmed += 1
    return warmed


def enough(seconds: Sequence[float], iterations: int, measure_s: float, spread: float = 0.0, few: int = FEW) -> bool:
    """Whether a run was measured enough: for `iterations`; or for as many iterations as fit into `measure_s` seconds;
    or, unless more than USUAL were requested, for at least `few` if further iterations would add little."""
    n = len(seconds)
    if n < _LEAST:
        return False
    if n >= iterations or sum(seconds) + min(seconds) > measure_s:
        return True
    if n < few or iterations > USUAL:
        return False
    return settled(seconds, spread)


def settled(costs: Sequence[float], spread: float = 0.0) -> bool:
    """Whether more iterations would add little: the mean is known within 1 %, or within `spread`, the relative standard
    deviation between runs of the same configuration (10 % at most). The run's standard error is then at most half of
    the spread, so its uncertainty is at most 1.12 times that of an endless run."""
    return width(costs) <= max(NARROW, min(spread, WIDE))


def width(costs: Sequence[float]) -> float:
    """Relative half-width of the 95 % interval of the mean (two standard errors); needs two iterations."""
    return 2 * statistics.stdev(costs) / math.sqrt(len(costs)) / statistics.fmean(costs)


def hopeless(costs: Sequence[float], best: float, spread: float) -> str:
    """The reason why a run with these costs per iteration (after warm-up) cannot win; "" if it still can. `spread`:
    relative standard deviation between runs of one configuration."""
    if len(costs) < NEEDED or min(costs) <= 0:
        return ""
    logs = [math.log(c) for c in costs]
    behind = statistics.median(logs) - math.log(best)
    noise = math.sqrt(statistics.variance(logs) / len(logs) + 2 * spread**2)
    if behind <= max(LEAST, Z * noise):
        return ""
    return (
        f"ended early: {math.exp(behind) - 1:.0%} behind the best after {len(costs)} iterations, more than the "
        f"{math.exp(max(LEAST, Z * noise)) - 1:.0%} that noise can explain (at most 1 in 1000 such decisions is "
        "wrong)"
    )
