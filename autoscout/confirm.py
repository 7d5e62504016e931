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
    """The finalist with the lowest median cost, against the default and against the next best. None if no
    finalist ran in every round."""
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
    winner, *others = sorted(medians, key=medians.__getitem__)
    base = medians.get(default.id)
    gain = low = high = behind = behind_low = behind_high = None
    if base is not None:
        gain, low, high = (1.0, None, None) if winner == default.id else _ratio(by_id[default.id], by_id[winner])
    if others:
        behind, behind_low, behind_high = _ratio(by_id[others[0]], by_id[winner])
    return Confirmed(
        winner=configurations[winner],
        name=space.name(configurations[winner]),
        value=to_metric(job.objective, medians[winner]),
        default_name=space.name(default),
        default_value=None if base is None else to_metric(job.objective, base),
        gain=gain,
        low=low,
        high=high,
        pairs=len(measured),
        rival_name=space.name(configurations[others[0]]) if others else "",
        behind=behind,
        behind_low=behind_low,
        behind_high=behind_high,
    )


def _ratio(slower: list[float | None], faster: list[float | None]) -> tuple[float, float | None, float | None]:
    """Geometric mean over the rounds of slower / faster, and its 95 % interval (Student's t on the logarithm)."""
    logs = [math.log(s / f) for s, f in zip(slower, faster, strict=True) if s is not None and f is not None]
    mean = statistics.fmean(logs)
    if len(logs) < 2:
        return math.exp(mean), None, None
    half = _T95[min(len(logs) - 1, len(_T95) - 1)] * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)
