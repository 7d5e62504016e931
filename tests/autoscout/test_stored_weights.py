"""Models whose weights are stored in 8 or 4 bits: read from their config.json, in the space, and predicted."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from job_files import changed

from autoscout.simulate.encode import of_job
from autoscout.simulate.serving.engine_shapes import engine
from autoscout.simulate.serving.serving_device import device
from autoscout.simulate.serving.steps import linear_s
from autoscout.targets.jobs import JobSpace
from autoscout.targets.target import target_of
from kb.records import AutoscoutError, Job
from kb.sizes import STORED, parameters, stored_bytes

JOB = """
name = "stored"
task = "serve"
target = "vllm"
[model]
from = "config.json"
[traffic]
concurrency = 8
input_len = 256
output_len = 64
[cluster]
nodes = [{ device = "h200", count = 8 }]
[objective]
maximize = "output_tokens_per_s"
"""
# As their config.json have it, written down from memory: deepseek-ai/DeepSeek-V3 and openai/gpt-oss-120b.
V3: dict[str, Any] = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "num_attention_heads": 128, "num_key_value_heads": 128, "n_routed_experts": 256, "n_shared_experts": 1,
    "num_experts_per_tok": 8, "first_k_dense_replace": 3, "num_hidden_layers": 61, "vocab_size": 129280,
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}  # fmt: skip
GPT_OSS: dict[str, Any] = {
    "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "head_dim": 64, "vocab_size": 201088,
    "num_attention_heads": 64, "num_key_value_heads": 8, "num_local_experts": 128, "num_experts_per_tok": 4,
    "num_hidden_layers": 36, "quantization_config": {"quant_method": "mxfp4"},
}  # fmt: skip


def job(folder: Path, config: dict[str, Any], *changes: tuple[str, str]) -> Job:
    (folder / "config.json").write_text(json.dumps(config))
    return changed(folder, JOB, *changes)


def test_eight_h200_serve_deepseek_v3_as_it_is_stored(tmp_path: Path) -> None:
    """671 GB in 8 bits and embeddings of 3.7 GB in 16; in 16 bits it would not fit."""
    of = job(tmp_path, V3)
    assert of.model.stored == "fp8_block"
    assert stored_bytes(of.model)[0] == parameters(of.model) + 2 * 129280 * 7168
    assert "quantization" not in JobSpace.of_job(of).reference.knobs, "the engine takes the folder's own"
    with pytest.raises(AutoscoutError, match=r"no configuration of this job is valid .*VK6"):
        JobSpace.of_job(job(tmp_path, {**V3, "quantization_config": None}))


def test_what_does_not_fit_at_all_is_said_with_its_size(tmp_path: Path) -> None:
    """The rule's expression was shown, with names that only the catalog knows."""
    one = ('device = "h200", count = 8', 'device = "a40", count = 1')
    said = r"\(64.5 GiB of weights and one request exceed 0.95 of 44.4 GiB on a device \(VK6, with tp=1 pp=1 dp=1 "
    with pytest.raises(AutoscoutError, match=said):
        JobSpace.of_job(job(tmp_path, GPT_OSS, one))


def test_one_h100_serves_gpt_oss_with_its_experts_in_four_bits(tmp_path: Path) -> None:
    """117 billion parameters, all but two of experts, in 4.25 bits: 60.8 GiB by its card; vLLM 0.14.1 pads the experts'
    hidden size to 3,072 and logs 64.38 GiB (issue 33155), on Ampere 65.97, with their width padded to 2,944 (23278)."""
    one = ('device = "h200", count = 8', 'device = "h100", count = 1')
    of = job(tmp_path, GPT_OSS, one)
    whole, experts = stored_bytes(of.model)
    assert experts == 36 * 128 * 3 * 3072 * 2880 * 17 / 32
    assert whole / 2**30 == pytest.approx(64.38, rel=0.003)
    ampere = engine(of_job(of), device("a100"), 1).params_bytes[0]
    assert ampere / 2**30 == pytest.approx(65.97, rel=0.003)
    sglang = engine({**of_job(of), "framework": np.array(["SGLang"])}, device("a100"), 1).params_bytes[0]
    assert sglang / 2**30 == pytest.approx(whole / 2**30, rel=0.001), "its kernels are Triton's"
    assert JobSpace.of_job(of).reference.knobs["tp"] == 1


