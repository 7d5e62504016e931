"""Disaggregated serving: separate engines for prompts and decoding (knob `prefill`; Zhong et al. 2024, "DistServe").

An engine of the prefill pool computes a request's prompt. The KV cache then crosses the node's links; each device sends
its part. The decode engine computes the last prompt token again, which yields the answer's first token (as with vLLM's
connectors). Both pools are simulated event by event. docs/lab/simulators-serving.md compares them with nine runs
measured by dstack."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from autoscout.job.requests import Requests
from autoscout.simulate.hardware.device import hardware
from autoscout.simulate.serving.engine_run import EngineRun
from autoscout.simulate.serving.engine_shapes import EngineShapes
from autoscout.simulate.serving.events import simulate
from autoscout.simulate.serving.held_back import EngineLimits
from autoscout.simulate.serving.one_replica import limits_of, requests_of
from autoscout.simulate.serving.setup import Setup, setup

Array = np.ndarray
ERROR = 0.2  # additional log error; assumed
# _ROUNDS: most iterations of `_closed`; _SETTLED: they stop if arrival times change by less than this share of the run
_ROUNDS, _SETTLED = 16, 0.005


def apart(columns: Mapping[str, Any], n: int) -> Array:
    """(n,) whether a configuration has a separate prefill pool."""
    return np.broadcast_to(np.nan_to_num(np.asarray(columns.get("prefill", 0), dtype=float)) > 0, (n,))


def run_apart(columns: Mapping[str, Any], s: Setup, i: int) -> EngineRun | None:
    """The run of one decode engine of configuration i. `columns`: of this configuration alone. None if no request
    fits."""
    ranks, size = (float(np.ravel(columns.get(name, 1))[0]) for name in ("prefill", "prefill_tp"))
    size = size if size > 0 else 1.0
    readers = setup({**columns, "tp": size, "dp": ranks / size, "pp": 1.0}, s.engine.device, 1)
    pools = _Pools(s, i, readers)
    alone = replace(s, replicas=np.ones_like(s.replicas))
    whole = requests_of(columns.get("traffic"), alone, i)
    least = int((whole.input_len + whole.output_len).min())
    if pools.writing.kv_tokens < least or pools.reading.kv_tokens < int(whole.input_len.min()) + 1:
        return None
    if not whole.concurrency:
        return pools.run(whole)
    return _closed(pools, whole)


class _Pools:
    def __init__(self, s: Setup, i: int, readers: Setup) -> None:
        self.reader, self.writer = readers.engine, s.engine.of(np.array([i]))
        self.front_end_s = float(s.front_end_s[i])
        self.reading, self.writing = limits_of(readers, 0), limits_of(s, i)
        self.readers, self.writers = max(int(readers.replicas[0]), 1), max(int(s.replicas[i]), 1)

    def run(self, whole: Requests) -> EngineRun:
        read = _read(self.reader, self.reading, self.readers, whole)
        there = read + transfer_s(self.reader, whole.input_len)
        order = np.argsort(there, kind="stable")[:: self.writers]
        order = order[np.isfinite(there[order])]
        own = Requests(there[order], whole.input_len[order], whole.output_len[order], received=True)
        answered = simulate(self.writer, self.writing, own)
        return replace(answered, arrival_s=whole.arrival_s[order] - self.front_end_s)


def _read(e: EngineShapes, limits: EngineLimits, engines: int, whole: Requests) -> Array:
    """(n,) seconds at which each request's prompt is complete; NaN for prompts too large for the engine."""
    done = np.full(len(whole), np.nan)
    for k in range(min(engines, len(whole))):
        own = slice(k, None, engines)
        inputs = whole.input_len[own]
        share = Requests(whole.arrival_s[own], inputs, np.ones_like(inputs), whole.shared_prefix)
        done[own] = simulate(e, limits, share).first_s
    return done


def transfer_s(e: EngineShapes, tokens: Array) -> Array:
    """Seconds to send the KV cache of `tokens` tokens; all devices of the engine send concurrently."""
    once, each = link_s(e)
    return once + tokens * each


def link_s(e: EngineShapes) -> tuple[float, float]:
    """(latency, seconds per token) of a KV cache transfer between two engines of a node."""
    hw = hardware(e.device.name)
    assert hw is not None  # a ServingDevice always has a hardware file
    send = hw.island.send
    return float(1e-6 * send.latency_us[0]), float(e.kv_bytes[0] * e.layers[0] / (1e9 * send.bus_gb_s[0]))


def _closed(pools: _Pools, whole: Requests) -> EngineRun:
    """The run of a closed loop, in which the end of an answer triggers the user's next request. Arrival times and
    answers are computed alternately, starting from unloaded engines; each round corrects one more request per user."""
    users, n = whole.concurrency, len(whole)
    run = pools.run(replace(whole, arrival_s=1e3 * np.arange(n), concurrency=0))
    arrival = (np.arange(n) // users) * float(np.nanmean(run.end_s - run.arrival_s))
    for _ in range(_ROUNDS):
        run = pools.run(replace(whole, arrival_s=arrival, concurrency=0))
        over = np.sort(np.where(np.isnan(run.end_s), run.arrival_s, run.end_s))  # refused requests end at once
        ends = np.repeat(over, pools.writers)[: max(n - users, 0)]
        before, arrival = arrival, np.concatenate([np.zeros(min(users, n)), ends])[:n]
        if np.abs(arrival - before).max() < _SETTLED * arrival[-1]:
            break
    return run
