"""The highest rate of requests that keeps limits on latencies, as an experiment searches it
(targets/vllm/worker/rates.py): in loads of few requests, of which one is saturated where its queue grows.

By bisection: of many configurations over the fluid, of few over the event simulation.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np

from autoscout.job.metrics import LOADS_PER_RATE, REQUESTS_PER_LOAD
from autoscout.simulate.serving.events import Run
from autoscout.simulate.serving.fluid import fluid
from autoscout.simulate.serving.latencies import metrics_of_run
from autoscout.simulate.serving.one_replica import engine_of, limits_of, open_run
from autoscout.simulate.serving.requests import Requests, of_traffic
from autoscout.simulate.serving.setup import Setup
from kb.records import Traffic

_SATURATED = 0.9  # answered share of arrivals below which the queue counts as growing
_GROWING = 1.5  # times as long as the first quarter of a load's requests its last waits then
_LASTING, _LONGEST = 4.0, 16 * REQUESTS_PER_LOAD  # a load: as many requests as come in so many answers, at most
_OCTAVES, _ROUNDS = 8, {1: 8, 15: 2}  # below what can be answered; of rates at once, down to 2.2 %
_FEW = 64  # configurations, of which so many rates at once take hardly longer than one
_SLOW = 0.02
_STEP, _STEPS, _DOWN = 1.25, 24, (1, 2, 4, 8, 16, 24)  # around the fluid's rate
_WITHIN = 1.03  # where the search ends
_SURE = 2.0  # times as many requests exceed a limit in a load as may, and two more: others would not help
_EASY = 0.75  # of a limit, which not one request of a load exceeds: others would not break it
_FILLED = 0.98  # of a cache, some of which engines keep free
_MOST_FOUND = 20_000
_IDLE_S = 1e5  # between the loads of engines that are alike, which one engine gets one after the other


def of_many(s: Setup, limits_ms: Mapping[str, float]) -> np.ndarray:
    """(n,) requests per second. `limits_ms`: metric → bound. 0 where no rate keeps them, NaN where nothing fits."""
    n = len(s.rate)
    searched = replace(s, concurrency=np.zeros(n), requests=np.full(n, float(REQUESTS_PER_LOAD)))
    wanted = {*limits_ms, "e2el_p50_ms"}
    at_one = fluid(replace(searched, rate=np.ones(n)), wanted)
    at_once = 1 if n > _FEW else max(_ROUNDS)
    answer_s = at_one["e2el_p50_ms"] / 1e3

    def kept(rates: np.ndarray) -> np.ndarray:
        """(n,) how many of (n, k) rising rates are kept, up to the first that is not."""
        nonlocal answer_s
        k, rate = rates.shape[1], rates.ravel()
        requests = np.clip(_LASTING * rate * np.repeat(answer_s, k), REQUESTS_PER_LOAD, _LONGEST)
        each = searched.of(np.repeat(np.arange(n), k)) if k > 1 else searched
        found = fluid(replace(each, rate=rate, requests=requests), wanted)
        all_kept = np.logical_and.reduce([found[metric] <= bound for metric, bound in limits_ms.items()])
        number = np.logical_and.accumulate(all_kept.reshape(n, k), axis=1).sum(axis=1)
        answer_s = found["e2el_p50_ms"].reshape(n, k)[np.arange(n), np.maximum(number - 1, 0)] / 1e3
        return number

    width = float(_OCTAVES)
    below = np.log2(1 / (at_one["load"] * _SATURATED)) - width
    possible = kept(2 ** below[:, None]) > 0
    parts = np.arange(1, at_once + 1) / (at_once + 1)
    for _ in range(_ROUNDS[at_once]):
        number = kept(2 ** (below[:, None] + parts * width))
        width /= at_once + 1
        below = below + number * width
    return np.where(np.isnan(at_one["requests_per_s"]), np.nan, np.where(possible, 2**below, 0.0))


class Highest(NamedTuple):
    """Requests per second; and how many tokens and requests were under way at most while it was searched: with room for
    more the search finds the same."""

    rate: float
    tokens: float
    requests: int


# By what a search depends on: the room, and what it found.
_FOUND: dict[Any, list[tuple[tuple[float, ...], Highest]]] = {}


def of_few(traffic: Traffic, s: Setup, limits_ms: Mapping[str, float]) -> np.ndarray:
    """As `of_many`, over events; those that an earlier search tells are not searched again."""
    n = len(s.rate)
    keys = [_key(traffic, s, i, limits_ms) for i in range(n)]
    rates = np.array([_known(key, _room(s, i)) for i, key in enumerate(keys)])
    rows = np.flatnonzero(np.isnan(rates))
    if not len(rows):
        return rates
    for i, near in zip(rows.tolist(), of_many(s.of(rows), limits_ms).tolist(), strict=True):
        rates[i] = near if np.isnan(near) else _known(keys[i], _room(s, i))
        if np.isnan(rates[i]) and not np.isnan(near):
            if len(_FOUND) >= _MOST_FOUND:
                _FOUND.clear()
            found = of_one(traffic, s, i, limits_ms, near)
            _FOUND.setdefault(keys[i], []).append((_room(s, i), found))
            rates[i] = found.rate
    return rates


def _key(traffic: Traffic, s: Setup, i: int, limits_ms: Mapping[str, float]) -> Any:
    """All that a search depends on beside the room: what knobs that differ come down to is often the same."""
    engine, shared = s.engine.of(np.array([i])), ("engine", "memory", "input_quantiles", "output_quantiles")
    values = [value for name, value in engine.__dict__.items() if name not in ("device", "latents", "params_bytes")]
    own = [f.name for f in fields(Setup) if f.name not in (*shared, "max_seqs", "block")]
    values += [*engine.latents, *(getattr(s, name)[i : i + 1] for name in own)]
    return engine.device.name, str(traffic), *limits_ms.items(), np.concatenate(values).astype(float).tobytes()


def _room(s: Setup, i: int) -> tuple[float, ...]:
    """Tokens of the cache and of a block, and requests at once."""
    return float(np.floor(s.memory.kv_tokens[i])), float(s.block[i]), float(s.max_seqs[i])


def _known(key: Any, room: tuple[float, ...]) -> float:
    """NaN: not known yet."""
    tokens, block, requests = room
    for searched, found in _FOUND.get(key, []):
        enough = found.tokens + found.requests * block <= _FILLED * tokens and found.requests <= requests
        if enough or searched == room:
            return found.rate
    return np.nan


class _Load(NamedTuple):
    """What the engines of a configuration did with one load; `shares`: the requests of each."""

    run: Run
    shares: list[slice]


class _Engines:
    """Of one configuration, under loads."""

    def __init__(self, traffic: Traffic, s: Setup, i: int, near: float) -> None:
        self.traffic, self.limits, self.replicas = traffic, limits_of(s, i), max(int(s.replicas[i]), 1)
        self.engine = engine_of(replace(s.of(np.array([i])), rate=np.array([near])), 0)
        self.front_end = float(s.front_end_s[i]), float(s.request_s[i])
        self.tokens, self.requests = 0.0, 0  # under way at most

    def load(self, seed: int, count: int, rate: float) -> _Load:
        whole = of_traffic(self.traffic, seed, count)
        n, arrival_s = min(self.replicas, len(whole)), whole.arrival_s * whole.mean_rate / rate
        own = [np.arange(j, len(whole), n) for j in range(n)]
        order, ends = np.concatenate(own), np.cumsum([len(rows) for rows in own]).tolist()
        later = np.repeat(np.arange(n) * (arrival_s[-1] + _IDLE_S), [len(rows) for rows in own])
        asked = Requests(arrival_s[order] + later, whole.input_len[order], whole.output_len[order], whole.shared_prefix)
        shares = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
        run = open_run(self.engine, self.limits, asked, *self.front_end)
        self._note(run)
        return _Load(run, shares)

    def _note(self, run: Run) -> None:
        order = np.argsort(np.concatenate([run.arrival_s, run.end_s]), kind="stable")
        for name, each in (("tokens", run.input_len + run.output_len), ("requests", np.ones(len(run.end_s), int))):
            under_way = np.cumsum(np.concatenate([each, -each])[order])
            setattr(self, name, max(getattr(self, name), under_way.max().item()))


def of_one(traffic: Traffic, s: Setup, i: int, limits_ms: Mapping[str, float], near: float) -> Highest:
    """Of configuration i, which can serve; `near`: what `of_many` says of it."""
    near = near or _SLOW
    engines = _Engines(traffic, s, i, near)

    def keeps(rate: float) -> bool:
        count = traffic.requests or REQUESTS_PER_LOAD
        loads = [engines.load(0, count, rate)]
        while (needed := _LASTING * rate * _answer_s(loads[0].run)) > 2 * count < _LONGEST:
            count = min(math.ceil(needed), _LONGEST)
            loads = [engines.load(0, count, rate)]
        surely = _surely(loads[0].run, limits_ms)
        if needed > 2 * count or surely is False:
            return False
        if surely is None or _saturated(loads):
            loads += [engines.load(seed, count, rate) for seed in range(1, LOADS_PER_RATE)]
        found = metrics_of_run(_pooled([load.run for load in loads]))
        return not _saturated(loads) and all(found.get(name, math.inf) <= bound for name, bound in limits_ms.items())

    return Highest(_searched(keeps, near), engines.tokens, engines.requests)


def _searched(keeps: Callable[[float], bool], near: float) -> float:
    below = above = near
    if keeps(near):
        for _ in range(_STEPS):
            below, above = above, above * _STEP
            if not keeps(above):
                break
        else:
            return above
    else:
        for steps in _DOWN:
            below, above = near / _STEP**steps, below
            if keeps(below):
                break
        else:
            return 0.0
    while above > below * _WITHIN:
        middle = math.sqrt(below * above)
        below, above = (middle, above) if keeps(middle) else (below, middle)
    return below


def _surely(run: Run, limits_ms: Mapping[str, float]) -> bool | None:
    """Whether more loads would keep or break the limits, too; None: they may do either."""
    gaps = np.maximum(run.output_len - 1, 1)
    felt = {
        "ttft": run.first_s - run.arrival_s,
        "e2el": run.end_s - run.arrival_s,
        "tpot": np.where(run.output_len > 1, (run.end_s - run.first_s) / gaps, 0.0),
        "itl": run.gaps_s,
    }
    easy = True
    for metric, bound in limits_ms.items():
        what, at, _ = metric.split("_")
        may = (1 - int(at[1:]) / 100) * len(run.end_s) if at != "mean" and what != "itl" else math.inf
        if np.sum(felt[what] * 1e3 > bound) > _SURE * may + 2:
            return False
        easy = easy and bool((felt[what] * 1e3 <= _EASY * bound).all())
    return True if easy else None


def _answer_s(run: Run) -> float:
    return float(np.nanmedian(run.end_s - run.arrival_s))


def _pooled(runs: list[Run]) -> Run:
    arrays = ("arrival_s", "first_s", "end_s", "output_len", "input_len", "gaps_s", "gap_counts")
    pooled = {name: np.concatenate([getattr(run, name) for run in runs]) for name in arrays}
    return replace(runs[0], **pooled, preemptions=sum(run.preemptions for run in runs))


def _saturated(loads: list[_Load]) -> bool:
    """Of most engines' loads fewer requests are answered than come, and the last wait much longer than the first."""
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
