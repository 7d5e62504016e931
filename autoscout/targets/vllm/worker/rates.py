"""Searches the highest request rate that meets the limits: doubles or halves it until it is bracketed, then bisects.
Each rate is tested until its limits are met or missed with 95 % confidence, or until `repeats` loads show which is
likelier. A load lasts several times as long as an answer takes: as many requests as may run at once are a burst, which
says nothing of a rate.

plan["search"]: {"start": requests a second, "limits": [[metric, bound], …], "loads": at most, "repeats", "within"}; the
plan's arrivals have the rate 1.
"""

import itertools
import math
import statistics
from collections.abc import Awaitable, Callable
from typing import Any

import prompts

_Z = 1.96
_SATURATED = 0.9  # answered share of arrivals below which the server counts as saturated
_GROWING = 1.5
_LASTING = 4.0  # times an answer's median time, for which requests are sent; half of it will do
_MOST_PLANS = 16  # a load is no longer; what is a burst then is taken for too much
Measure = Callable[[list[prompts.Request]], Awaitable[dict[str, Any]]]


async def highest(plan: dict[str, Any], measure: Measure) -> dict[str, Any]:
    """{"passes": at the highest rate that meets the limits (at the lowest tried if none does), "max_rate": that rate or
    0.0, "tried": [{"rate", "kept", "loads"}, …]}."""
    search = plan["search"]
    rate, kept, lost = float(search["start"]), 0.0, math.inf
    chosen: list[dict[str, Any]] = []
    tried: list[dict[str, Any]] = []
    loads = plans = 0
    felt = 0.0
    while loads < search["loads"] and lost > kept * (1 + search["within"]):
        passes: list[dict[str, Any]] = []
        keeps = None
        while keeps is None:
            lasts = min(_plans(plan, rate * felt), _MOST_PLANS)
            requests = [r._replace(arrival_s=r.arrival_s / rate) for r in _load(plan, plans, lasts)]
            measured = await measure(requests)
            loads, plans = loads + 1, plans + lasts
            answered = [r for r in measured["requests"] if r["chunks"]]
            felt = statistics.median(_felt(answered, "e2el")) / 1000 if answered else felt
            keeps = verdict([*passes, measured], search["limits"], len(passes) + 1 >= search["repeats"])
            burst = keeps is not False and 2 * lasts < _plans(plan, rate * felt)
            if burst:
                keeps = False if lasts == _MOST_PLANS else None
            if not burst or keeps is False:
                passes.append(measured)
        tried.append({"rate": rate, "kept": keeps, "loads": len(passes)})
        if keeps:
            kept, chosen = rate, passes
        else:
            lost = rate
            chosen = chosen if kept else passes
        rate = kept * 2 if lost == math.inf else lost / 2 if not kept else math.sqrt(kept * lost)
    return {"passes": chosen, "max_rate": kept, "tried": tried}


def _plans(plan: dict[str, Any], answers: float) -> int:
    """How many plans a load must last, of so many answers at a time."""
    return max(1, math.ceil(_LASTING * answers / len(plan["input_len"])))


def _load(plan: dict[str, Any], first: int, count: int) -> list[prompts.Request]:
    """The requests of `count` passes, one after the other."""
    found: list[prompts.Request] = []
    later, sessions = 0.0, 0
    for number in range(first, first + count):
        before = len(found)
        found += [
            r._replace(
                arrival_s=r.arrival_s + later,
                session=r.session + sessions if r.session >= 0 else r.session,
                on=r.on + before if r.on >= 0 else r.on,
            )
            for r in prompts.of_pass(plan, number)
        ]
        later = max(r.arrival_s for r in found) + 1
        sessions = 1 + max(r.session for r in found)
    return found


def verdict(passes: list[dict[str, Any]], limits: list[list[Any]], last: bool) -> bool | None:
    """Whether loads at one rate meet all limits; None: undecided, and this is not the `last` load."""
    records = [r for p in passes for r in p["requests"]]
    if any(r["error"] for r in records) or saturated(passes):
        return False
    found = [
        _keeps(_felt(records, metric.split("_")[0]), metric.split("_")[1], bound, last) for metric, bound in limits
    ]
    return False if False in found else None if None in found else True


def saturated(passes: list[dict[str, Any]]) -> bool:
    """Whether the queue grows: fewer requests are answered than arrive, and the last wait much longer than the
    first."""
    behind, grows = 0, 0
    for p in passes:
        done, arrivals = p["requests"], [r["sent"] for r in p["requests"]]
        felt = [r["chunks"][-1] - r["sent"] for r in done]
        quarter = max(1, len(felt) // 4)
        behind += len(done) * (max(arrivals) - min(arrivals)) < _SATURATED * (len(done) - 1) * p["duration_s"]
        grows += sum(felt[-quarter:]) > _GROWING * sum(felt[:quarter])
    return min(behind, grows) * 2 > len(passes)


def _felt(records: list[dict[str, Any]], what: str) -> list[float]:
    """Milliseconds per request (ITL: per gap), as in autoscout/targets/vllm/load_plan.py."""
    found: list[float] = []
    for r in records:
        chunks, sent = r["chunks"], r["sent"]
        if what == "ttft":
            found.append(chunks[0] - sent)
        elif what == "e2el":
            found.append(chunks[-1] - sent)
        elif what == "itl":
            found += [after - before for before, after in itertools.pairwise(chunks)]
        elif r["count"] > 1:
            found.append((chunks[-1] - chunks[0]) / (r["count"] - 1))
    return [seconds * 1000 for seconds in found]


def _keeps(values: list[float], at: str, bound: float, last: bool) -> bool | None:
    """For a percentile: whether few enough values exceed the bound (Wilson interval of their share); for the mean:
    whether it is within the bound (normal interval)."""
    n = len(values)
    if n < 2:
        return all(value <= bound for value in values)
    if at == "mean":
        mean = sum(values) / n
        half = _Z * math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1) / n)
        low, high, likely = mean - half, mean + half, mean <= bound
        limit = bound
    else:
        limit = 1 - int(at[1:]) / 100
        share = sum(value > bound for value in values) / n
        middle = (share + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
        half = _Z / (1 + _Z**2 / n) * math.sqrt(share * (1 - share) / n + _Z**2 / (4 * n * n))
        low, high = middle - half, middle + half
        likely = share * n <= limit * (n - 1) + 1e-9  # then the interpolated percentile is within it, too
    if high < limit:
        return True
    if low > limit:
        return False
    return likely if last else None
