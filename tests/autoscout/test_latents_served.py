"""Serving models with latent attention, shared experts and first layers without experts: memory and times by hand."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from job_files import changed

from autoscout.simulate.encode import of_job
from autoscout.simulate.serving.doubt import stated_error
from autoscout.simulate.serving.engine_run import step_times
from autoscout.simulate.serving.engine_shapes import EngineShapes, engine
from autoscout.simulate.serving.held_back import EngineLimits
from autoscout.simulate.serving.kv_memory import GIB, memory
from autoscout.simulate.serving.latents import ERROR
from autoscout.simulate.serving.operators import experts_us, gemm_us, prefill_us
from autoscout.simulate.serving.served_by import engines_of
from autoscout.simulate.serving.serving_device import device
from autoscout.simulate.serving.setup import setup
from autoscout.simulate.serving.simulator import ServingSimulator
from autoscout.simulate.serving.steps import (
    all_reduce_us,
    communication_s,
    decode_attention_s,
    decode_context_s,
    linear_s,
    prefill_attention_s,
    raise_us,
)
from autoscout.space.explain import explain
from autoscout.targets.jobs import JobSpace
from autoscout.targets.target import target_of
from autoscout.targets.vllm.serving_shadow import question_of, sized
from kb.records import AutoscoutError, Configuration, Job
from kb.sizes import parameters

JOB = """
name = "served"
task = "serve"
target = "vllm"
[model]
layers = 27
hidden = 2048
heads = 16
ffn = 10944
vocab = 102400
gated = true
norm = "rmsnorm"
bias = false
position = "rope"
experts = 64
topk = 6
expert_ffn = 1408
shared_ffn = 2816
dense_layers = 1
[model.latent]
kv_lora_rank = 512
qk_nope_head_dim = 128
qk_rope_head_dim = 64
v_head_dim = 128
[traffic]
concurrency = 32
input_len = 1000
output_len = 280
[cluster]
nodes = [{ device = "h100", count = 8 }]
[objective]
minimize = "tpot_mean_ms"
"""
LATENT = JOB[JOB.index("[model.latent]") : JOB.index("[traffic]")]
H100 = device("h100")


def job(folder: Path, *changes: tuple[str, str]) -> Job:
    return changed(folder, JOB, *changes)


def one(of: Job, **knobs: Any) -> EngineShapes:
    return engine({**of_job(of), **{name: np.array([value]) for name, value in knobs.items()}}, H100, 1)


# Attention of one layer, by hand: down to 512 + 64, up to queries of 192 and keys and values of 256 of 16 heads, out.
DOWN, UP_AND_OUT = 2048 * 576, 16 * (2048 * 192 + 512 * 256 + 128 * 2048)
DENSE, SHARED, EXPERTS = 3 * 2048 * 10944, 3 * 2048 * 2816, 64 * 3 * 2048 * 1408
ENDS = 2 * 102400 * 2048


def test_the_cache_keeps_one_latent_of_a_token_on_every_rank(tmp_path: Path) -> None:
    """512 numbers and 64 of the key's positions, whatever tp: 1,152 bytes in bf16, half in fp8."""
    of = job(tmp_path)
    assert [one(of, tp=tp).kv_bytes[0] for tp in (1, 2, 8)] == [1152] * 3
    assert one(of, kv_cache_dtype="fp8").kv_bytes[0] == 576
    attributes = of_job(of)
    assert attributes["model_len"] == 1280
    assert attributes["kv_mib"] == 1280 * 27 * 1152 / 2**20
    found = memory(one(of, tp=2), engines_of({}, 1), *(np.array([v]) for v in (80.0, 0.9, 2048.0, 64.0, GIB, 1280.0)))
    assert found.kv_tokens[0] == 2**30 // (27 * 1152)
    plain = job(tmp_path, (LATENT, ""))
    assert one(plain).kv_bytes[0] == 2 * 16 * 128 * 2


def test_weights_of_a_device(tmp_path: Path) -> None:
    of = job(tmp_path)
    whole = 27 * (DOWN + UP_AND_OUT) + DENSE + 26 * (SHARED + EXPERTS) + ENDS
    assert whole + 26 * 64 * 2048 == parameters(of.model), "and routers, which the serving model leaves out"
    assert one(of).params_bytes[0] == pytest.approx(2 * whole)
    half = 27 * (DOWN + UP_AND_OUT / 2) + (DENSE + 26 * (SHARED + EXPERTS) + ENDS) / 2
    assert one(of, tp=2).params_bytes[0] == pytest.approx(2 * half)
    spread = 27 * (DOWN + UP_AND_OUT) + DENSE + 26 * (SHARED + EXPERTS / 8) + ENDS
    for split in (True, False):
        assert one(of, dp=8, ep=split).params_bytes[0] == pytest.approx(2 * spread), "data parallel attention"


