"""The serving simulator: its event simulation against one that takes every step, its fluid against its events, its
memory and times against what others measured."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscout.simulate.serving import requests as load
from autoscout.simulate.serving.engine_shapes import Engine, engine
from autoscout.simulate.serving.events import Limits, Run, simulate
from autoscout.simulate.serving.fluid import fluid
from autoscout.simulate.serving.latencies import metrics_of_run
from autoscout.simulate.serving.serving_device import device
from autoscout.simulate.serving.setup import columns_of_job, setup
from autoscout.simulate.serving.simulator import ServingSimulator, evaluate, exactly, fluid_error
from autoscout.simulate.serving.steps import all_reduce_us, communication_s, decode_step_s, linear_s, prefill_step_s
from autoscout.simulate.validation.serving_tables import columns_of_rows, device_name
from autoscout.space.attributes import attributes_of
from kb.records import AutoscoutError, Cluster, Job, Model, Node, Objective, Traffic

MEASURED = Path("../shared/data/validation/serve_end_to_end.csv.gz")
LLAMA_3_8B: dict[str, Any] = {
    "layers": 32,
    "hidden": 4096,
    "heads": 32,
    "kv_heads": 8,
    "head_dim": 128,
    "ffn": 14336,
    "vocab": 128256,
    "gpu": "a100",
}


def one_engine(**columns: Any) -> Engine:
    return engine({**LLAMA_3_8B, **columns}, device("a100"), 1)


class EveryStep:
    """vLLM's scheduler (version 1), one step at a time and with every sequence's blocks counted."""

    def __init__(self, e: Engine, limits: Limits, requests: load.Requests) -> None:
        self.e, self.limits, self.now, self.preemptions = e, limits, 0.0, 0
        self.free = limits.kv_tokens // limits.block
        rows = zip(requests.arrival_s, requests.input_len, requests.output_len, strict=True)
        self.coming = [
            {"id": i, "at": float(a), "known": int(p), "asked": int(o), "done": 0, "blocks": 0, "decodes": False}
            for i, (a, p, o) in enumerate(rows)
            if blocks(int(p + o), limits) <= self.free and (limits.chunked or p <= limits.batched_tokens)
        ]
        self.waiting: list[dict[str, Any]] = []
        self.running: list[dict[str, Any]] = []
        self.first = [math.nan] * len(requests)
        self.end = [math.nan] * len(requests)

    def run(self) -> None:
        while self.coming or self.waiting or self.running:
            if not (self.waiting or self.running):
                self.now = max(self.now, self.coming[0]["at"])
            while self.coming and self.coming[0]["at"] <= self.now:
                self.waiting.append(self.coming.pop(0))
            self.step()

    def step(self) -> None:
        limits, before = self.limits, self.preemptions
        while (need := sum(s["done"] % limits.block == 0 for s in self.running if s["decodes"])) > self.free:
            last = self.running.pop()
            self.free += last["blocks"]
            last.update(done=0, blocks=0, decodes=False)
            self.waiting.insert(0, last)
            self.preemptions += 1
        decodes = [s for s in self.running if s["decodes"]]
        budget = limits.batched_tokens - len(decodes)
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


def blocks(tokens: int, limits: Limits) -> int:
    return -(-tokens // limits.block)


@given(
    lengths=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 40), st.floats(0, 0.3)), min_size=1, max_size=9),
    kv_tokens=st.integers(40, 400),
    max_seqs=st.integers(1, 5),
    batched=st.integers(8, 128),
    block=st.sampled_from([4, 16]),
    chunked=st.booleans(),
)
def test_skipping_steps_changes_nothing(lengths, kv_tokens, max_seqs, batched, block, chunked):
    inputs, outputs, arrivals = (np.array(c) for c in zip(*lengths, strict=True))
    requests = load.Requests(np.sort(arrivals), inputs, outputs)
    limits = Limits(kv_tokens, max_seqs, max(batched, max_seqs), block, chunked)
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
    run = simulate(one_engine(), Limits(200_000, 64, 2048), requests)
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
    run = simulate(one_engine(), Limits(200_000), requests)
    started, ended = np.sort(run.arrival_s), np.sort(run.end_s)
    running = [int((started <= t).sum() - (ended <= t).sum()) for t in ended[:-8] + 1e-9]
    assert set(running) == {8}


def test_a_full_cache_preempts_and_still_serves_everybody():
    run = simulate(one_engine(), Limits(1600, 64, 2048), load.fixed_batch(8, 100, 200))
    assert run.preemptions > 0
    assert np.isfinite(run.end_s).all()
    small = simulate(one_engine(), Limits(250, 64, 2048), load.fixed_batch(2, 100, 200))
    assert np.isnan(small.end_s).all()  # not even one request fits


def exact(**columns: Any) -> dict[str, float]:
    table = {**LLAMA_3_8B, **{k: np.array([v]) for k, v in columns.items()}}
    return exactly(table, setup(table, device("a100"), 1), 0)


def test_knobs_act_as_they_do_in_vllm():
    usual = {"rate": 4.0, "input_len": 3000, "output_len": 200, "shared_prefix": 2800, "requests": 200}
    base = exact(**usual)
    assert exact(**usual, prefix_caching=False)["ttft_mean_ms"] > 2 * base["ttft_mean_ms"]
    no_prefix = {**usual, "shared_prefix": 0, "max_num_batched_tokens": 8192}
    chunked = exact(**{**no_prefix, "max_num_batched_tokens": 512})
    assert chunked["itl_p99_ms"] < exact(**no_prefix)["itl_p99_ms"]
    assert exact(**{**no_prefix, "long_prefill": 256})["itl_p99_ms"] < exact(**no_prefix)["itl_p99_ms"]
    faster = exact(**usual, tp=4)["tpot_mean_ms"]
    assert faster < base["tpot_mean_ms"]
    assert exact(**usual, tp=4, eager=True)["tpot_mean_ms"] > 1.05 * faster  # the device waits for launches
    assert exact(**usual, async_scheduling=False)["tpot_mean_ms"] > base["tpot_mean_ms"]
    burst = {"batch": 64, "input_len": 128, "output_len": 128}
    assert exact(**burst, max_num_seqs=8)["output_tokens_per_s"] < exact(**burst)["output_tokens_per_s"]
    assert exact(**burst, dp=2)["output_tokens_per_s"] > exact(**burst)["output_tokens_per_s"]


@pytest.mark.parametrize("kind", ["batch", "concurrency", "rate"])
def test_the_fluid_says_how_far_it_is_from_the_events(kind):
    """About nine in ten of its values lie within 1.645 of its stated deviations from the event simulation's."""
    rng = np.random.default_rng(3)
    n = 40
    columns: dict[str, Any] = {
        **LLAMA_3_8B,
        "tp": rng.choice([1.0, 2.0, 4.0], n),
        "input_len": rng.integers(50, 3000, n).astype(float),
        "output_len": rng.integers(20, 600, n).astype(float),
        "max_num_seqs": rng.choice([16.0, 64.0, 256.0], n),
        "max_num_batched_tokens": rng.choice([512.0, 2048.0, 8192.0], n),
        "requests": np.full(n, 400.0),
    }
    if kind == "rate":
        full = setup({**columns, "concurrency": np.full(n, 256.0)}, device("a100"), n)
        columns["rate"] = fluid(full)["requests_per_s"] * rng.choice([0.2, 0.5, 0.8, 0.95], n)
    else:
        columns[kind] = rng.choice([1.0, 4.0, 16.0, 64.0, 256.0], n)
    s = setup(columns, device("a100"), n)
    events = [exactly(columns, s, i) for i in range(n)]
    quick = fluid(s)
    for metric in ("output_tokens_per_s", "tpot_mean_ms", "e2el_mean_ms", "ttft_mean_ms", "itl_p99_ms", "ttft_p99_ms"):
        off = np.abs(np.log(quick[metric] / np.array([found[metric] for found in events])))
        assert np.mean(off <= 1.645 * fluid_error(metric)) >= 0.8, metric


