"""The end of a session: is the winner really better than the expert default, and by how much?

The best of many single measurements is partly luck. So the finalists and the default are measured again, in
turns so that drift hits all alike, and only these new measurements decide.
"""

import math
import statistics

from autoscout.job.objective import cost, to_metric
from autoscout.space.graph import Space
from kb.journal import Confirmed
from kb.records import Configuration, Job, Measurement

FINALISTS = 3
_WITHIN = 1.15  # of the best single measurement: what noise may hide

# Two-sided 95 % quantiles of Student's t by degrees of freedom.
_T95 = (math.inf, 12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


def finalists(job: Job, measured: list[Measurement], default: Configuration) -> list[Configuration]:
    """The best few correct, measured configurations and, if it works at all, the default; best first."""
    ranked = sorted(
        ((c, m) for m in measured if m.fidelity == "measured" and (c := cost(job.objective, m)) is not None),
        key=lambda pair: pair[0],
    )
    if not ranked:
        return []
    chosen = [m.configuration for c, m in ranked[:FINALISTS] if c <= _WITHIN * ranked[0][0]]
    if any(m.configuration.id == default.id for _, m in ranked) and default not in chosen:
        chosen.append(default)
    return chosen


def round_of(finalists: list[Configuration], number: int) -> list[Configuration]:
    """Every finalist once, in opposite order every other round."""
    return finalists if number % 2 == 0 else finalists[::-1]


def undecided(job: Job, measured: list[list[Measurement]], default: Configuration) -> bool:
    """Something is faster than the default on average, but nothing measurably: more rounds would tell."""
    costs = _costs(job, measured)
    if default.id not in costs:
        return False
    means = {key: statistics.geometric_mean(values) for key, values in costs.items()}
    return min(means, key=means.__getitem__) != default.id and not _faster(costs, default.id)


def verdict(job: Job, space: Space, measured: list[list[Measurement]], default: Configuration) -> Confirmed | None:
    """Of the finalists that are measurably faster than the default (95 %), the one with the lowest cost (geometric
    mean over the rounds); the default where there is none. None if no finalist ran in every round."""
    costs = _costs(job, measured)
    if not costs:
        return None
    means = {key: statistics.geometric_mean(values) for key, values in costs.items()}
    eligible = [*_faster(costs, default.id), default.id] if default.id in costs else list(costs)
    winner = min(eligible, key=lambda key: (key == default.id, means[key]))
    others = sorted((key for key in costs if key != winner), key=means.__getitem__)
    gain = low = high = None
    if winner == default.id:
        gain = 1.0
    elif default.id in costs:
        gain, low, high = ratio(costs[default.id], costs[winner])
    behind, behind_low, behind_high = ratio(costs[others[0]], costs[winner]) if others else (None, None, None)
    configurations = {m.configuration.id: m.configuration for row in measured for m in row}
    return Confirmed(
        winner=configurations[winner],
        name=space.name(configurations[winner]),
        value=to_metric(job.objective, means[winner]),
        default_name=space.name(default),
        default_value=to_metric(job.objective, means[default.id]) if default.id in means else None,
        gain=gain,
        low=low,
        high=high,
        pairs=len(measured),
        rival_name=space.name(configurations[others[0]]) if others else "",
        behind=behind,
        behind_low=behind_low,
        behind_high=behind_high,
    )


def _costs(job: Job, measured: list[list[Measurement]]) -> dict[str, list[float]]:
    """Costs round by round of the finalists that ran in every round."""
    by_id: dict[str, list[float | None]] = {}
    for row in measured:
        for m in row:
            by_id.setdefault(m.configuration.id, []).append(cost(job.objective, m))
    return {key: [c for c in values if c is not None] for key, values in by_id.items() if None not in values}


def _faster(costs: dict[str, list[float]], default: str) -> list[str]:
    """Those whose advantage over the default is more than noise: the whole 95 % interval is above 1."""
    found = []
    for key, values in costs.items():
        low = ratio(costs[default], values)[1]
        if low is not None and low > 1.0:
            found.append(key)
    return found


def ratio(slower: list[float], faster: list[float]) -> tuple[float, float | None, float | None]:
    """Geometric mean over the rounds of slower / faster, and its 95 % interval (Student's t on the logarithm)."""
    logs = [math.log(s / f) for s, f in zip(slower, faster, strict=True)]
    mean = statistics.fmean(logs)
    if len(logs) < 2:
        return math.exp(mean), None, None
    half = half_width(logs)
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def half_width(values: list[float]) -> float:
    """Of the 95 % interval of the mean of two values or more (Student's t)."""
    return _T95[min(len(values) - 1, len(_T95) - 1)] * statistics.stdev(values) / math.sqrt(len(values))
