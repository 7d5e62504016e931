"""The end of a session: is the winner really better than the expert default, and by how much?

The best of many single measurements is partly luck. So the finalists and the default are measured again, in
turns so that drift hits all alike, and only these new measurements decide.
"""

import math
import statistics

from autoscout.objective import cost, to_metric
from autoscout.space.graph import Space
from kb.journal import Confirmed
from kb.records import Configuration, Job, Measurement

FINALISTS = 3
_WITHIN = 1.15  # of the best single measurement: what noise may hide

# Two-sided 95 % quantiles of Student's t by degrees of freedom.
_T95 = (math.inf, 12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


def finalists(job: Job, measured: list[Measurement], default: Configuration) -> list[Configuration]:
    """The best few correct, profiled configurations and, if it works at all, the default; best first."""
    ranked = sorted(
        ((c, m) for m in measured if m.fidelity == "profiled" and (c := cost(job.objective, m)) is not None),
        key=lambda pair: pair[0],
    )
    if not ranked:
        return []
    chosen = [m.configuration for c, m in ranked[:FINALISTS] if c <= _WITHIN * ranked[0][0]]
    if any(m.configuration.id == default.id for _, m in ranked) and default not in chosen:
        chosen.append(default)
    return chosen


def rounds(finalists: list[Configuration], repeats: int) -> list[list[Configuration]]:
    """Every finalist once a round, in opposite order every other round."""
    return [finalists if i % 2 == 0 else finalists[::-1] for i in range(repeats)]


def verdict(job: Job, space: Space, measured: list[list[Measurement]], default: Configuration) -> Confirmed | None:
    """The finalist with the lowest median cost, and default / winner as a ratio of costs: geometric mean over
    the rounds with a 95 % interval (Student's t on its logarithm). None if no finalist ran in any round."""
    by_id: dict[str, list[float | None]] = {}
    configurations = {m.configuration.id: m.configuration for row in measured for m in row}
    for row in measured:
        for m in row:
            by_id.setdefault(m.configuration.id, []).append(cost(job.objective, m))
    medians = {
        key: statistics.median([c for c in costs if c is not None])
        for key, costs in by_id.items()
        if all(c is not None for c in costs)
    }
    if not medians:
        return None
    winner = min(medians, key=medians.__getitem__)
    base = medians.get(default.id)
    gain = low = high = None
    pairs = 0
    if base is not None and winner != default.id:
        logs = [math.log(d / w) for d, w in zip(_costs(by_id[default.id]), _costs(by_id[winner]), strict=True)]
        pairs = len(logs)
        mean = statistics.fmean(logs)
        gain = math.exp(mean)
        if pairs > 1:
            half = _T95[min(pairs - 1, len(_T95) - 1)] * statistics.stdev(logs) / math.sqrt(pairs)
            low, high = math.exp(mean - half), math.exp(mean + half)
    elif winner == default.id:
        gain = 1.0
    return Confirmed(
        winner=configurations[winner],
        name=space.name(configurations[winner]),
        value=to_metric(job.objective, medians[winner]),
        default_name=space.name(default),
        default_value=None if base is None else to_metric(job.objective, base),
        gain=gain,
        low=low,
        high=high,
        pairs=pairs,
    )


def _costs(costs: list[float | None]) -> list[float]:
    return [c for c in costs if c is not None]
