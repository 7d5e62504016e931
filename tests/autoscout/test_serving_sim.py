"""The serving simulator: its fluid against its events, its knobs, its memory, the parts of its steps."""

import math
from typing import Any

import numpy as np
import pytest

from autoscout.simulate.serving.engine_run import EngineRun
from autoscout.simulate.serving.engine_shapes import EngineShapes, engine
from autoscout.simulate.serving.fluid import fluid
from autoscout.simulate.serving.latencies import metrics_of_run
from autoscout.simulate.serving.serving_device import device
from autoscout.simulate.serving.setup import columns_of_job, setup
from autoscout.simulate.serving.simulator import ServingSimulator, evaluate, exactly, fluid_error
from autoscout.simulate.serving.steps import all_reduce_us, communication_s, linear_s, prefill_step_s
from autoscout.simulate.validation.serving_tables import columns_of_rows
from autoscout.space.attributes import attributes_of
from kb.records import Cluster, Job, Model, Node, Objective, Traffic

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


def one_engine(**columns: Any) -> EngineShapes:
    return engine({**LLAMA_3_8B, **columns}, device("a100"), 1)


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
    found, by_events, _ = evaluate(columns, "a100", np.ones(3))
    assert by_events.all()
    assert found["tpot_mean_ms"][2] < found["tpot_mean_ms"][0]


def test_a_run_that_serves_nobody_has_no_metrics():
    nobody = np.array([math.nan])
    run = EngineRun(np.zeros(1), nobody, nobody, np.ones(1), np.ones(1), np.array([]), np.array([]), 0, 0)
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


def test_near_what_can_be_answered_the_first_token_is_hardly_known():
    """An engine that is a little slower than predicted has a queue there, and waits are several times as long."""

    def errors(metric: str, **load: float) -> float:
        columns = {
            **LLAMA_3_8B,
            "vocab": np.array([128256.0]),
            "gpu": "h100",
            "input_len": 1000.0,
            "output_len": 300.0,
            "requests": 800.0,
            **load,
        }
        return float(ServingSimulator(metric).predict(columns).error[0])

    few, many, overrun = (errors("ttft_mean_ms", rate=rate) for rate in (4.0, 20.0, 60.0))
    assert few == pytest.approx(errors("ttft_mean_ms", concurrency=16.0), abs=0.02)
    assert many > 2 * few
    assert overrun < many  # all wait, whatever the engine
    assert errors("e2el_mean_ms", rate=20.0) > errors("e2el_mean_ms", rate=4.0)
    assert errors("tpot_mean_ms", rate=20.0) == pytest.approx(errors("tpot_mean_ms", rate=4.0))
