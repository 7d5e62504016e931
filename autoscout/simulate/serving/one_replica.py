"""Runs the event simulation of one replica of a configuration, with the replica's shapes, limits and share of the
load."""

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

import numpy as np

from autoscout.job.requests import Requests, fixed_batch, of_traffic, poisson
from autoscout.simulate.serving.engine_run import EngineRun
from autoscout.simulate.serving.engine_shapes import EngineShapes
from autoscout.simulate.serving.engines import FIRST_PART
from autoscout.simulate.serving.events import simulate
from autoscout.simulate.serving.fluid import fluid
from autoscout.simulate.serving.held_back import EngineLimits
from autoscout.simulate.serving.setup import Setup
from autoscout.simulate.serving.step_times import StepTimes
from kb.records import Traffic

_MOST_KEPT = 128  # limit on the cached keys of _RUNS
_OF_LOAD = (  # fields of Setup that describe the load
    "replicas", "batch", "concurrency", "rate", "input_len", "output_len", "requests", "length_spread", "shared_prefix",
    "front_end_s", "request_s",
)  # fmt: skip

# Cache of runs, by all inputs except the limits in RoomUsed (cache capacity, concurrent requests, tokens per step).
_RUNS: dict[Hashable, list[tuple[EngineLimits, EngineRun]]] = {}


def replica_run(traffic: Any, s: Setup, i: int) -> EngineRun | None:
    """The run of configuration i; None if not even one request fits. Configurations share a run if they differ only in
    limits that no request reached."""
    limits, e = limits_of(s, i), engine_of(s, i)
    alike = _RUNS.setdefault((all_but_room(e, limits, s, i), str(traffic)), [])
    for own, run in alike:
        if run.room.same(own, limits):
            return run
    requests = requests_of(traffic, s, i)
    if limits.kv_tokens < int((requests.input_len + requests.output_len).min()):
        return None
    front_end_s, each_s = float(s.front_end_s[i]), float(s.request_s[i])
    if requests.concurrency:
        run = simulate(e, limits, replace(requests, front_end_s=(front_end_s, each_s)))
    else:
        run = open_run(e, limits, requests, front_end_s, each_s)
    if not run.room.short:
        alike.append((limits, run))
    if len(_RUNS) > _MOST_KEPT:
        del _RUNS[next(iter(_RUNS))]
    return run


def all_but_room(e: EngineShapes, limits: EngineLimits, s: Setup, i: int) -> Hashable:
    """A cache key: all inputs of configuration i's run except the limits in RoomUsed and the traffic. Configurations
    with different knobs often have the same key."""
    of_load = [getattr(s, name)[i : i + 1] for name in _OF_LOAD]
    prefix = limits.prefix_caching * (int(s.shared_prefix[i]) // limits.block * limits.block)
    scheduled = limits.long_prompt, limits.version, limits.reserved, limits.held, limits.held_several, limits.apart
    scheduled += limits.ahead, limits.held_from
    return e.key(), scheduled, prefix, np.concatenate(of_load).astype(float).tobytes()


def open_run(
    e: EngineShapes,
    limits: EngineLimits,
    requests: Requests,
    front_end_s: float,
    each_s: float,
    times: StepTimes | None = None,
    enough: Callable[[EngineRun], bool] | None = None,
) -> EngineRun:
    """A run of an open load, whose requests pass a front end that takes `front_end_s` per request, and is busy for
    `each_s` of it. The other arguments are those of events.simulate()."""
    run = simulate(e, limits, through_front_end(requests, each_s), times, enough)
    return replace(run, arrival_s=requests.arrival_s - front_end_s)


def as_full(at_once: float, replicas: int) -> float:
    """The factor from the simulated replica's throughput to the total. It may be below `replicas`, because the
    simulated replica has the largest share if users do not divide evenly. `at_once`: users, or batch size; 0: open
    load."""
    return at_once / -(-at_once // replicas) if at_once else replicas


def engine_of(s: Setup, i: int) -> EngineShapes:
    """The shapes of one replica, including its waits for engines in lockstep (lockstep.py)."""
    e = s.engine.of(np.array([i]))
    if e.meeting[0] == 1 or s.batch[i] > 0:
        return e
    return replace(e, others_s=fluid(s.of(np.array([i])), ())["others_s"])


def through_front_end(requests: Requests, each_s: float) -> Requests:
    """The requests with the times at which they leave the API server's event loop, which runs the first part of all
    waiting requests before it continues with any (see FIRST_PART). Therefore even the first of a thousand simultaneous
    requests waits for all the others."""
    if requests.concurrency or not each_s:
        return requests
    first_s, then_s = each_s * FIRST_PART, each_s * (1 - FIRST_PART)
    sent, reached, begun, now = requests.arrival_s.tolist(), list[float](), 0, 0.0
    while len(reached) < len(sent):
        if begun < len(sent) and (sent[begun] <= now or begun == len(reached)):
            now = max(now, sent[begun]) + first_s
            begun += 1
        else:
            now += then_s
            reached.append(now)
    return replace(requests, arrival_s=np.array(reached))


def limits_of(s: Setup, i: int) -> EngineLimits:
    return EngineLimits(
        kv_tokens=int(s.memory.kv_tokens[i]),
        max_seqs=int(s.max_seqs[i]),
        batched_tokens=int(s.batched_tokens[i]),
        block=int(s.block[i]),
        chunked=bool(s.chunked[i]),
        long_prompt=int(min(s.long_prompt[i], 2**62)) if s.chunked[i] else 2**62,
        prefix_caching=bool(s.prefix_caching[i]),
        version=int(s.version[i]),
        reserved=float(s.reserved[i]),
        held=int(s.held[i]),
        held_from=int(s.held_from[i]),
        held_several=int(s.held_several[i]),
        apart=int(s.apart[i]),
        ahead=bool(s.ahead[i]),
    )


def requests_of(traffic: Any, s: Setup, i: int) -> Requests:
    replicas = max(int(s.replicas[i]), 1)
    if isinstance(traffic, Traffic):
        whole = of_traffic(traffic)
        own = slice(0, None, replicas)
        users = -(-whole.concurrency // replicas)
        return Requests(whole.arrival_s[own], whole.input_len[own], whole.output_len[own], whole.shared_prefix, users)
    inputs, outputs = int(s.input_len[i]), int(s.output_len[i])
    if s.batch[i] > 0:
        return fixed_batch(-(-int(s.batch[i]) // replicas), inputs, outputs)
    count = max(int(s.requests[i]) // replicas, 1)
    rng = np.random.default_rng(0)
    users = -(-int(s.concurrency[i]) // replicas)
    arrival = np.zeros(count) if users else poisson(s.rate[i] / replicas, count, rng)

    def lengths(mean: int) -> np.ndarray:
        spread = float(s.length_spread[i])
        return np.maximum(np.rint(mean * rng.uniform(1 - spread, 1 + spread, count)), 1).astype(int)

    return Requests(arrival, lengths(inputs), lengths(outputs), int(s.shared_prefix[i]), users)