def test_the_cache_holds_what_vllm_reports():
    """Llama-2-7B on one A100-80GB: 7,351 blocks of 16 tokens (vLLM's pull request 2031)."""
    llama_2 = {**LLAMA_3_8B, "kv_heads": 32, "ffn": 11008, "vocab": 32000, "scheduler_v0": True, "context": 4096}
    s = setup(llama_2, device("a100"), 1)
    assert s.memory.kv_tokens[0] / 16 == pytest.approx(7351, rel=0.03)


def test_what_does_not_fit_is_predicted_to_fail():
    big = {**LLAMA_3_8B, "layers": 80, "hidden": 8192, "heads": 64, "ffn": 28672, "concurrency": 8.0}
    big |= {"input_len": 500.0, "output_len": 100.0, "tp": np.array([1.0, 2.0, 4.0])}
    tpot = ServingSimulator("tpot_mean_ms").predict(big).value
    assert np.isinf(tpot[0])
    assert np.isfinite(tpot[2])
    assert ServingSimulator("requests_per_s").predict(big).value[0] == 0


def test_the_member_says_when_it_has_nothing_to_say():
    member = ServingSimulator("tpot_mean_ms")
    assert "needs gpu" in member.applies({k: v for k, v in LLAMA_3_8B.items() if k != "gpu"})
    assert "a load" in member.applies(LLAMA_3_8B)
    assert "no constants for abacus" in member.applies({**LLAMA_3_8B, "gpu": "abacus", "batch": 1})
    known = {**LLAMA_3_8B, "batch": 4, "input_len": 100, "output_len": 100}
    assert member.applies(known) == ""
    eight_bits = member.predict({**known, "kv_cache_dtype": np.array(["auto", "fp8"])})
    assert np.isfinite(eight_bits.value[0])
    assert np.isnan(eight_bits.value[1])  # the A100 has no such numbers
    guessed = member.predict({**known, "spec": np.array(["ngram"])})
    assert np.isnan(guessed.value[0])


