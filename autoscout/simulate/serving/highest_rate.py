"""Predicts the highest request rate at which latencies stay within limits, by the same search over short loads as a
real experiment (targets/vllm/worker/rates.py). A rate also fails if it saturates the engine, so that the queue grows.

The search is a bisection, on the fluid model for many configurations and on the event simulation for few."""

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from autoscout.job.metrics import LOADS_PER_RATE, RATES_APART, REQUESTS_PER_LOAD
from autoscout.job.requests import Requests, of_traffic
from autoscout.simulate.serving.engine_run import EngineRun, RoomUsed, step_times
from autoscout.simulate.serving.engine_shapes import columns_at
from autoscout.simulate.serving.fleet_fluid import fleet_fluid
from autoscout.simulate.serving.fleet_run import Fleets
from autoscout.simulate.serving.fluid import fluid
from autoscout.simulate.serving.held_back import EngineLimits
from autoscout.simulate.serving.latencies import metrics_of_run
from autoscout.simulate.serving.one_replica import all_but_room, engine_of, limits_of, open_run
from autoscout.simulate.serving.serving_fleet import FleetLoad
from autoscout.simulate.serving.setup import Setup
from kb.records import Traffic

_SATURATED = 0.9  # an engine falls behind if it answers less than this share of the requests that arrive
_GROWING = 1.5  # the queue grows if the latencies of the last quarter exceed those of the first by this factor
_LASTING, _LONGEST = 4.0, 16 * REQUESTS_PER_LOAD  # duration of a load, in answer times; most requests of a load
# _OCTAVES: octaves searched below capacity. _ROUNDS: rates tried per round → number of rounds that reach a resolution
# of 2.2 %.
_OCTAVES, _ROUNDS = 8, {1: 8, 15: 2}
_FEW = 64  # up to this many configurations, evaluating several rates at once takes hardly longer than one
_SLOW = 0.02  # requests per second to start from without an estimate
# Step sizes of the search, as exponents of RATES_APART: the first, the one up to which they double, and the last.
_STEPS, _FAR, _MOST = 8, 64, 192
_SURE = 2.0  # a limit is clearly broken if this many times the allowed number of requests (plus two) exceed it
_EASY = 0.75  # a limit is clearly kept if no request exceeds this share of it
_MOST_FOUND = 20_000  # limit on cached results
_PER_REQUEST = ("arrival_s", "first_s", "end_s", "output_len", "input_len")  # arrays of a run
_OF_NO_FLEET = MappingProxyType[str, Any]({})  # without columns, no configuration has separate engines for prompts
_IDLE_S = 1e5  # pause between the loads of a configuration's engines, which are simulated one after another on one


def of_many(s: Setup, limits_ms: Mapping[str, float], columns: Mapping[str, Any] = _OF_NO_FLEET) -> np.ndarray:
    """(n,) highest rates in requests per second. `limits_ms`: latency metric → limit. `columns`: of the same
    configurations. 0: every rate breaks the limits; NaN: the model or a request does not fit into memory."""
    n = len(s.rate)
    searched = replace(s, concurrency=np.zeros(n), requests=np.full(n, float(REQUESTS_PER_LOAD)))
    wanted = {*limits_ms, "e2el_p50_ms"}
    at_one = fleet_fluid(columns, replace(searched, rate=np.ones(n)), wanted)
    at_once = 1 if n > _FEW else max(_ROUNDS)
    answer_s = at_one["e2el_p50_ms"] / 1e3

    def share_kept(rates: np.ndarray) -> np.ndarray:
        """(n,) how many of the ascending (n, k) rates keep the limits, counted until the first rate that breaks one."""
        nonlocal answer_s
        k, rate = rates.shape[1], rates.ravel()
        requests = np.clip(_LASTING * rate * np.repeat(answer_s, k), REQUESTS_PER_LOAD, _LONGEST)
        rows = np.repeat(np.arange(n), k)
        each, its = (searched.of(rows), columns_at(columns, rows, n)) if k > 1 else (searched, columns)
        found = fleet_fluid(its, replace(each, rate=rate, requests=requests), wanted)
        all_kept = np.logical_and.reduce([found[metric] <= bound for metric, bound in limits_ms.items()])
        number = np.logical_and.accumulate(all_kept.reshape(n, k), axis=1).sum(axis=1)
        answer_s = found["e2el_p50_ms"].reshape(n, k)[np.arange(n), np.maximum(number - 1, 0)] / 1e3
        return number

    width = float(_OCTAVES)
    below = np.log2(1 / (at_one["load"] * _SATURATED)) - width
    possible = share_kept(2 ** below[:, None]) > 0
    parts = np.arange(1, at_once + 1) / (at_once + 1)
    for _ in range(_ROUNDS[at_once]):
        number = share_kept(2 ** (below[:, None] + parts * width))
        width /= at_once + 1
        below = below + number * width
    return np.where(np.isnan(at_one["requests_per_s"]), np.nan, np.where(possible, 2**below, 0.0))


class Highest(NamedTuple):
    """The result of a search. `rate`: requests per second; `room`: peak use of resources over all tried rates, under
    the engine limits `limits`."""

    rate: float
    room: RoomUsed
    limits: EngineLimits


