"""Searches for the highest request rate that meets the limits: increases or decreases the rate until it is bracketed,
then bisects. Each rate is tested until its limits are met or missed with 95 % confidence, or until `repeats` loads show
which is more likely. A load lasts several answer times, because the server could process a short burst at any rate. A
load has no more requests than time allows, and ends when continuing would not change the decision (load_watch.py).

plan["search"]: {"start": requests per second, "limits": [[metric, bound], …], "loads": maximum number of loads,
"repeats", "within": relative precision}. The plan's arrivals have a rate of 1."""

import math
import statistics
from collections.abc import Awaitable, Callable
from typing import Any

import load_watch
import prompts
from load_watch import FEWEST, LoadWatch

_SATURATED = 0.9  # the server is saturated if it answers less than this fraction of the arrivals
_LASTING = 4.0  # intended duration of a load, in median answer times; a load of half this duration still counts
_MOST_PLANS = 16  # longest load, in passes of the plan; if a longer one would be needed, the rate counts as overload
# Fractions of the time left that a load may take: a usual load; a load with the minimum number of requests for the
# quantiles; any load.
_SHARE, _FLOOR, _MOST = 0.35, 0.5, 0.6
_REFINES = 20  # minimum number of requests in a load that refines the rate
_IDLE = 0.5  # the next higher rate has at least this mean number of requests in flight, which any engine can process
_ALONE = 3  # if this many requests that were alone on the server break a limit, no rate can meet it
_STEPS = (1.5, 2.0)  # factors between rates until the highest rate is bracketed: first step; later steps
_SERVED = 0.9  # if a load ended early, the next rate is this fraction of the rate at which its requests were answered
Load = dict[str, Any]
Measure = Callable[[list[prompts.PromptRequest], LoadWatch], Awaitable[Load]]


def _forever() -> float:
    return math.inf


async def highest(plan: dict[str, Any], measure: Measure, left: Callable[[], float] = _forever) -> dict[str, Any]:
    """Returns a dictionary: "passes", the loads at the highest rate that meets the limits (if none does, at the lowest
    tested rate); "max_rate", this highest rate or 0.0; "tried", a list of {"rate", "kept", "loads", "requests"};
    "note", effects of the time limit; "early", whether time ran out before a rate met the limits; "alone", whether even
    requests alone on the server break the limits ("passes" then has these requests). `left`: returns the seconds
    left."""
    return await _Search(plan, measure, left).run()


