"""The highest rate of requests that keeps limits on latencies, as an experiment searches it
(targets/vllm/worker/rates.py): in loads of few requests, of which one is saturated where its queue grows.

By bisection: of many configurations over the fluid, of few over the event simulation.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

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
_OCTAVES, _HALVINGS = 8, 8  # below what can be answered; of these, down to 2.2 %
_SLOW = 0.02
_STEP, _STEPS, _FEW_HALVINGS = 1.25, 24, 3  # around the fluid's rate; of these, down to 2.8 %


def of_many(s: Setup, limits_ms: Mapping[str, float]) -> np.ndarray:
    """(n,) requests per second. `limits_ms`: metric → bound. 0 where no rate keeps them, NaN where nothing fits."""
    n = len(s.rate)
    searched = replace(s, concurrency=np.zeros(n), requests=np.full(n, float(REQUESTS_PER_LOAD)))
    wanted = {*limits_ms, "e2el_p50_ms"}
    at_one = fluid(replace(searched, rate=np.ones(n)), wanted)
    answer_s = at_one["e2el_p50_ms"] / 1e3

    def keeps(rate: np.ndarray) -> np.ndarray:
        nonlocal answer_s
        requests = np.clip(_LASTING * rate * answer_s, REQUESTS_PER_LOAD, _LONGEST)
        found = fluid(replace(searched, rate=rate, requests=requests), wanted)
        answer_s = found["e2el_p50_ms"] / 1e3
        return np.logical_and.reduce([found[metric] <= bound for metric, bound in limits_ms.items()])

    above = np.log2(1 / (at_one["load"] * _SATURATED))
    below = above - _OCTAVES
    possible = keeps(2**below)
    for _ in range(_HALVINGS):
        middle = (below + above) / 2
        kept = keeps(2**middle)
        below, above = np.where(kept, middle, below), np.where(kept, above, middle)
    return np.where(np.isnan(at_one["requests_per_s"]), np.nan, np.where(possible, 2**below, 0.0))


def of_one(traffic: Traffic, s: Setup, i: int, limits_ms: Mapping[str, float], near: float) -> float:
    """Of configuration i, which can serve; `near`: what `of_many` says of it."""
    near = near or _SLOW
    engine = engine_of(replace(s.of(np.array([i])), rate=np.array([near])), 0)
    limits, replicas = limits_of(s, i), max(int(s.replicas[i]), 1)
    front_end_s, each_s = float(s.front_end_s[i]), float(s.request_s[i])

    def load(seed: int, count: int, rate: float) -> list[Run]:
        """Of each replica."""
        shares = _at_rate(traffic, seed, count, rate, replicas)
        return [open_run(engine, limits, asked, front_end_s, each_s) for asked in shares]

    def keeps(rate: float) -> bool:
        count = traffic.requests or REQUESTS_PER_LOAD
        runs = load(0, count, rate)
        while (needed := _LASTING * rate * _answer_s(runs)) > 2 * count < _LONGEST:
            count = min(math.ceil(needed), _LONGEST)
            runs = load(0, count, rate)
        if needed > 2 * count:
            return False
        for seed in range(1, LOADS_PER_RATE):
            runs += load(seed, count, rate)
        found = metrics_of_run(_pooled(runs))
        return not _saturated(runs) and all(found.get(name, math.inf) <= bound for name, bound in limits_ms.items())

    rate, step = near, _STEP if keeps(near) else 1 / _STEP
    for _ in range(_STEPS):
        if keeps(rate * step) != (step > 1):
            break
        rate *= step
    else:
        return rate if step > 1 else 0.0
    below, above = sorted((rate, rate * step))
    for _ in range(_FEW_HALVINGS):
        middle = math.sqrt(below * above)
        below, above = (middle, above) if keeps(middle) else (below, middle)
    return below


def _at_rate(traffic: Traffic, seed: int, count: int, rate: float, replicas: int) -> list[Requests]:
    """The shares of a load that replicas get."""
    whole = of_traffic(traffic, seed, count)
    arrival_s = whole.arrival_s * whole.mean_rate / rate
    shares = [slice(i, None, replicas) for i in range(min(replicas, len(whole)))]
    return [
        Requests(arrival_s[own], whole.input_len[own], whole.output_len[own], whole.shared_prefix) for own in shares
    ]


def _answer_s(runs: list[Run]) -> float:
    return float(np.nanmedian(np.concatenate([run.end_s - run.arrival_s for run in runs])))


def _pooled(runs: list[Run]) -> Run:
    arrays = ("arrival_s", "first_s", "end_s", "output_len", "input_len", "gaps_s", "gap_counts")
    pooled = {name: np.concatenate([getattr(run, name) for run in runs]) for name in arrays}
    return replace(runs[0], **pooled, preemptions=sum(run.preemptions for run in runs))


def _saturated(runs: list[Run]) -> bool:
    """Of most loads fewer requests are answered than come, and the last wait much longer than the first."""
    behind = grows = 0
    for run in runs:
        felt = run.end_s - run.arrival_s
        quarter = max(1, len(felt) // 4)
        sending = run.arrival_s[-1] - run.arrival_s[0]
        behind += len(felt) * sending < _SATURATED * (len(felt) - 1) * (np.nanmax(run.end_s) - run.arrival_s[0])
        grows += np.nansum(felt[-quarter:]) > _GROWING * np.nansum(felt[:quarter])
    return min(behind, grows) * 2 > len(runs)