def test_measured_rows_of_the_job_correct_its_level():
    member = ServingSimulator("tpot_mean_ms")
    columns = {**LLAMA_3_8B, "batch": np.array([1.0, 4, 16, 64]), "input_len": 100.0, "output_len": 100.0}
    plain = member.predict(columns)
    member.fit(columns, plain.value * 1.3)
    corrected = member.predict(columns)
    assert (corrected.value > 1.15 * plain.value).all()
    assert (corrected.value < 1.3 * plain.value).all()
    parts = sum(plain.parts.values())
    assert (parts > 0.5 * plain.value).all()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_parts_of_a_decode_step_sum_to_it(asynchronous: bool):
    """What the host does beside the device costs nothing."""
    one = {**LLAMA_3_8B, "gpu": "a100", "rate": 0.01, "input_len": 100.0, "output_len": 100.0, "requests": 20.0}
    found = ServingSimulator("tpot_mean_ms").predict({**one, "async_scheduling": np.array([asynchronous])})
    assert sum(found.parts.values()) == pytest.approx(found.value, rel=0.02)
    assert (found.parts["host"][0] == 0) == asynchronous


def test_the_stages_of_a_pipeline_stay_filled():
    """Two stages read nearly twice the prompts of one: no step waits for the one before to leave the pipeline."""
    took = [float(prefill_step_s(one_engine(pp=pp), 16.0, 16 * 2048.0, 16 * 2048.0**2 / 2)[0]) for pp in (1, 2)]
    assert 1.8 < took[0] / took[1] <= 2


@pytest.mark.parametrize("quick", [False, True])
def test_a_prompt_passes_all_stages_of_a_pipeline(quick: bool):
    """Beside others that decode it is one micro batch of several: the step is short, its own way is not. (What a
    pipeline saves is the next prompt's wait, and an all-reduce.)"""
    load = {"rate": 0.5, "input_len": 2000.0, "output_len": 300.0, "requests": 100.0, "max_num_batched_tokens": 2048.0}

    def first_token(**columns: float) -> float:
        one = {**LLAMA_3_8B, **load, **columns}
        s = setup(one, device("a100"), 1)
        return float(np.squeeze(fluid(s)["ttft_mean_ms"] if quick else exactly(one, s, 0)["ttft_mean_ms"]))

    alone = first_token()
    assert first_token(pp=2.0) > 0.85 * alone
    assert first_token(pp=4.0) > 0.8 * alone
    assert first_token(tp=2.0) < 0.65 * alone