class _Search:
    def __init__(self, plan: dict[str, Any], measure: Measure, left: Callable[[], float]) -> None:
        self.plan, self.search, self.measure, self.left = plan, plan["search"], measure, left
        self.needed = load_watch.needed(self.search["limits"])
        self.bounds = {
            what: max((ms / 1000 for metric, ms in self.search["limits"] if metric.startswith(what)), default=0.0)
            for what in ("ttft", "e2el")
        }
        self.loads = self.sent = 0  # number of loads so far; number of the plan's passes used so far
        self.felt = 0.0  # median answer time in seconds
        self.served = math.inf  # requests answered per second in the last overload
        self.wall: float | None = None  # seconds per request, for an engine that skips idle time
        self.lonely: list[dict[str, Any]] = []  # requests that were alone on the server
        self.hopeless = False  # whether the lonely requests break the limits
        self.fewest = math.inf  # minimum number of requests in a load that was shortened for lack of time

    async def run(self) -> dict[str, Any]:
        rate, kept, lost, steps = float(self.search["start"]), 0.0, math.inf, 0
        chosen: list[Load] = []
        tried: list[dict[str, Any]] = []
        within = 1 + self.search["within"]
        while self.loads < self.search["loads"] and lost > kept * within and not self.hopeless:
            if tried and self._within(rate, _SHARE * self.left()) < (_REFINES if kept else FEWEST):
                break
            passes, keeps = await self._test(rate)
            requests = sum(len(p["requests"]) for p in passes)
            tried.append({"rate": rate, "kept": keeps, "loads": len(passes), "requests": requests})
            if keeps:
                kept, chosen = rate, passes
            else:
                lost = rate
                chosen = chosen if kept else passes
            step, steps = _STEPS[min(steps, len(_STEPS) - 1)], steps + 1
            if kept and lost < math.inf:
                rate = math.sqrt(kept * lost)
            else:
                rate = max(kept * step, _IDLE / self.felt) if kept else min(lost / step, _SERVED * self.served)
        if self.hopeless and not kept:
            took = sum(r["chunks"][-1] - r["sent"] for r in self.lonely)
            chosen = [{**chosen[-1], "duration_s": took, "requests": self.lonely}]
        return {
            "passes": chosen,
            "max_rate": kept,
            "tried": tried,
            "note": self._note(kept, lost),
            "early": not kept and not self.hopeless and self.loads < self.search["loads"],
            "alone": self.hopeless and not kept,
        }

    async def _test(self, rate: float) -> tuple[list[Load], bool]:
        """Runs loads at a rate. Returns (the loads, whether they meet the limits)."""
        limits, passes = self.search["limits"], list[Load]()
        while True:
            count = self._count(rate)
            last = len(passes) + 1 >= self.search["repeats"] or self._within(rate, _MOST * self.left()) < 2 * count
            records = [r for p in passes for r in p["requests"]]
            before = [(load_watch.exceeding(records, *limit), len(records)) for limit in limits]
            watch = LoadWatch(limits, count, before, last, self._until())
            measured = await self._measured(rate, count, watch)
            over = watch.over
            keeps = False if over == "lost" else verdict([*passes, measured], limits, last or over == "late")
            if self._burst(rate, count) and keeps is not False and over != "kept":
                # Try a longer load if time allows; otherwise the rate counts as too high.
                keeps = None if self._count(rate) > count else False
                if keeps is None:
                    continue
            passes.append(measured)
            if keeps is None:
                continue
            if not keeps:
                self._learn(measured, over)
            return passes, keeps

    def _until(self) -> Callable[[], float]:
        """Returns a function that returns the seconds that a load may still take."""
        whole = self.left()
        kept_back = 0.0 if whole == math.inf else (1 - _MOST) * whole
        return lambda: self.left() - kept_back

    async def _measured(self, rate: float, count: int, watch: LoadWatch) -> Load:
        plans = math.ceil(count / len(self.plan["input_len"]))
        requests = [r._replace(arrival_s=r.arrival_s / rate) for r in _load(self.plan, self.sent, plans)[:count]]
        measured = await self.measure(requests, watch)
        self.loads, self.sent = self.loads + 1, self.sent + plans
        answered = [r for r in measured["requests"] if r["chunks"]]
        self.felt = statistics.median(load_watch.felt_ms(answered, "e2el")) / 1000 if answered else self.felt
        if measured.get("skips"):
            self.wall = measured["wall_s"] / max(len(answered), 1)
        return measured

    def _learn(self, measured: Load, over: str) -> None:
        """Learns from an overload: records the rate at which requests were answered, and whether even requests that
        were alone on the server break the limits."""
        done = [r for r in measured["requests"] if r["chunks"] and not r["error"]]
        if len(done) >= FEWEST or (done and over == "late"):
            seconds = max(r["chunks"][-1] for r in done) - min(r["sent"] for r in done)
            self.served = len(done) / max(seconds, 1e-9)
        self.lonely += load_watch.alone(sorted(done, key=lambda r: r["sent"]))
        for metric, bound in self.search["limits"]:
            at = metric.split("_")[1]
            if at != "mean" and len(self.lonely) >= _ALONE and not metric.startswith("itl"):
                exceed = load_watch.exceeding(self.lonely, metric, bound)
                self.hopeless |= load_watch.interval(exceed, len(self.lonely))[0] > load_watch.share_of(at)

    def _burst(self, rate: float, count: int) -> bool:
        """Whether a load is too short to show whether its queue grows."""
        return count < rate * max(_LASTING / 2 * self.felt, _LASTING * self._waits())

    def _waits(self) -> float:
        """Returns the seconds that a request may wait within the latency limits."""
        return max(self.bounds["ttft"], self.bounds["e2el"] - self.felt)

    # ---- how many requests -----------------------------------------------------------------------------------

    def _count(self, rate: float) -> int:
        """Returns the number of requests in a load: enough to last several answer times if time allows. Otherwise, as
        many as time allows, or as many as the limits' quantiles need if this leaves time for further loads."""
        usual = len(self.plan["input_len"])
        lasts = _LASTING * rate * max(self.felt, self._waits())
        wanted = min(max(math.ceil(lasts / usual), 1), _MOST_PLANS) * usual
        allowed = self._within(rate, _SHARE * self.left())
        if self._within(rate, _FLOOR * self.left()) >= self.needed:
            allowed = max(allowed, self.needed)
        count = max(min(wanted, allowed), min(FEWEST, wanted))
        if count < wanted:
            self.fewest = min(self.fewest, count)
        return int(count)

    def _within(self, rate: float, seconds: float) -> float:
        """Returns the number of requests that a load of this duration can have."""
        if self.wall is not None:
            return seconds / max(self.wall, 1e-9)
        return (seconds - self.felt) * rate

    def _note(self, kept: float, lost: float) -> str:
        found = []
        if self.fewest <= self.needed:
            few = (
                f"the {self.needed} that the latency quantiles need"
                if self.fewest == self.needed
                else "fewer than the latency quantiles need"
            )
            found.append(f"the time limit allowed loads of only {self.fewest:.0f} requests, {few}")
        if kept and self.loads < self.search["loads"] and lost > kept * (1 + self.search["within"]):
            above = "higher rates were not tried" if lost == math.inf else f"{lost:.3g} breaks the latency limits"
            found.append(f"the time limit ended the search at {kept:.3g} requests per second; {above}")
        return "; ".join(found)