# Results by all inputs of a search except the engine's limits.
_FOUND: dict[Hashable, list[Highest]] = {}


def of_few(traffic: Traffic, s: Setup, limits_ms: Mapping[str, float]) -> np.ndarray:
    """Like `of_many`, but by event simulation. It reuses the result of an earlier search that would have been
    identical, and starts each search at the previous result, because callers mostly compare similar configurations."""
    n, asked = len(s.rate), (str(traffic), *limits_ms.items())
    engines, limits = [s.engine.of(np.array([i])) for i in range(n)], [limits_of(s, i) for i in range(n)]
    keys = [(all_but_room(engines[i], limits[i], s, i), asked) for i in range(n)]
    found = [_known(*each) for each in zip(keys, limits, strict=True)]
    rows = np.array([i for i, known in enumerate(found) if known is None], dtype=int)
    start = next((known.rate for known in found if known and known.rate), 0.0)
    rates = np.array([np.nan if known is None else known.rate for known in found])
    for i in rows[_fits(s.of(rows))].tolist() if len(rows) else []:
        known = _known(keys[i], limits[i])
        if known is None:
            if len(_FOUND) >= _MOST_FOUND:
                _FOUND.clear()
            # With a start, the estimate only matters for the waits of engines in lockstep.
            alone = bool(start) and s.engine.meeting[i] == 1
            near = 0.0 if alone else float(of_many(s.of(np.array([i])), limits_ms)[0])
            known = of_one(traffic, s, i, limits_ms, near, start)
            _FOUND.setdefault(keys[i], []).append(known)
            start = known.rate or start
        rates[i] = known.rate
    return rates


def _fits(s: Setup) -> np.ndarray:
    """(n,) whether the model and a request fit into memory."""
    alone = replace(s, concurrency=np.zeros(len(s.rate)), rate=np.ones(len(s.rate)))
    return ~np.isnan(fluid(alone, ())["requests_per_s"])


def _known(key: Hashable, limits: EngineLimits) -> Highest | None:
    return next((found for found in _FOUND.get(key, []) if found.room.same(found.limits, limits)), None)


class _Load(NamedTuple):
    """One simulated load on all engines of a configuration, in a single `run`. `shares`: each engine's slice of the
    requests."""

    run: EngineRun
    shares: list[slice]


class _Engines:
    """The engines of configuration i, and the peak resources that their simulated loads used."""

    def __init__(self, traffic: Traffic, s: Setup, i: int, near: float, limits_ms: Mapping[str, float]) -> None:
        self.traffic, self.limits_ms = traffic, limits_ms
        self.limits, self.replicas = limits_of(s, i), max(int(s.replicas[i]), 1)
        self.engine = engine_of(replace(s.of(np.array([i])), rate=np.array([near])), 0)
        self.front_end = float(s.front_end_s[i]), float(s.request_s[i])
        self.times = step_times(self.engine, self.limits, 0) if self.limits.chunked and self.limits.version else None
        self.room = RoomUsed(0, 0, 0, short=False, full=False, cut=False)

    def load(self, seed: int, count: int, rate: float) -> _Load:
        """Simulates a load; stops early once it clearly breaks a limit."""
        whole = of_traffic(self.traffic, seed, count)
        n, arrival_s = min(self.replicas, len(whole)), whole.arrival_s * whole.mean_rate / rate
        own = [np.arange(j, len(whole), n) for j in range(n)]
        order, ends = np.concatenate(own), np.cumsum([len(rows) for rows in own]).tolist()
        later = np.repeat(np.arange(n) * (arrival_s[-1] + _IDLE_S), [len(rows) for rows in own])
        asked = Requests(arrival_s[order] + later, whole.input_len[order], whole.output_len[order], whole.shared_prefix)
        shares = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
        run = open_run(self.engine, self.limits, asked, *self.front_end, self.times, self._broken)
        self.room = self.room.joined(run.room)
        return _Load(run, shares)

    def _broken(self, run: EngineRun) -> bool:
        return _surely(run, self.limits_ms) is False


def of_one(
    traffic: Traffic, s: Setup, i: int, limits_ms: Mapping[str, float], near: float, start: float = 0.0
) -> Highest:
    """The search for configuration i, which must fit into memory. `near`: the estimate by `of_many`; `start`: the first
    rate to try (0: `near`)."""
    near = near or _SLOW
    engines = _Engines(traffic, s, i, near, limits_ms)
    rate = _searched(partial(_keeps, engines.load, traffic, limits_ms), near, start)
    return Highest(rate, engines.room, engines.limits)