def test_graphs_of_no_tokens_are_none():
    """0 counted as what was not said: graphs of 512 tokens."""
    told = [one_engine(graph_size=np.array([tokens])) for tokens in (np.nan, 64.0, 0.0)]
    assert [e.graph_tokens[0] for e in told] == [512, 64, 0]
    assert [bool(e.eager[0]) for e in told] == [False, False, True]
    assert one_engine(persistent=np.array([0.0])).persistent[0] == 0
    assert one_engine(tp=np.array([0.0])).tp[0] == 1, "a degree is never 0"


MOE = {"experts": 64.0, "topk": 8.0, "expert_ffn": 768.0}


def test_data_parallel_engines_of_a_mixture_share_its_experts():
    """Each of four devices has a quarter of the experts and the tokens of all engines that go to them: as many as a
    single engine's with a quarter of the experts."""
    tokens = np.array([1.0, 16.0, 300.0])
    apart = one_engine(**MOE, dp=4.0, ep=np.array([True]))
    alone = one_engine(**{**MOE, "experts": 16.0})
    assert linear_s(apart, tokens) == pytest.approx(linear_s(alone, tokens), rel=0.01)


def test_without_expert_parallel_each_expert_is_cut_over_all_engines():
    """vLLM's default: a tensor parallel group of DP x TP devices in the experts, and all tokens on each of them."""
    cut = one_engine(**MOE, dp=4.0)
    assert cut.expert_ffn[0] == 768 / 4
    whole = one_engine(**MOE)
    # A mixture's weights beside its attention and embeddings, bf16.
    of_experts = 32 * 64 * 3 * 4096 * 768 * 2
    assert whole.params_bytes[0] - cut.params_bytes[0] == pytest.approx(0.75 * of_experts)
    assert one_engine(dp=4.0).params_bytes[0] == one_engine().params_bytes[0]


@pytest.mark.parametrize("split", [False, True])
def test_tokens_of_data_parallel_engines_travel_to_the_experts_and_back(split: bool):
    """Gathered and scattered in every layer, as much as an all-reduce of what all engines have."""
    tokens = np.array([16.0])
    assert communication_s(one_engine(dp=4.0), tokens)[0] == 0
    e = one_engine(**MOE, dp=4.0, ep=np.array([split]))
    once = all_reduce_us(e.device, np.array([4.0]), 4 * tokens * 4096 * 2)[0]
    assert communication_s(e, tokens)[0] == pytest.approx(32 * once * 1e-6)
    wide = one_engine(**MOE, tp=2.0, dp=2.0, ep=np.array([split]))
    attention = all_reduce_us(e.device, np.array([2.0]), tokens * 4096 * 2)[0]
    among_all = all_reduce_us(e.device, np.array([4.0]), 2 * tokens * 4096 * 2)[0]
    assert communication_s(wide, tokens)[0] == pytest.approx(32 * (attention + among_all) * 1e-6)


def test_a_job_is_predicted_over_its_traffic():
    job = Job(
        name="chat",
        task="serve",
        target="vllm",
        model=Model(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256, gated=True),
        traffic=Traffic(rate=5, input_len=[10, 200, 3000], output_len=[5, 100, 600], requests=200),
        cluster=Cluster(nodes=[Node(device="a100", count=4)]),
        objective=Objective(minimize="ttft_p99_ms"),
    )
    columns = {
        **attributes_of(job),
        **columns_of_job(job),
        "gpu": "a100",
        "tp": np.array([1, 2, 4]),
        "dp": np.array([4, 2, 1]),
    }
    for metric in ("ttft_p99_ms", "tpot_mean_ms", "output_tokens_per_s", "preemptions"):
        value = ServingSimulator(metric).predict(columns).value
        assert value.shape == (3,)
        assert np.isfinite(value).all()
    found, by_events = evaluate(columns, "a100", np.ones(3))
    assert by_events.all()
    assert found["tpot_mean_ms"][2] < found["tpot_mean_ms"][0]


