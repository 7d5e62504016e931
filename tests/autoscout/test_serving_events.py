"""The event simulation of a server against one that takes every step, and against what must hold of it."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_serving_sim import one_engine

from autoscout.job import requests as load
from autoscout.simulate.serving import one_replica
from autoscout.simulate.serving.engine_shapes import EngineShapes
from autoscout.simulate.serving.events import simulate
from autoscout.simulate.serving.held_back import EngineLimits
from autoscout.simulate.serving.latencies import metrics_of_run
from autoscout.simulate.serving.serving_device import device
from autoscout.simulate.serving.setup import setup
from autoscout.simulate.serving.steps import decode_step_s, prefill_step_s
from kb.records import Traffic

_ALIKE = 40


class EveryStep:
    """vLLM's scheduler (version 1), one step at a time and with every sequence's blocks counted."""

    def __init__(self, e: EngineShapes, limits: EngineLimits, requests: load.Requests) -> None:
        self.e, self.limits, self.now, self.preemptions = e, limits, 0.0, 0
        self.free, self.since = limits.kv_tokens // limits.block, limits.held
        rows = zip(requests.arrival_s, requests.input_len, requests.output_len, strict=True)
        self.coming = [
            {"id": i, "at": float(a), "known": int(p), "asked": int(o), "done": 0, "blocks": 0, "decodes": False}
            for i, (a, p, o) in enumerate(rows)
            if blocks(int(p + o), limits) <= self.free and (limits.chunked or p <= limits.batched_tokens)
        ]
        self.waiting: list[dict[str, Any]] = []
        self.unseen: list[dict[str, Any]] = []
        self.running: list[dict[str, Any]] = []
        self.first = [math.nan] * len(requests)
        self.end = [math.nan] * len(requests)

    def run(self) -> None:
        while self.coming or self.waiting or self.running:
            if not (self.waiting or self.running):
                self.now = max(self.now, self.coming[0]["at"])
            late = self.limits.ahead and bool(self.waiting or self.running)
            while self.coming and self.coming[0]["at"] <= self.now:
                (self.unseen if late else self.waiting).append(self.coming.pop(0))
            self.step()
            self.waiting += self.unseen
            self.unseen.clear()

    def step(self) -> None:
        limits, before = self.limits, self.preemptions
        while (need := sum(s["done"] % limits.block == 0 for s in self.running if s["decodes"])) > self.free:
            last = self.running.pop()
            self.free += last["blocks"]
            last.update(done=0, blocks=0, decodes=False)
            self.waiting.insert(0, last)
            self.preemptions += 1
        decodes = [s for s in self.running if s["decodes"]]
        wait = len(self.waiting) + len(self.running) - len(decodes)
        turn = self.since >= (min(limits.held_several, limits.held) if wait > 1 else limits.held)
        turn = turn or len(self.running) < limits.held_from
        budget = limits.batched_tokens - len(decodes) if turn or not decodes else 0
        prompts = []
        for s in self.running:
            if not s["decodes"] and budget > 0:
                tokens = min(s["known"] - s["done"], budget)
                prompts.append((s, tokens))
                budget -= tokens
        while self.preemptions == before and self.waiting and budget > 0 and len(self.running) < limits.max_seqs:
            s = self.waiting[0]
            tokens = min(s["known"], budget)
            if tokens < s["known"] and not limits.chunked:
                break
            if blocks(s["known"], limits) + need > self.free:
                break
            self.running.append(self.waiting.pop(0))
            s["blocks"] = blocks(s["known"], limits)
            self.free -= s["blocks"]
            prompts.append((s, tokens))
            budget -= tokens
        self.since = 0 if prompts else self.since % max(limits.held, 1) + 1
        self.now += self.seconds(prompts, decodes)
        for s in decodes:
            if s["done"] % limits.block == 0:
                s["blocks"] += 1
                self.free -= 1
            s["done"] += 1
            self.sampled(s)
        for s, tokens in prompts:
            s["done"] += tokens
            if s["done"] == s["known"]:
                s["decodes"] = True
                self.sampled(s)

    def seconds(self, prompts: list[Any], decodes: list[Any]) -> float:
        context = sum(s["known"] for s in decodes)
        if not prompts:
            return float(decode_step_s(self.e, len(decodes), context)[0])
        tokens = sum(t for _, t in prompts)
        pairs = sum(t * (s["done"] + (t + 1) / 2) for s, t in prompts)
        return float(prefill_step_s(self.e, len(prompts), tokens, pairs, len(decodes), context)[0])

    def sampled(self, s: dict[str, Any]) -> None:
        if math.isnan(self.first[s["id"]]):
            self.first[s["id"]] = self.now
        s["known"] += 1
        s["asked"] -= 1
        if s["asked"] == 0:
            self.end[s["id"]] = self.now
            self.free += s["blocks"]
            self.running.remove(s)


def blocks(tokens: int, limits: EngineLimits) -> int:
    return -(-tokens // limits.block)


@given(
    lengths=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 40), st.floats(0, 0.3)), min_size=1, max_size=9),
    kv_tokens=st.integers(40, 400),
    max_seqs=st.integers(1, 5),
    batched=st.integers(8, 128),
    block=st.sampled_from([4, 16]),
    chunked=st.booleans(),
    held=st.tuples(st.integers(0, 7), st.integers(0, 7)),
    ahead=st.booleans(),
    held_from=st.integers(0, 4),
)
def test_skipping_steps_changes_nothing(lengths, kv_tokens, max_seqs, batched, block, chunked, held, ahead, held_from):
    inputs, outputs, arrivals = (np.array(c) for c in zip(*lengths, strict=True))
    requests = load.Requests(np.sort(arrivals), inputs, outputs)
    limits = EngineLimits(
        kv_tokens, max_seqs, max(batched, max_seqs), block, chunked, held=held[0], held_several=held[1]
    )
    limits = replace(limits, ahead=ahead, held_from=held_from)
    e = one_engine(overlap=False)
    run, slow = simulate(e, limits, requests), EveryStep(e, limits, requests)
    stuck = not chunked and (inputs + outputs).max() > limits.batched_tokens  # a preempted one may not fit in a step
    if stuck:
        return
    slow.run()
    np.testing.assert_allclose(run.end_s, slow.end, rtol=1e-9)
    np.testing.assert_allclose(run.first_s, slow.first, rtol=1e-9)
    assert run.preemptions == slow.preemptions


def test_every_token_is_counted_once_and_latencies_are_those_of_vllms_bench():
    requests = load.of_traffic(Traffic(rate=20, input_len=[10, 100, 900], output_len=[1, 40, 300]), requests=200)
    run = simulate(one_engine(), EngineLimits(200_000, 64, 2048), requests)
    assert run.gap_counts.sum() == (requests.output_len - 1).sum()
    found = metrics_of_run(run)
    many = requests.output_len > 1
    tpot = (run.end_s - run.first_s)[many] / (requests.output_len[many] - 1)
    assert found["tpot_mean_ms"] == pytest.approx(tpot.mean() * 1e3)
    assert found["ttft_p99_ms"] == pytest.approx(np.quantile(run.first_s - requests.arrival_s, 0.99) * 1e3)
    assert found["output_tokens_per_s"] == pytest.approx(requests.output_len.sum() / run.end_s.max())
    assert found["requests_per_s"] * requests.input_len.mean() + found["output_tokens_per_s"] == pytest.approx(
        found["total_tokens_per_s"]
    )
    limit = found["ttft_p50_ms"]
    assert metrics_of_run(run, slo_ms={"ttft": limit})["goodput_rps"] == pytest.approx(
        found["requests_per_s"] / 2, rel=0.02
    )


def test_closed_loop_has_as_many_requests_running_as_users():
    requests = load.of_traffic(Traffic(concurrency=8, input_len=200, output_len=[20, 200]), requests=100)
    run = simulate(one_engine(), EngineLimits(200_000), requests)
    started, ended = np.sort(run.arrival_s), np.sort(run.end_s)
    running = [int((started <= t).sum() - (ended <= t).sum()) for t in ended[:-8] + 1e-9]
    assert set(running) == {8}


def test_a_full_cache_preempts_and_still_serves_everybody():
    run = simulate(one_engine(), EngineLimits(1600, 64, 2048), load.fixed_batch(8, 100, 200))
    assert run.preemptions > 0
    assert np.isfinite(run.end_s).all()
    small = simulate(one_engine(), EngineLimits(250, 64, 2048), load.fixed_batch(2, 100, 200))
    assert np.isnan(small.end_s).all()  # not even one request fits


@pytest.mark.parametrize(
    "load", [{"rate": 3.0}, {"rate": 12.0}, {"concurrency": 24}, {"rate": 6.0, "shared_prefix": 60}]
)
def test_what_differs_in_room_that_nobody_waits_for_runs_alike(load: dict[str, Any]) -> None:
    """Each size of blocks, of the cache and of a step was simulated anew."""
    shape = {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128, "ffn": 14336, "vocab": 128256}
    traffic = Traffic(input_len=[50, 400, 2000], output_len=[5, 60, 300], requests=150, **load)
    rng = np.random.default_rng(0)
    knobs = {
        "block_size": rng.choice([16.0, 32.0, 64.0], _ALIKE),
        "gpu_memory_utilization": rng.choice([0.24, 0.5, 0.9], _ALIKE),
        "max_num_seqs": rng.choice([8.0, 32.0, 256.0], _ALIKE),
        "max_num_batched_tokens": rng.choice([512.0, 4096.0, 16384.0], _ALIKE),
    }
    columns = {**shape, **knobs, "gated": True, "tied": False, "dtype": "bfloat16", "gpu": "a100", "traffic": traffic}
    s = setup(columns, device("a100"), _ALIKE)
    assert s.memory.kv_tokens.min() < 12_000 < s.memory.kv_tokens.max()
    one_replica._RUNS.clear()
    alike = [one_replica.replica_run(traffic, s, i) for i in range(_ALIKE)]
    assert len({id(run) for run in alike}) < 0.7 * _ALIKE
    for i, found in enumerate(alike):
        one_replica._RUNS.clear()
        anew = one_replica.replica_run(traffic, s, i)
        assert found
        assert anew
        for name in ("first_s", "end_s", "gaps_s", "gap_counts"):
            np.testing.assert_allclose(getattr(found, name), getattr(anew, name), rtol=1e-12)