def _load(plan: dict[str, Any], first: int, count: int) -> list[prompts.PromptRequest]:
    """Returns the requests of `count` consecutive passes."""
    found: list[prompts.PromptRequest] = []
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


def verdict(passes: list[Load], limits: list[list[Any]], last: bool) -> bool | None:
    """Returns whether loads at one rate meet all limits; None if undecided and this is not the `last` load."""
    records = [r for p in passes for r in p["requests"]]
    if any(r["error"] for r in records) or saturated(passes):
        return False
    found = [
        _keeps(load_watch.felt_ms(records, metric.split("_")[0]), metric.split("_")[1], bound, last)
        for metric, bound in limits
    ]
    return False if False in found else None if None in found else True


def saturated(passes: list[Load]) -> bool:
    """Whether the queue grows: requests arrive faster than they are answered, and late ones wait much longer."""
    behind, growing = 0, 0
    for p in passes:
        done, arrivals = p["requests"], [r["sent"] for r in p["requests"]]
        felt = [r["chunks"][-1] - r["sent"] for r in done]
        behind += len(done) * (max(arrivals) - min(arrivals)) < _SATURATED * (len(done) - 1) * p["duration_s"]
        growing += load_watch.grows(felt)
    return min(behind, growing) * 2 > len(passes)


def _keeps(values: list[float], at: str, bound: float, last: bool) -> bool | None:
    """Returns whether a limit is met; None if undecided. For a percentile: whether few enough values exceed the bound
    (Wilson's interval of their fraction). For a mean: whether the mean is within the bound (normal interval)."""
    n = len(values)
    if n < 2:
        return all(value <= bound for value in values)
    if at == "mean":
        mean = sum(values) / n
        half = 1.96 * math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1) / n)
        low, high, likely = mean - half, mean + half, mean <= bound
        limit = bound
    else:
        limit = load_watch.share_of(at)
        exceed = sum(value > bound for value in values)
        low, high = load_watch.interval(exceed, n)
        likely = exceed <= limit * (n - 1) + 1e-9  # if so, the interpolated percentile is within the bound, too
    if high < limit:
        return True
    if low > limit:
        return False
    return likely if last else None
