"""Decides when a load in the search for the highest rate may end early: when the latency limits can no longer be met,
when they are certainly met, or when time is up. Also computes the statistics for these limits.

A limit is [metric, bound in ms]. A limit on a percentile is decided by Wilson's interval for the fraction of requests
beyond the bound."""

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

_Z = 1.96
_GROWING = 1.5  # the queue grows if the last quarter of the requests takes this many times as long as the first quarter
_STEADY = 1.1  # below this ratio, the queue certainly does not grow
# a mean above this multiple of its bound is final: further loads are not expected to reduce it to the bound
_MEANS = 1.5
_LASTING = 2.0  # minimum duration of a load, in answer times, because the beginning of a burst may meet the limits
_AT_LEAST = 0.5  # fraction of a load that must be answered before it can meet the limits
FEWEST = 8  # minimum number of answers from which the engine's rate is estimated


class SentRequest(NamedTuple):
    """A sent request. Times are in seconds of one clock, None for future events."""

    sent: float
    first: float | None
    last: float | None
    tokens: int


class LoadWatch:
    """Watches a load. `requests`: number of requests in the load. `before`: for each limit, (requests beyond the bound,
    all requests) of earlier loads at this rate. `last`: whether no further load follows at this rate. `left`: returns
    the wall-clock seconds that the load may still take."""

    def __init__(
        self,
        limits: Sequence[Sequence[Any]],
        requests: int,
        before: Sequence[tuple[int, int]],
        last: bool,
        left: Callable[[], float],
    ) -> None:
        self.limits, self.requests, self.before, self.last, self.left = limits, requests, before, last, left
        self.over = ""  # the reason if the load was ended early

    def ends(self, now: float, seen: Sequence[SentRequest]) -> bool:
        """Whether the load may end. `seen`: requests sent by `now`, in order. A load never ends before the first
        answer."""
        answers = sum(s.last is not None for s in seen)
        late = answers > 0 and self.left() <= 0
        if answers < FEWEST and not late:
            return False
        lost = any(self._lost(limit, before, now, seen) for limit, before in self._each())
        self.over = "lost" if lost else "kept" if self._kept(now, seen) else "late" if late else ""
        return bool(self.over)

    def _each(self) -> list[tuple[Sequence[Any], tuple[int, int]]]:
        return list(zip(self.limits, self.before, strict=True))

    def _lost(self, limit: Sequence[Any], before: tuple[int, int], now: float, seen: Sequence[SentRequest]) -> bool:
        (metric, bound), (exceed, of) = limit, before
        what, at, _ = metric.split("_")
        felt = [_least_ms(what, s, now) for s in seen]
        if at == "mean":
            return not of and sum(felt) > (1 if self.last else _MEANS) * bound * self.requests
        exceed, of = exceed + sum(ms > bound for ms in felt), of + self.requests
        may = share_of(at)
        return interval(exceed, of)[0] > may or (self.last and exceed > may * (of - 1) + 1e-9)

    def _kept(self, now: float, seen: Sequence[SentRequest]) -> bool:
        done = list(itertools.takewhile(lambda s: s.last is not None, seen))
        if len(done) < _AT_LEAST * self.requests or any(metric.split("_")[1] == "mean" for metric, _ in self.limits):
            return False
        felt = [s.last - s.sent for s in done if s.last is not None]
        if grows(felt, _STEADY) or now - seen[0].sent < _LASTING * statistics.median(felt):
            return False
        for (metric, bound), (exceed, of) in self._each():
            what, at, _ = metric.split("_")
            exceed += sum(_least_ms(what, s, now) > bound for s in seen)
            if what == "itl" or interval(exceed, of + len(done))[1] >= share_of(at):
                return False
        return True


def _least_ms(what: str, s: SentRequest, now: float) -> float:
    """Returns the request's latency, or a lower bound while it is unknown."""
    if what == "ttft":
        seconds = (now if s.first is None else s.first) - s.sent
    elif what == "e2el":
        seconds = (now if s.last is None else s.last) - s.sent
    elif what == "tpot" and s.first is not None and s.tokens > 1:
        seconds = ((now if s.last is None else s.last) - s.first) / (s.tokens - 1)
    else:
        seconds = 0.0
    return seconds * 1000


def share_of(at: str) -> float:
    """Returns the fraction of requests that may exceed the bound of a percentile."""
    return 1 - int(at[1:]) / 100


def interval(exceed: int, of: int) -> tuple[float, float]:
    """Returns the lower and the upper end of Wilson's interval for the fraction beyond the bound."""
    share = exceed / of
    middle = (share + _Z**2 / (2 * of)) / (1 + _Z**2 / of)
    half = _Z / (1 + _Z**2 / of) * math.sqrt(share * (1 - share) / of + _Z**2 / (4 * of * of))
    return middle - half, middle + half


def needed(limits: Sequence[Sequence[Any]]) -> int:
    """Returns the minimum number of requests for which the limits' quantiles are defined."""
    ats = [metric.split("_")[1] for metric, _ in limits]
    return max([20, *(math.ceil(1 / share_of(at) - 1e-9) for at in ats if at != "mean")])


def grows(felt: Sequence[float], times: float = _GROWING) -> bool:
    quarter = max(1, len(felt) // 4)
    return sum(felt[-quarter:]) > times * sum(felt[:quarter])


def alone(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the requests during which no other request was in flight."""
    found, free = [], -math.inf
    for r, after in itertools.zip_longest(records, records[1:]):
        if r["sent"] >= free and (after is None or after["sent"] >= r["chunks"][-1]):
            found.append(r)
        free = max(free, r["chunks"][-1])
    return found


def exceeding(records: Sequence[dict[str, Any]], metric: str, bound: float) -> int:
    return sum(ms > bound for ms in felt_ms(records, metric.split("_")[0]))


def felt_ms(records: Sequence[dict[str, Any]], what: str) -> list[float]:
    """Returns milliseconds per request (ITL: per gap), as in autoscout/targets/vllm/load_plan.py."""
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
