"""Serving a model half of whose layers see the last tokens only, as GPT-OSS: cache, attention, config.json."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autoscout.simulate.encode import of_job
from autoscout.simulate.serving.engine_run import step_times
from autoscout.simulate.serving.engine_shapes import EngineShapes, engine
from autoscout.simulate.serving.held_back import EngineLimits
from autoscout.simulate.serving.kv_memory import GIB, memory
from autoscout.simulate.serving.operators import prefill_us
from autoscout.simulate.serving.served_by import engines_of
from autoscout.simulate.serving.serving_device import device
from autoscout.simulate.serving.steps import decode_attention_s, decode_context_s, prefill_attention_s
from autoscout.simulate.validation.serving_tables import columns_of_rows
from autoscout.targets.jobs import load_job
from autoscout.targets.target import target_of
from kb.records import AutoscoutError, Job

JOB = """
name = "windows"
task = "serve"
target = "vllm"
[model]
from = "config.json"
[traffic]
concurrency = 8
input_len = 1000
output_len = 280
[cluster]
nodes = [{ device = "h100", count = 1 }]
[objective]
minimize = "tpot_mean_ms"
"""
# As openai/gpt-oss-20b has it, written down from memory.
GPT_OSS: dict[str, Any] = {
    "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "head_dim": 64, "vocab_size": 201088,
    "num_attention_heads": 64, "num_key_value_heads": 8, "num_local_experts": 32, "num_experts_per_tok": 4,
    "num_hidden_layers": 24, "sliding_window": 128, "quantization_config": {"quant_method": "mxfp4"},
}  # fmt: skip
PLAIN = {**GPT_OSS, "sliding_window": None}
LAYER = 2 * 8 * 64 * 2  # bytes of a token in one layer's cache
H100 = device("h100")


def job(folder: Path, config: dict[str, Any], more: str = "") -> Job:
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "job.toml").write_text(JOB.replace('"config.json"\n', f'"config.json"\n{more}\n'))
    return load_job(folder / "job.toml")


def one(of: Job) -> EngineShapes:
    return engine(of_job(of), H100, 1)


def test_windows_are_read_from_a_config(tmp_path: Path) -> None:
    assert (job(tmp_path, GPT_OSS).model.window, job(tmp_path, GPT_OSS).model.windowed_layers) == (128, 12)
    kinds = ["full_attention"] * 20 + ["sliding_attention"] * 4
    assert job(tmp_path, {**GPT_OSS, "layer_types": kinds}).model.windowed_layers == 4
    assert (job(tmp_path, PLAIN).model.window, job(tmp_path, PLAIN).model.windowed_layers) == (0, 0)
    llama = {**PLAIN, "model_type": "llama", "num_local_experts": None, "quantization_config": None}
    assert job(tmp_path, {**llama, "sliding_window": 4096}).model.window == 0


def test_a_row_of_a_table_that_names_gpt_oss_has_its_windows_and_formats() -> None:
    row = {"model": "openai/gpt-oss-120b", "gpu": "H100", "quantization": "mxfp4", "concurrency": 4, "input_len": 230}
    columns, _ = columns_of_rows([{**row, "output_len": 217, "dtype": "bf16", "tpot_mean_ms": 8.31}])
    assert (columns["window"][0], columns["windowed_layers"][0]) == (128, 18)
    held = engine(columns, H100, 1)
    assert (held.weight_bytes[0], held.expert_bytes[0]) == (2, 17 / 32)
    assert held.params_bytes[0] / GIB == pytest.approx(64.38, rel=0.003)


def test_the_cache_of_a_window_does_not_grow(tmp_path: Path) -> None:
    """A request of 1,280 tokens: all of them in 12 layers, 128 in the others."""
    assert of_job(job(tmp_path, GPT_OSS))["kv_mib"] == 12 * (1280 + 128) * LAYER / 2**20
    assert of_job(job(tmp_path, PLAIN))["kv_mib"] == 24 * 1280 * LAYER / 2**20
    vllm = engines_of({}, 1)
    given = [np.array([v]) for v in (80.0, 0.9, 2048.0, 64.0, GIB, 1280.0)]
    assert memory(one(job(tmp_path, PLAIN)), vllm, *given).kv_tokens[0] == 2**30 // (24 * LAYER)
    # As many requests as fit hold a window each, and no more than 64.
    assert memory(one(job(tmp_path, GPT_OSS)), vllm, *given).kv_tokens[0] == 2**30 // (12 * LAYER * (1 + 128 / 1280))
    held = 64 * 12 * 100 * LAYER
    given[-1] = np.array([100.0])  # shorter than the window
    assert memory(one(job(tmp_path, GPT_OSS)), vllm, *given).kv_tokens[0] == (2**30 - held) // (12 * LAYER)


def test_a_generated_token_reads_the_window_in_half_of_the_layers(tmp_path: Path) -> None:
    windows, plain = one(job(tmp_path, GPT_OSS)), one(job(tmp_path, PLAIN))
    slope = decode_context_s(plain, 1)[0]
    assert decode_context_s(windows, 1)[0] == pytest.approx(slope / 2)
    own = decode_attention_s(plain, 4.0, 0.0)[0]
    for context in (4 * 100, 4 * 1000):
        seen = context / 2 + min(context, 4 * 128) / 2
        assert decode_attention_s(windows, 4.0, float(context))[0] == pytest.approx(own + slope * seen)
    table = step_times(windows, EngineLimits(kv_tokens=10**6, max_seqs=8), 0)
    assert table.attention[4] + table.per_context[4] * 4000 == pytest.approx(own + slope * (2000 + 256))


def test_attention_with_sinks_is_slower_where_only_a_triton_kernel_knows_them(tmp_path: Path) -> None:
    of = of_job(job(tmp_path, GPT_OSS))
    ampere, hopper = (engine(of, device(kind), 1).prompt_speed[0] for kind in ("a100", "h100"))
    assert (ampere, hopper) == (0.25, 1)
    assert engine(of_job(job(tmp_path, GPT_OSS, "sinks = false")), device("a100"), 1).prompt_speed[0] == 1


def test_prompts_see_the_window_in_half_of_the_layers(tmp_path: Path) -> None:
    """1,000 tokens after 3,000 others: 3,500 keys each on average, or 128."""
    windows = one(job(tmp_path, GPT_OSS))
    pairs = 1000 * 3500.0
    seen = pairs / 2 + 1000 * 128 / 2
    expected = 24e-6 * float(prefill_us(H100.prefill, H100.sms, 1, 1000, seen, 64.0, 64.0, float(LAYER)))
    assert prefill_attention_s(windows, 1.0, 1000.0, pairs)[0] == pytest.approx(expected)
    table = step_times(windows, EngineLimits(kv_tokens=10**6, max_seqs=8), 0)
    assert table.prompt.seconds(1, 1000, pairs) == pytest.approx(expected)
    plain = step_times(one(job(tmp_path, PLAIN)), EngineLimits(kv_tokens=10**6, max_seqs=8), 0).prompt
    assert table.prompt.seconds(1, 100, 100 * 50.0) == plain.seconds(1, 100, 100 * 50.0), "shorter than the window"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("window = 0", "and model.windowed_layers (number of layers with a window) must be set together"),
        ("windowed_layers = 24", "model.windowed_layers = 24 must be less than model.layers = 24"),
        ("window = -1", "model.window = -1 must not be negative"),
    ],
)
def test_what_is_wrong_with_windows_is_said_in_a_sentence(tmp_path: Path, more: str, said: str) -> None:
    with pytest.raises(AutoscoutError) as refused:
        job(tmp_path, GPT_OSS, more)
    assert refused.value.exit_code == 2
    assert said in str(refused.value)


def test_random_weights_have_no_windows(tmp_path: Path) -> None:
    of = job(tmp_path, {**GPT_OSS, "quantization_config": None})
    with pytest.raises(AutoscoutError, match="cannot make a model with windows of attention and random weights"):
        target_of(of).profiler(of)