def test_arrivals_and_lengths(tmp_path):
    rng = np.random.default_rng(0)
    arrivals = load.poisson(5.0, 500, rng)
    assert arrivals[0] == 0
    assert arrivals[-1] == pytest.approx(499 / 5)
    lengths = load.drawn([10, 20, 100], 4000, rng)
    assert lengths.min() >= 10
    assert lengths.max() <= 100
    assert np.quantile(lengths, 0.5) == pytest.approx(20, abs=2)
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n5,10,3\n2,20,4\n")
    recorded = load.of_traffic(Traffic(trace=str(trace)))
    assert recorded.arrival_s.tolist() == [0.0, 3.0]
    assert recorded.input_len.tolist() == [20, 10]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("arrival_s,input_tokens\n1,2\n", "no column output_tokens"),
        ("arrival_s,input_tokens,output_tokens\n1,-2,3\n", "line 2: arrival 1 s, -2 in, 3 out"),
        ("arrival_s,input_tokens,output_tokens\n1,x,3\n", "line 2: could not convert"),
        ("arrival_s,input_tokens,output_tokens\n", "no requests"),
        ("input_tokens,output_tokens\n1,3\n", "no column arrival_s"),
    ],
)
def test_a_wrong_trace_is_one_sentence(tmp_path, text, sentence):
    trace = tmp_path / "trace.csv"
    trace.write_text(text)
    with pytest.raises(AutoscoutError, match=sentence) as raised:
        load.of_traffic(Traffic(trace=str(trace)))
    assert raised.value.exit_code == 2


def test_tables_long_and_wide_become_the_same_columns():
    run = {"gpu": "NVIDIA A100-SXM4-40GB", "model": "meta-llama/Meta-Llama-3-8B", "tp": 2, "input_len": 128}
    run |= {"output_len": 64, "concurrency_or_batch": 16, "framework": "vLLM", "version": "0.9.1"}
    long = [{**run, "metric": "ttft", "value": 0.05, "unit": "s"}, {**run, "metric": "tpot", "value": 9, "unit": "ms"}]
    columns, measured = columns_of_rows([*long, {**run, "metric": "ttft", "value": 1, "unit": "s", "status": "oom"}])
    wide, same = columns_of_rows([{**run, "ttft_ms": 50, "tpot_mean_ms": 9, "throughput_total_tokens": None}])
    for metric, value in (("ttft_mean_ms", 50), ("tpot_mean_ms", 9)):
        assert measured[metric].tolist() == same[metric].tolist() == [value]
    for name in ("layers", "kv_heads", "vocab", "tp", "batch", "gpu", "scheduler_v0", "why_not"):
        assert columns[name].tolist() == wide[name].tolist()
    assert columns["gpu"].tolist() == ["a100-40g"]
    assert columns["scheduler_v0"].tolist() == [False]
    assert columns["why_not"].tolist() == [""]
    unknown, _ = columns_of_rows([{**run, "model": "somebody/else", "ttft_ms": 1}])
    assert "somebody/else is not known" in unknown["why_not"][0]
    assert device_name("A100 (no size; the paper lists 40GB)") == "a100-40g"
    assert device_name("A100-SXM-80GB") == "a100"
    assert device_name("abacus") == ""


@pytest.mark.skipif(not MEASURED.exists(), reason="needs the measured tables in ../shared/data")
def test_vllm_on_a100_is_predicted_without_having_seen_it():
    """Constants come from single kernels; no row of this table had a part in them."""
    import duckdb

    found = duckdb.sql(
        f"SELECT * FROM read_csv('{MEASURED}', sample_size=-1) WHERE framework = 'vLLM' AND gpu LIKE 'A100%'"
    )
    rows = [dict(zip(found.columns, row, strict=True)) for row in found.fetchall()]
    columns, measured = columns_of_rows(rows)
    for metric, limit in (("e2el_mean_ms", 0.10), ("total_tokens_per_s", 0.12)):
        prediction = ServingSimulator(metric).predict(columns)
        known = np.isfinite(prediction.value) & (columns["why_not"] == "")
        ratio = prediction.value[known] / measured[metric][known]
        assert known.sum() >= 300
        assert np.mean(np.abs(ratio - 1)) <= limit
        inside = np.mean(np.abs(np.log(ratio)) <= 1.645 * prediction.error[known])
        assert 0.85 <= inside <= 0.95
        alone = columns["batch"][known] == 1  # all of it is decoding, so this is the time per token
        assert np.mean(np.abs(ratio[alone] - 1)) <= 0.10