@pytest.mark.parametrize("config", [V3, GPT_OSS], ids=["V3", "gpt-oss"])
def test_weights_of_a_device_are_those_that_the_space_counts(tmp_path: Path, config: dict[str, Any]) -> None:
    """The serving model leaves out routers."""
    of = job(tmp_path, config)
    held = engine(of_job(of), device("h200"), 1).params_bytes[0]
    assert held / 2**30 == pytest.approx(of_job(of)["weights_gib"], rel=0.001)


def test_only_what_is_stored_in_few_bits_is_read_and_multiplied_so(tmp_path: Path) -> None:
    h200, b200 = (engine(of_job(job(tmp_path, GPT_OSS)), device(kind), 1) for kind in ("h200", "b200"))
    assert (h200.weight_bytes[0], h200.expert_bytes[0]) == (2, STORED["mxfp4"])
    before = engine({**of_job(job(tmp_path, GPT_OSS)), "version": np.array(["0.20"])}, device("h200"), 1)
    assert (h200.speed[0], before.expert_speed[0]) == (1, 0.9), "widened on the way"
    assert h200.expert_speed[0] == pytest.approx(2 * 0.9), "since 0.22"
    assert (b200.speed[0], b200.expert_speed[0]) == (1, 2), "with inputs in 8 bits"
    assert engine(of_job(job(tmp_path, GPT_OSS)), device("a100"), 1).expert_speed[0] == 1, "by Marlin's kernels"
    eight = engine(of_job(job(tmp_path, V3)), device("h200"), 1)
    assert (eight.weight_bytes[0], eight.expert_bytes[0], eight.speed[0], eight.expert_speed[0]) == (1, 1, 2, 2)
    few = np.array([8.0])
    plain = engine(of_job(job(tmp_path, {**GPT_OSS, "quantization_config": None})), device("h200"), 1)
    assert linear_s(h200, few)[0] < linear_s(plain, few)[0], "few tokens wait for the weights"
    assert (eight.blocks[0], plain.blocks[0], engine(of_job(job(tmp_path, V3)), device("a100"), 1).blocks[0]) == (
        1,
        0,
        0,
    )
    said = engine({**of_job(job(tmp_path, GPT_OSS)), "quantization": np.array(["fp8"])}, device("h200"), 1)
    assert (said.weight_bytes[0], said.expert_bytes[0]) == (1, 1), "a table's row says what it ran"


@pytest.mark.parametrize("kind", ["a100", "h200"])
def test_weights_alone_in_8_bits_are_read_in_8_and_multiplied_in_16(tmp_path: Path, kind: str) -> None:
    """GPTQ and LLM Compressor's W8A16: half the memory, at the speed of Marlin's kernels, which widen them."""
    dense = {**V3, "model_type": "llama", "num_key_value_heads": 8}
    stored, plain = (
        engine(of_job(job(tmp_path, {**dense, "quantization_config": said})), device(kind), 1)
        for said in ({"quant_method": "gptq", "bits": 8}, None)
    )
    embeddings = 2 * 2 * 129280 * 7168
    in_8, in_16 = (e.params_bytes[0] - embeddings for e in (stored, plain))
    assert in_8 / in_16 == pytest.approx(0.51)
    few, many = np.array([1.0]), np.array([8192.0])
    assert linear_s(stored, few)[0] < 0.7 * linear_s(plain, few)[0], "one token waits for the weights"
    assert linear_s(stored, many)[0] > 1.3 * linear_s(plain, many)[0], "a prompt for the products"


def compressed(*groups: tuple[dict[str, Any] | None, int | None]) -> dict[str, Any]:
    """As LLM Compressor writes it: weights, and the bits of inputs, by group of layers."""
    said = [{"weights": w, "input_activations": {"num_bits": bits} if bits else None} for w, bits in groups]
    return {"quant_method": "compressed-tensors", "config_groups": {f"group_{i}": s for i, s in enumerate(said)}}


FLOAT8, INT8, INT4 = ({"type": kind, "num_bits": bits} for kind, bits in (("float", 8), ("int", 8), ("int", 4)))
NVFP4 = {"type": "float", "num_bits": 4, "strategy": "tensor_group", "group_size": 16}


def quark(weight: object, inputs: str | None) -> dict[str, Any]:
    """As AMD Quark writes it, which says the type of weights and of inputs for all layers."""
    tensors = {"weight": weight, "input_tensors": {"dtype": inputs, "is_dynamic": True} if inputs else None}
    return {"quant_method": "quark", "global_quant_config": tensors}


