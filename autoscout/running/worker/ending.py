"""When a run cannot win any more: the rule by itself, for processes without our packages too (running/early.py)."""

import math
import statistics
from collections.abc import Sequence

Z = 3.0
LEAST = 0.05  # slower than the best, at least: what drifts while one iteration is measured
NEEDED = 3  # iterations before a run is given up


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