def test_a_benchmark_that_only_times_batches_is_predicted_as_one():
    run = {"batch": 64.0, "input_len": 2000.0, "output_len": 50.0}
    each, timed = exact(**run), exact(**run, batch_timed=True)
    assert timed["ttft_mean_ms"] > 1.3 * each["ttft_mean_ms"]  # the last one's
    assert timed["ttft_mean_ms"] + 49 * timed["tpot_mean_ms"] == pytest.approx(timed["e2el_mean_ms"])
    assert timed["e2el_mean_ms"] == each["e2el_mean_ms"]


def test_a_run_that_serves_nobody_has_no_metrics():
    nobody = np.array([math.nan])
    run = Run(np.zeros(1), nobody, nobody, np.ones(1), np.ones(1), np.array([]), np.array([]), 0, 0)
    assert metrics_of_run(run) == {}


def test_users_whose_requests_differ_in_length_do_not_run_in_step():
    """All of one length end together, and begin together: each waits for the prompts of all others."""
    usual = {"concurrency": 32, "input_len": 1024, "output_len": 128, "requests": 320, "max_num_batched_tokens": 8192}
    in_step, apart = exact(**usual, length_spread=1e-9), exact(**usual)
    assert apart["ttft_mean_ms"] < 0.5 * in_step["ttft_mean_ms"]
    assert apart["output_tokens_per_s"] == pytest.approx(in_step["output_tokens_per_s"], rel=0.15)


@pytest.mark.parametrize("engine", ["vLLM 0.20", "SGLang 0.5", "TensorRT-LLM 1.2"])
def test_the_fluid_knows_that_users_with_equal_requests_come_together(engine: str):
    """Its first tokens came after 0.77, 0.54 and 0.47 of the events' time: nobody waited for the others' prompts."""
    framework, version = engine.split()
    row = {"model": "llama-3-8b", "gpu": "h100", "framework": framework, "version": version, "dtype": "bf16"}
    off: list[float] = []
    for inputs, outputs in ((200, 200), (2000, 200), (5000, 500)):
        for users in (5, 10, 25, 50):
            load = {"input_len": inputs, "output_len": outputs, "concurrency": users, "requests": 10 * users}
            table, _ = columns_of_rows([{**row, **load, "length_spread": 0}])
            s = setup(table, device("h100"), 1)
            events, quick = exactly(table, s, 0), fluid(s)
            off.append(math.log(quick["ttft_mean_ms"][0] / events["ttft_mean_ms"]))
            assert quick["tpot_mean_ms"][0] == pytest.approx(events["tpot_mean_ms"], rel=0.15)
            assert quick["output_tokens_per_s"][0] == pytest.approx(events["output_tokens_per_s"], rel=0.12)
    assert np.std(off) <= fluid_error("ttft_mean_ms")
    assert abs(np.mean(off)) < 0.1


def test_products_in_fewer_bits_are_faster_where_the_device_has_them():
    def prompt_ms(gpu: str, dtype: str) -> float:
        load = {"batch": np.array([8.0]), "input_len": 4096.0, "output_len": 2.0, "gpu": gpu, "dtype": dtype}
        return float(ServingSimulator("ttft_mean_ms").predict({**LLAMA_3_8B, **load}).value[0])

    assert prompt_ms("b200", "fp4") < prompt_ms("b200", "fp8") < prompt_ms("b200", "bf16")
    for gpu, dtype in (("h100", "fp4"), ("a100", "fp8")):  # weights are widened first, which takes time
        assert 1.2 * prompt_ms(gpu, "bf16") < prompt_ms(gpu, dtype) < 1.6 * prompt_ms(gpu, "bf16")