def test_stages_of_a_pipeline_are_as_full_as_the_fullest(tmp_path: Path) -> None:
    """Three stages of nine layers: with many experts the last ones are larger, with few the first."""
    attention = 9 * (DOWN + UP_AND_OUT)
    many = attention + 9 * (SHARED + EXPERTS) + ENDS / 2
    assert one(job(tmp_path), pp=3).params_bytes[0] == pytest.approx(2 * many)
    few = job(tmp_path, ("experts = 64", "experts = 2"), ("topk = 6", "topk = 1"))
    first = attention + DENSE + 8 * (SHARED + EXPERTS / 32) + ENDS / 2
    assert one(few, pp=3).params_bytes[0] == pytest.approx(2 * first)


def test_queries_have_a_latent_too_where_the_model_says_so(tmp_path: Path) -> None:
    of = job(tmp_path, ("[model.latent]", "[model.latent]\nq_lora_rank = 1536"))
    attention = 2048 * (1536 + 576) + 16 * (1536 * 192 + 512 * 256 + 128 * 2048)
    more = 27 * (attention - DOWN - UP_AND_OUT)
    assert one(of).params_bytes[0] - one(job(tmp_path)).params_bytes[0] == pytest.approx(2 * more)


def gemm(tokens: float, outputs: float, inputs: float) -> float:
    return float(gemm_us(H100.gemm, H100.sms, np.array([tokens]), outputs, inputs, 2.0, 1.0)[0])


@pytest.mark.parametrize("tokens", [8.0, 4000.0])
def test_products_are_those_of_latents_and_of_both_kinds_of_layers(tmp_path: Path, tokens: float) -> None:
    """At tp 2, less what is not a product: norms, activations, rotary positions."""
    attention = gemm(tokens, 576, 2048) + gemm(tokens, 8 * 192, 2048) + gemm(tokens, 8 * 256, 512)
    attention += gemm(tokens, 2048, 8 * 128)
    dense = gemm(tokens, 10944, 2048) + gemm(tokens, 2048, 5472)
    shared = gemm(tokens, 2816, 2048) + gemm(tokens, 2048, 1408)
    routed = float(experts_us(H100.experts, np.array([tokens]), 2048, 704, 6, 64, 2.0, 1.0)[0]) + gemm(tokens, 64, 2048)
    whole = 27 * attention + dense + 26 * (shared + routed)
    rest = 1e6 * linear_s(one(job(tmp_path), tp=2), np.array([tokens]))[0] - whole
    kernels = 27 * 9 * H100.elementwise.overhead_us
    moved = 27 * (10 * 2048 + 2 * 3 * 8 * 160) + 3 * (5472 + 26 * 1408)
    assert rest == pytest.approx(kernels + 1e-3 * 2 * tokens * moved / H100.elementwise.gb_s, rel=1e-6)


@pytest.mark.parametrize(("tp", "bound"), [(1, "products"), (8, "memory")])
def test_a_generated_token_reads_each_latent_once_for_all_heads(tmp_path: Path, tp: int, bound: str) -> None:
    """Of 128 heads (DeepSeek-V3's): 576 products with keys and 512 with values each, or 1,152 bytes."""
    e = one(job(tmp_path, ("heads = 16", "heads = 128")), tp=tp)
    products = 2e-6 * (128 / tp) * (576 + 512) / H100.prefill.tflops
    read = 1e-3 * 1152 / H100.decode.gb_s
    assert (products > read) == (bound == "products")
    assert decode_context_s(e, 1)[0] == pytest.approx(27e-6 * max(products, read))
    own = H100.decode.overhead_us + 4 * H100.decode.sequence_us + 100  # by DeepSeek-R1 in vLLM (its record)
    assert decode_attention_s(e, 4.0, 9000.0)[0] == pytest.approx(27e-6 * (own + 9000 * max(products, read)))


def test_prompts_raise_their_latents_again_in_every_step(tmp_path: Path) -> None:
    """Scores of 192 and weighting of 128 a head cost what two of 160 do; context of 3,000 tokens is raised to 256
    numbers a head, 512 products each, before 1,000 more attend to it."""
    e = one(job(tmp_path), tp=2)
    pairs = 1000 * 3000 + 1000 * 1000 / 2
    plain = float(prefill_us(H100.prefill, H100.sms, 1, 1000, pairs, 8.0, 160.0, 2.0 * 8 * 2 * 160))
    raised = 3000 * 2e-6 * 512 * 8 * 256 / H100.gemm.tflops
    assert raise_us(e)[0] * 3000 == pytest.approx(raised)
    assert prefill_attention_s(e, 1.0, 1000.0, pairs)[0] == pytest.approx(27e-6 * (plain + raised))
    first = float(prefill_us(H100.prefill, H100.sms, 1, 1000, 5e5, 8.0, 160.0, 2.0 * 8 * 2 * 160))
    assert prefill_attention_s(e, 1.0, 1000.0, 5e5)[0] == pytest.approx(27e-6 * first)
    alone = step_times(e, EngineLimits(kv_tokens=10**6, max_seqs=8), 0).prompt
    assert alone.seconds(1, 1000, pairs) == pytest.approx(27e-6 * (plain + raised))