QUARK8 = {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}


@pytest.mark.parametrize(
    ("method", "stored"),
    [
        ({"quant_method": "awq", "bits": 4}, "int4"),
        ({"quant_method": "gptq", "bits": 8}, "w8a16"),
        ({"quant_method": "awq", "bits": 8}, ""),
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8_block"),
        ({"quant_method": "compressed-tensors"}, ""),
        (compressed((FLOAT8, 8)), "fp8"),
        (compressed(({**FLOAT8, "strategy": "block"}, 8)), "fp8_block"),
        (compressed((INT8, 8)), "int8"),
        (compressed((INT4, None)), "int4"),
        (compressed((INT4, 8)), "int4"),
        (compressed((NVFP4, 4)), "nvfp4"),
        (compressed((INT4, None), (FLOAT8, 8)), "fp8"),
        (compressed((FLOAT8, 8), (INT8, None)), "w8a16"),
        (compressed((INT8, None)), "w8a16"),
        (compressed((FLOAT8, None)), "w8a16"),
        (compressed((INT8, 4)), ""),
        (compressed(({"type": "int", "num_bits": 3}, None)), ""),
        (compressed((None, None)), ""),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": 3}}, ""),
        ({"quant_method": "compressed-tensors", "config_groups": ["int"]}, ""),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "fp8_pb_wo"}, "fp8_block"),
        ({"quant_method": "modelopt", "quant_algo": "nvfp4"}, "nvfp4"),
        ({"quant_method": "modelopt", "quant_algo": "INT9"}, ""),
        ({"quant_method": "fbgemm_fp8"}, "fp8"),
        (quark(QUARK8, "fp8_e4m3"), "fp8"),
        (quark({"dtype": "int8", "qscheme": "per_channel"}, "int8"), "int8"),
        (quark(QUARK8, None), ""),
        (quark({"dtype": "fp4", "qscheme": "per_group", "group_size": 32}, "fp4"), ""),
        (quark([QUARK8, {"dtype": "int4", "qscheme": "per_channel"}], "fp8_e4m3"), ""),
        ({"quant_method": "quark", "global_quant_config": ["fp8"]}, ""),
        ("fp8", ""),
    ],
)
def test_formats_by_their_names(tmp_path: Path, method: object, stored: str) -> None:
    assert job(tmp_path, {**GPT_OSS, "quantization_config": method}).model.stored == stored


@pytest.mark.parametrize(
    ("config", "changes", "said"),
    [
        (GPT_OSS, [('from = "config.json"', 'from = "config.json"\nstored = "fp5"')], "model.stored"),
        (
            {**GPT_OSS, "num_local_experts": None},
            [],
            "model.stored = 'mxfp4' is a format for experts, but the model has no experts",
        ),
        (
            {**V3, "quantization_config": None},
            [
                ('task = "serve"\ntarget = "vllm"', 'target = "megatron"'),
                ('from = "config.json"', 'from = "config.json"\nstored = "fp8"'),
                ("concurrency = 8\ninput_len = 256\noutput_len = 64", "seq_len = 256\nglobal_batch = 8"),
                ('maximize = "output_tokens_per_s"', 'minimize = "step_time_s"\n[launch]\ntransformer_engine = true'),
            ],
            "model.stored = 'fp8' applies to serving only; remove it",
        ),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(
    tmp_path: Path, config: dict[str, Any], changes: list[tuple[str, str]], said: str
) -> None:
    with pytest.raises(AutoscoutError) as refused:
        job(tmp_path, config, *changes)
    assert refused.value.exit_code == 2
    assert said in str(refused.value)


def test_training_reads_the_shape_and_not_the_format(tmp_path: Path) -> None:
    of = job(
        tmp_path,
        V3,
        ('task = "serve"\ntarget = "vllm"', 'target = "megatron"'),
        ("concurrency = 8\ninput_len = 256\noutput_len = 64", "seq_len = 256\nglobal_batch = 8"),
        ('maximize = "output_tokens_per_s"', 'minimize = "step_time_s"\n[launch]\ntransformer_engine = true'),
    )
    assert of.model.stored == ""


def test_random_weights_are_not_made_in_few_bits(tmp_path: Path) -> None:
    of = job(tmp_path, GPT_OSS)
    with pytest.raises(AutoscoutError, match="cannot make a model with weights in mxfp4 and random weights"):
        target_of(of).profiler(of)
