"""Rules for when warm-up is over, when enough was measured, and when a run can no longer win. They import none of our
packages, so that workers can use them, too (running/early.py). All ranks get the same seconds, so they decide alike."""

import math
import statistics
from collections.abc import Sequence

Z = 3.0
LEAST = 0.05  # smallest slowdown for which a run is ended: iterations may drift this much
NEEDED = 3  # iterations needed before a run may be ended
WIDE = 0.1  # largest relative half-width that is settled, however noisy repeats are
FEW = 4  # iterations needed for a usable interval
SEARCHED = 2  # iterations that suffice in the search, where comparisons may be rough, since finalists run again
USUAL = 10  # a job that asks for more iterations than this gets all of them
NARROW = 0.01  # relative width below which more iterations add little
MOST_WARM = 5  # extra warm-up iterations, beyond those requested
_FALLING = 0.1  # an iteration counts as warm-up if the next one is faster by more than this share
_LEAST = 2  # minimum number of measured iterations


def still_warm(seconds: Sequence[float], warmed: int, asked: int) -> bool:
    """Whether the first measured iteration was still warm-up, after `warmed` warm-up iterations of `asked`
    requested."""
    return len(seconds) == _LEAST and warmed < asked + MOST_WARM and seconds[1] < (1 - _FALLING) * seconds[0]


def warm_up(seconds: Sequence[float], asked: int) -> int:
    """How many of a run's iterations were warm-up: at least the `asked` ones, but at least two are left as measured."""
    warmed = asked
    while len(seconds) > warmed + _LEAST and still_warm(seconds[warmed : warmed + _LEAST], warmed, asked):
        warmed += 1
    return warmed


def enough(seconds: Sequence[float], iterations: int, measure_s: float, spread: float = 0.0, few: int = FEW) -> bool:
    """Whether enough was measured: `iterations`; or at least `few` if the run is settled and no more than USUAL were
    requested; or as many as fit into `measure_s`."""
    n = len(seconds)
    if n < _LEAST:
        return False
    if n >= iterations or sum(seconds) + min(seconds) > measure_s:
        return True
    if n < few or iterations > USUAL:
        return False
    return settled(seconds, spread)


def settled(costs: Sequence[float], spread: float = 0.0) -> bool:
    """Whether more iterations would add little: the mean is known within 1 %, or within the relative `spread` (10 % at
    most) between runs of the same configuration. Such a run is at most 1.12 times as uncertain as an endless one, since
    its standard error is at most half of the spread between runs."""
    return width(costs) <= max(NARROW, min(spread, WIDE))


def width(costs: Sequence[float]) -> float:
    """Relative half-width of the 95 % interval of the mean (two standard errors); needs two iterations."""
    return 2 * statistics.stdev(costs) / math.sqrt(len(costs)) / statistics.fmean(costs)


def hopeless(costs: Sequence[float], best: float, spread: float) -> str:
    """Why a run with these costs per iteration (after warm-up) cannot win; "" if it still can. `spread`: relative
    standard deviation between runs of one configuration."""
    if len(costs) < NEEDED or min(costs) <= 0:
        return ""
    logs = [math.log(c) for c in costs]
    behind = statistics.median(logs) - math.log(best)
    noise = math.sqrt(statistics.variance(logs) / len(logs) + 2 * spread**2)
    if behind <= max(LEAST, Z * noise):
        return ""
    return (
        f"ended early: {math.exp(behind) - 1:.0%} behind the best after {len(costs)} iterations, but noise explains "
        f"only {math.exp(max(LEAST, Z * noise)) - 1:.0%} (at most 1 in 1000 such runs is given up wrongly)"
    )