def of_fleet(traffic: Traffic, fleets: Fleets, i: int, limits_ms: Mapping[str, float]) -> float:
    """The highest rate of configuration i, whose fleet is simulated as a whole; NaN if its requests do not fit. The
    search starts from the estimate by `of_many`."""
    s, one = fleets.setup, np.array([i])
    near = float(of_many(s.of(one), limits_ms, columns_at(fleets.columns, one, len(s.rate)))[0])
    if math.isnan(near):
        return math.nan

    def load(seed: int, count: int, rate: float) -> _Load:
        whole = of_traffic(traffic, seed, count)
        run = fleets.run(i, FleetLoad(replace(whole, arrival_s=whole.arrival_s * whole.mean_rate / rate)))
        assert run is not None  # a request of mean lengths fits, so the shortest one does
        order = np.argsort(run.arrival_s, kind="stable")
        return _Load(replace(run, **{name: getattr(run, name)[order] for name in _PER_REQUEST}), [slice(None)])

    return _searched(partial(_keeps, load, traffic, limits_ms), near or _SLOW, 0.0)


def _keeps(
    simulated: Callable[[int, int, float], _Load], traffic: Traffic, limits_ms: Mapping[str, float], rate: float
) -> bool:
    """Whether the limits are kept at a rate. `simulated`: a function from (seed, number of requests, rate) to a
    load."""
    count = traffic.requests or REQUESTS_PER_LOAD
    loads = [simulated(0, count, rate)]
    while (needed := _LASTING * rate * _answer_s(loads[0].run)) > 2 * count < _LONGEST:
        if loads[0].run.given_up:
            return False
        count = min(math.ceil(needed), _LONGEST)
        loads = [simulated(0, count, rate)]
    surely = _surely(loads[0].run, limits_ms)
    if needed > 2 * count or surely is False:
        return False
    if surely is None or _saturated(loads):
        # If the job's own number of requests makes a load longer than needed, fewer loads suffice.
        enough = math.ceil(LOADS_PER_RATE * max(needed, REQUESTS_PER_LOAD) / count)
        loads += [simulated(seed, count, rate) for seed in range(1, min(enough, _loads(traffic, count)))]
    found = metrics_of_run(_pooled([load.run for load in loads]))
    return not _saturated(loads) and all(found.get(name, math.inf) <= bound for name, bound in limits_ms.items())


def _loads(traffic: Traffic, count: int) -> int:
    """The number of loads to simulate per rate: 1 if the trace fixes the arrivals, so that every load is equal."""
    once, again = (of_traffic(traffic, seed, count).arrival_s for seed in (0, 1))
    return 1 if np.array_equal(once, again) else LOADS_PER_RATE


def _searched(keeps: Callable[[float], bool], near: float, start: float) -> float:
    """The highest rate for which `keeps` is true; 0 if there is none within the search range. Rates are powers of
    RATES_APART for all configurations, so that equal configurations get equal results. `near`, `start`: as in
    `of_one`."""

    def rate(number: int) -> float:
        return RATES_APART**number

    first = last = round(math.log(start or near) / math.log(RATES_APART))
    step, up = 1 if start else _STEPS, keeps(rate(first))
    while keeps(rate(at := first + (step if up else -step))) == up:
        if step == _MOST:
            return rate(at) if up else 0.0
        last, step = at, 2 * step if step < _FAR else _MOST
    below, above = sorted((last, at))
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (middle, above) if keeps(rate(middle)) else (below, middle)
    return rate(below)


def _surely(run: EngineRun, limits_ms: Mapping[str, float]) -> bool | None:
    """True or False if the run clearly keeps or breaks the limits, so that no further load is needed, else None."""
    gaps = np.maximum(run.output_len - 1, 1)
    felt = {
        "ttft": run.first_s - run.arrival_s,
        "e2el": run.end_s - run.arrival_s,
        "tpot": np.where(run.output_len > 1, (run.end_s - run.first_s) / gaps, 0.0),
        "itl": run.gaps_s,
    }
    easy = not run.given_up
    for metric, bound in limits_ms.items():
        what, at, _ = metric.split("_")
        may = (1 - int(at[1:]) / 100) * len(run.end_s) if at != "mean" and what != "itl" else math.inf
        if np.sum(felt[what] * 1e3 > bound) > _SURE * may + 2:
            return False
        easy = easy and bool((felt[what] * 1e3 <= _EASY * bound).all())
    return True if easy else None


def _answer_s(run: EngineRun) -> float:
    return float(np.nanmedian(run.end_s - run.arrival_s))


def _pooled(runs: list[EngineRun]) -> EngineRun:
    pooled = {
        name: np.concatenate([getattr(run, name) for run in runs]) for name in (*_PER_REQUEST, "gaps_s", "gap_counts")
    }
    return replace(runs[0], **pooled, preemptions=sum(run.preemptions for run in runs))


def _saturated(loads: list[_Load]) -> bool:
    """Whether most engines fall behind the arrivals and their queue grows (see _SATURATED, _GROWING)."""
    behind = grows = number = 0
    for load in loads:
        for share in load.shares:
            arrival_s, end_s = load.run.arrival_s[share], load.run.end_s[share]
            felt = end_s - arrival_s
            quarter = max(1, len(felt) // 4)
            sending = arrival_s[-1] - arrival_s[0]
            behind += len(felt) * sending < _SATURATED * (len(felt) - 1) * (np.nanmax(end_s) - arrival_s[0])
            grows += np.nansum(felt[-quarter:]) > _GROWING * np.nansum(felt[:quarter])
            number += 1
    return min(behind, grows) * 2 > number