def test_tokens_of_the_first_layers_meet_nobody_elses(tmp_path: Path) -> None:
    """All engines' tokens are gathered and scattered in the 26 layers with experts only."""
    tokens = np.array([16.0])
    e = one(job(tmp_path), tp=2, dp=4, ep=True)
    own = all_reduce_us(H100, np.array([2.0]), tokens * 2048 * 2)[0]
    among_all = all_reduce_us(H100, np.array([8.0]), 4 * tokens * 2048 * 2)[0]
    assert communication_s(e, tokens)[0] == pytest.approx(1e-6 * (28 * own + 26 * among_all))


def test_its_predictions_may_be_off_by_more(tmp_path: Path) -> None:
    knobs = {"tp": np.array([1]), "dp": np.array([8]), "ep": np.array([True])}
    simulator = ServingSimulator("tpot_mean_ms")
    with_latents = simulator.predict({**of_job(job(tmp_path)), **knobs})
    plain = simulator.predict({**of_job(job(tmp_path, (LATENT, ""))), **knobs})
    assert np.isfinite([with_latents.value[0], plain.value[0]]).all()
    assert with_latents.error[0] == pytest.approx(np.hypot(plain.error[0], ERROR))
    assert stated_error("tpot_mean_ms", "h100") < plain.error[0] + 1e-9


def test_a_small_cache_holds_more_requests(tmp_path: Path) -> None:
    """The same 60 users: keys and values for every head take seven times the memory."""
    knobs = {"tp": 1, "dp": 8, "ep": True, "max_num_seqs": 256, "max_num_batched_tokens": 8192}

    def tokens(of: Job) -> float:
        columns = {**of_job(of), **{name: np.array([value]) for name, value in knobs.items()}}
        return float(setup(columns, H100, 1).memory.kv_tokens[0])

    assert tokens(job(tmp_path)) == pytest.approx(tokens(job(tmp_path, (LATENT, ""))) * 8192 / 1152, rel=0.01)


def test_its_space_has_what_every_kernel_of_latents_can(tmp_path: Path) -> None:
    space = JobSpace.of_job(job(tmp_path))
    assert space.knob["block_size"].values == (64,)
    assert "attention" not in space.knob or space.knob["attention"].values == ("auto",)
    assert space.reference.knobs["block_size"] == 64
    allowed = JobSpace.of_job(job(tmp_path, ("[objective]", '[space]\nallow = ["attention"]\n[objective]')))
    assert allowed.knob["attention"].values == ("auto",)
    odd = JobSpace.of_job(job(tmp_path, ("shared_ffn = 2816", "shared_ffn = 2815")))
    refused = explain(odd, {**odd.reference.knobs, "tp": 8, "dp": 1}, odd.reference)
    assert "VP4" in [broken.rule for broken in refused.violations]


def test_engines_that_share_experts_need_not_hold_them_all(tmp_path: Path) -> None:
    """29 GiB of weights, 26 of them experts: too much for one device of 20 GiB, but not for eight engines of one."""
    eight = 'device = "h100", count = 8'
    space = JobSpace.of_job(job(tmp_path, (eight, f"{eight}, memory_gib = 20.0")))
    knobs = {**space.reference.knobs, "tp": 1, "pp": 1, "dp": 8, "gpu_memory_utilization": 0.9}
    for split in (True, False):
        found = explain(space, {**knobs, "ep": split}, space.reference)
        assert "VK6" not in [broken.rule for broken in found.violations]
    with pytest.raises(AutoscoutError, match=r"no configuration of this job is valid .*VK6"):
        JobSpace.of_job(job(tmp_path, (eight, 'device = "h100", count = 1, memory_gib = 20.0')))


def test_cpus_and_random_weights_are_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(AutoscoutError, match="only be served on GPUs"):
        job(tmp_path, ('device = "h100", count = 8', 'device = "cpu", count = 8'))
    of = job(tmp_path)
    said = "cannot make a model with latent attention, shared experts, first layers without experts and random weights"
    with pytest.raises(AutoscoutError, match=said) as refused:
        target_of(of).profiler(of)
    assert refused.value.exit_code == 2
    (tmp_path / "model").mkdir()
    named = job(tmp_path, ("[objective]", '[launch]\nmodel_path = "model"\n[objective]'))
    assert target_of(named).profiler(named)
    assert question_of(named, Configuration({"tp": 8, "max_num_seqs": 64}))["config"] == {}
    with pytest.raises(AutoscoutError, match=r"and random weights; set launch\.model_path"):
        question_of(of, Configuration({"tp": 8, "max_num_seqs": 64}))
    assert sized(of, Configuration({"tp": 8}))[1] == "h100"


def test_single_precision_takes_twice_the_memory(tmp_path: Path) -> None:
    whole = msgspec.structs.replace(job(tmp_path).model, dtype="fp32")
    of = msgspec.structs.replace(job(tmp_path), model=whole)
    assert of_job(of)["kv_mib"] == 2 * of_job(job(tmp_path))["kv_mib"]
    assert of_job(of)["expert_gib"] == 2 * of_job(job(tmp_path))["expert_gib"] == 26 * EXPERTS * 4 / 2**30
