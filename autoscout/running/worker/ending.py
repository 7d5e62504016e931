"""When a run cannot win any more, and how well it is known: the rules by themselves, for processes without our packages
too (running/early.py)."""

import math
import statistics
from collections.abc import Sequence

Z = 3.0
LEAST = 0.05  # slower than the best, at least: what drifts while one iteration is measured
NEEDED = 3  # iterations before a run is given up
FEW = 4  # iterations from which on an interval is believed
USUAL = 10  # who asks for more than that gets them
NARROW = 0.01  # of the width: more iterations would hardly say more


def width(costs: Sequence[float]) -> float:
    """Half of the 95 % interval of the mean, as a share of it; of two iterations at least."""
    return 2 * statistics.stdev(costs) / math.sqrt(len(costs)) / statistics.fmean(costs)


def hopeless(costs: Sequence[float], best: float, spread: float) -> str:
    """ "" or why a run with these costs of its iterations (after warm-up) cannot win; `spread`: between two runs of one
    configuration, as a share."""
    if len(costs) < NEEDED or min(costs) <= 0:
        return ""
    logs = [math.log(c) for c in costs]
    behind = statistics.median(logs) - math.log(best)
    noise = math.sqrt(statistics.variance(logs) / len(logs) + 2 * spread**2)
    if behind <= max(LEAST, Z * noise):
        return ""
    return (
        f"ended early: {math.exp(behind) - 1:.0%} behind the best after {len(costs)} iterations, noise allows "
        f"{math.exp(max(LEAST, Z * noise)) - 1:.0%} (it is given up wrongly at most once in 1000 times)"
    )
