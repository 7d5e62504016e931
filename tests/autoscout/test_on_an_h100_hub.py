"""Twenty-one runs of Hugging Face's Trainer on one H100 (transformers 5.17, peft 0.21, torch 2.11; models of random
weights on random tokens of full length): seconds a step, and GiB that PyTorch had allocated at most. Two more ran out
of 79 GiB."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from autoscout.simulate.training.memory import Memory
from autoscout.simulate.training.step import Training

LLAMA_1B = {"layers": 16, "hidden": 2048, "heads": 32, "kv_heads": 8, "ffn": 8192, "vocab": 128256, "tied": 1}
LLAMA_3B = {"layers": 28, "hidden": 3072, "heads": 24, "kv_heads": 8, "ffn": 8192, "vocab": 128256, "tied": 1}
LLAMA_8B = {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocab": 128256, "tied": 0}
QWEN = {"qkv_bias": 1, "vocab": 151936, "tied": 1}
QWEN_05B = {"layers": 24, "hidden": 896, "heads": 14, "kv_heads": 2, "ffn": 4864, **QWEN}
QWEN_3B = {"layers": 36, "hidden": 2048, "heads": 16, "kv_heads": 2, "ffn": 11008, **QWEN}
QWEN_7B = {"layers": 28, "hidden": 3584, "heads": 28, "kv_heads": 4, "ffn": 18944, **QWEN, "vocab": 152064, "tied": 0}
GPT2_XL = {
    "layers": 48, "hidden": 1600, "heads": 25, "kv_heads": 25, "ffn": 6400, "vocab": 50257, "tied": 1, "gated": 0,
    "bias": 1, "learned_positions": 1,
}  # fmt: skip
PLAIN = {
    "gpu": "h100", "gpus": 1, "gated": 1, "bias": 0, "qkv_bias": 0, "learned_positions": 0, "te": 0, "fused_norm": 0,
    "fused_activation": 0, "attention": "flash", "dtype": "bf16", "hub": 4, "grad_bytes": 4, "ar": "none", "lora": 0,
    "adapters": 0, "lora_rank": np.nan, "adapter_width": np.nan,
}  # fmt: skip
SIXTEEN, AGAIN = {"hub": 2, "grad_bytes": 2}, {"ar": "full"}
NONE = float("inf")


def beside(model: Mapping[str, float]) -> dict[str, float]:
    """Adapters of rank 16 beside all products."""
    h, f, kv = model["hidden"], model["ffn"], model["hidden"] * model["kv_heads"] / model["heads"]
    return {"lora": 1, "lora_rank": 16, "adapters": 1, "adapter_width": 4 * h + 2 * (h + kv) + 3 * (h + f)}


# model, micro batch, tokens, micro batches, more; seconds, GiB
RUNS: list[tuple[Mapping[str, float], int, int, int, dict[str, Any], float, float]] = [
    (LLAMA_1B, 4, 2048, 1, {}, 0.216, 43.84),
    (LLAMA_1B, 4, 2048, 1, SIXTEEN, 0.188, 32.10),
    (LLAMA_1B, 8, 2048, 1, AGAIN, 0.479, 40.16),
    (LLAMA_1B, 1, 512, 1, {}, 0.064, 19.46),
    (LLAMA_1B, 2, 2048, 1, {"attention": "unfused"}, 0.258, 54.38),
    (LLAMA_1B, 8, 2048, 1, {}, 0.395, 71.51),
    (LLAMA_1B, 2, 2048, 4, {}, 0.470, 34.61),
    (LLAMA_1B, 1, 32768, 1, SIXTEEN | AGAIN, 1.516, 56.45),
    (LLAMA_3B, 2, 4096, 2, SIXTEEN | AGAIN, 1.097, 37.25),
    (LLAMA_8B, 1, 2048, 1, SIXTEEN | AGAIN, 0.329, 59.91),
    (LLAMA_8B, 1, 2048, 1, SIXTEEN | AGAIN | beside(LLAMA_8B), 0.346, 18.96),
    (LLAMA_8B, 4, 1024, 1, SIXTEEN | beside(LLAMA_8B), 0.449, 47.98),
    (LLAMA_8B, 1, 256, 1, SIXTEEN | beside(LLAMA_8B), 0.230, 17.63),
    (LLAMA_8B, 1, 1024, 1, beside(LLAMA_8B), 0.230, 52.56),
    (LLAMA_8B, 4, 2048, 1, SIXTEEN | beside(LLAMA_8B), NONE, NONE),
    (QWEN_7B, 2, 4096, 1, SIXTEEN | AGAIN | beside(QWEN_7B), 1.102, 30.33),
    (QWEN_7B, 8, 1024, 1, SIXTEEN | AGAIN | beside(QWEN_7B), 1.068, 30.33),
    (QWEN_05B, 8, 1024, 1, {}, 0.140, 32.65),
    (QWEN_3B, 4, 2048, 1, {}, NONE, NONE),
    (GPT2_XL, 8, 1024, 1, {}, 0.445, 75.64),
    (GPT2_XL, 8, 1024, 1, AGAIN, 0.583, 26.98),
]


@pytest.fixture(scope="module")
def columns() -> dict[str, np.ndarray]:
    rows = [
        {**PLAIN, **model, **more, "mbs": mbs, "seq_len": tokens, "global_batch": mbs * times}
        for model, mbs, tokens, times, more, _, _ in RUNS
    ]
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def test_seconds_are_told_within_a_fifth_and_in_the_mean_within_five_percent(columns: dict[str, np.ndarray]) -> None:
    measured = np.array([run[5] for run in RUNS])
    ran = np.isfinite(measured)
    off = Training().predict(columns).value[ran] / measured[ran] - 1
    assert np.abs(off).max() < 0.2
    assert np.abs(off).mean() < 0.05


def test_memory_is_told_within_a_tenth_and_in_the_mean_within_four_percent(columns: dict[str, np.ndarray]) -> None:
    measured = np.array([run[6] for run in RUNS])
    ran = np.isfinite(measured)
    off = Memory().predict(columns).value[ran] / measured[ran] - 1
    assert np.abs(off).max() < 0.1
    assert np.abs(off).mean() < 0.04


def test_what_ran_out_of_memory_was_likely_to_and_what_ran_was_not(columns: dict[str, np.ndarray]) -> None:
    chances = Memory().oom_probability(columns)
    ran = np.isfinite([run[6] for run in RUNS])
    assert chances[~ran].min() > max(0.6, chances[ran].max())
    assert np.sort(chances[ran])[-2] < 0.3  # what needed 97 % of its memory ran all the same
