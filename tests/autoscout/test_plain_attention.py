"""Checkpoints whose attention was left out of quantization: read from config.json, counted in memory and in time."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autoscout.job.hf_config import shape_of
from autoscout.simulate.serving.kv_memory import GIB
from autoscout.simulate.serving.serving_device import device
from autoscout.simulate.serving.setup import setup
from autoscout.simulate.serving.simulator import ServingSimulator
from autoscout.simulate.validation.serving_tables import columns_of_rows
from kb.records import Model
from kb.sizes import parameters, stored_bytes

LLAMA: dict[str, Any] = {
    "model_type": "llama", "num_hidden_layers": 4, "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000,
}  # fmt: skip
PROJECTIONS = [f"model.layers.{i}.self_attn.{name}_proj" for i in range(4) for name in "qkvo"]
FP8 = {"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["lm_head", "model.layers.0.mlp.up_proj", *PROJECTIONS]}


def read(tmp_path: Path, said: dict[str, Any]) -> dict[str, Any]:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA, "quantization_config": said}))
    found = shape_of(path, "serve")
    return {name: found[name] for name in ("stored", "plain_attention") if name in found}


@pytest.mark.parametrize(
    "said",
    [
        FP8,
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "model.layers.*.self_attn*"]},
        {"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": ["*self_attn*"]},
        {"quant_method": "fp8", "ignore": ["re:.*self_attn.*"]},
    ],
)
def test_attention_that_was_left_out_is_read_from_its_names(tmp_path: Path, said: dict[str, Any]) -> None:
    assert read(tmp_path, said)["plain_attention"] is True


@pytest.mark.parametrize(
    "left",
    [["lm_head"], ["lm_head", *PROJECTIONS[:4]], ["model.layers.0.mlp.gate"], ["re:.*mlp.gate$"], [], None],
)
def test_attention_counts_as_quantized_where_hardly_a_layer_is_left_out(tmp_path: Path, left: object) -> None:
    assert read(tmp_path, {"quant_method": "fbgemm_fp8", "modules_to_not_convert": left}) == {"stored": "fp8"}


def test_its_weights_are_counted_in_the_models_dtype() -> None:
    model = Model(layers=4, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=32000, gated=True, stored="fp8")
    plain = Model(**{**{f: getattr(model, f) for f in model.__struct_fields__}, "plain_attention": True})
    attention = 4 * 4096 * 128 * (2 * 32 + 2 * 8)
    assert stored_bytes(plain)[0] - stored_bytes(model)[0] == attention
    assert parameters(plain) == parameters(model)


def test_a_server_of_them_holds_and_reads_as_much_more() -> None:
    """Meta's Llama-3.1-405B in FP8: 75 GB more, of which each of eight devices has and reads an eighth."""
    row = {"model": "llama-3.1-405b", "gpu": "h100", "tp": 8, "framework": "vLLM", "dtype": "bf16", "version": "0.10"}
    batch = {"batch": 1, "input_len": 128, "output_len": 128, "requests": 1}
    all_of_it, plain = (columns_of_rows([{**row, **batch, "quantization": name}])[0] for name in ("fp8", "fbgemm_fp8"))
    assert plain["quantization"][0] == "fp8"
    attention = 126 * 16384 * 128 * (2 * 128 + 2 * 8) / 8
    engines = [setup(columns, device("h100"), 1).engine for columns in (all_of_it, plain)]
    assert engines[1].params_bytes[0] - engines[0].params_bytes[0] == pytest.approx(attention)
    took = [float(ServingSimulator("tpot_mean_ms").predict(columns).value[0]) for columns in (all_of_it, plain)]
    read_s = attention / (device("h100").gemm.gb_s * 1e9)
    assert took[1] - took[0] == pytest.approx(1e3 * read_s, rel=0.1)
    assert attention / GIB > 7


def test_version_0_of_vllm_cuts_prompts_where_its_context_is_long() -> None:
    row = {"model": "llama-3-8b", "gpu": "h100", "framework": "vLLM", "input_len": 10, "output_len": 10, "batch": 1}
    asked = [("0.6.3", 91680), ("0.7.2", 91680), ("0.6.3", 8192), ("0.10.0", 91680), ("0.6.3", 0)]
    rows = [{**row, "version": version, "max_model_len": length} for version, length in asked]
    columns, _ = columns_of_rows([*rows, {**rows[0], "chunked_prefill": 0}])
    assert columns["max_num_batched_tokens"].tolist() == [512, 2048, 0, 0, 0, 0]
    np.testing.assert_equal(columns["chunked_prefill"].tolist(), [1, 1, np.nan, np.nan, np.nan, 0])
