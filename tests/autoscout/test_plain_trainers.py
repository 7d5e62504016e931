"""What trainers cost that are not Megatron: a gate of two operators, norms of copies in fp32, gradients that lie apart.
Devices and the layer are those of test_by_hand.py."""

import numpy as np
import pytest
from test_by_hand import COMPUTE, MEMORY, about, inputs, layer, links

from autoscout.simulate.training.layer import layer_times
from autoscout.simulate.training.memory import Memory
from autoscout.simulate.training.stage import stage
from autoscout.simulate.training.step import Training
from autoscout.simulate.validation.training_tables import columns_of, of_row

TOKENS, HIDDEN, FFN = 4096, 1024, 4096


def added(**columns: int) -> tuple[float, float]:
    """Seconds more, forward and backward, where only bytes count."""
    plain, other = layer(MEMORY), layer(MEMORY, **columns)
    return other["forward"] - plain["forward"], other["backward"] - plain["backward"]


def test_a_gate_of_two_operators():
    """Forward what the activation made is written and read again, 4 bytes an element; half as much more back."""
    assert added(fused_gate=0) == (about(4 * TOKENS * FFN / 1e9), about(6 * TOKENS * FFN / 1e9))
    assert layer(MEMORY, fused_activation=0)["activation"] == about(layer(MEMORY, fused_gate=0)["activation"])
    assert layer(MEMORY, fused_activation=0, fused_gate=1)["activation"] == about(layer(MEMORY)["activation"])


def test_norms_of_copies_in_fp32():
    """Two norms. Read in 16 bits, written in 32, read in 32 instead of 16: 8 bytes an element; back 14."""
    assert added(norm_copy=1) == (about(16 * TOKENS * HIDDEN / 1e9), about(28 * TOKENS * HIDDEN / 1e9))
    plain, other = layer(MEMORY), layer(MEMORY, norm_copy=1)
    assert other["norms"] - plain["norms"] == about(16 * TOKENS * HIDDEN / 1e9)  # recomputed with them


def test_gradients_that_lie_apart():
    """8 micro batches of 8 layers: seven sums of three passes and four passes to the buckets and back, over 2 bytes a
    parameter; the products write their gradients without reading what was there."""
    found = {}
    for on in (0, 1):
        x = inputs(grads_apart=on, grad_bytes=2, global_batch=16)
        assert x.micro_batches == 8
        times = layer_times(COMPUTE, links(COMPUTE), x)
        found[on] = stage(MEMORY, links(MEMORY), x, np.array([8.0]), times, None)["compute"][0]
    attention, block, norms = HIDDEN * 128 * (2 * 8 + 2 * 2), 3 * HIDDEN * FFN, 2 * HIDDEN
    parameters = 8 * (attention + block + norms) + 2 * 32768 * HIDDEN
    assert found[1] - found[0] == about((7 * 3 + 4) / 8 * 2 * parameters / 1e9)
    written = [sum(layer(MEMORY, grads_apart=on, grad_bytes=2)[name] for name in ("backward",)) for on in (0, 1)]
    assert written[0] - written[1] == about(2 * 2 * (attention + block) / 1e9)


def test_internevo_trains_as_its_first_release():
    """Of its rows only those without recomputation repeat norms (dropout_selective_checkpoint)."""
    row = {"framework": "InternEvo", "model": "InternLM-7B", "ar": "none"}
    found = of_row(row)
    assert (found["overlap_param"], found["ddp_bucket"], found["norm_copy"], found["grads_apart"]) == (0, 2048, 1, 1)
    assert (found["ar"], found["ar_modules"]) == ("selective", "layernorm")
    assert "ar_modules" not in of_row({**row, "ar": "full"})


@pytest.mark.parametrize(("ranks", "zero", "peak"), [(1, 0, 67.5), (2, 3, 33.7)])
def test_an_optimizer_that_is_not_one_kernel_copies_all_that_it_trains(ranks: int, zero: int, peak: float) -> None:
    """A model of 7 billion parameters in 16 bits by Hugging Face's trainer of 2024 (fms-acceleration): five times the
    weights, where one kernel leaves four."""
    row = {
        "framework": "HuggingFace Trainer", "gpu": "NVIDIA A100-SXM4-80GB", "layers": 32, "hidden": 4096, "heads": 32,
        "kv_heads": 8, "ffn": 14336, "gated": 1, "vocab": 32000, "seq_len": 4096, "global_batch": 4, "n_gpus": ranks,
        "dp": ranks, "micro_batch": 4 // ranks, "zero_stage": zero, "recompute": "full", "attention": "flash2",
    }  # fmt: skip
    said = Memory().predict(columns_of([row, {**row, "framework": "transformers 5.1"}])).value
    assert said[0] == pytest.approx(peak, rel=0.04)
    assert said[1] < 0.85 * said[0]


def test_automodels_pipelines_recompute_where_its_summary_says_nothing() -> None:
    row = {
        "framework": "NeMo AutoModel", "gpu": "NVIDIA H100 80GB HBM3", "layers": 64, "hidden": 5120, "heads": 40,
        "kv_heads": 8, "ffn": 27648, "vocab": 152064, "seq_len": 4096, "global_batch": 32, "micro_batch": 1, "lora": 1,
        "n_gpus": 8, "pp": 4, "vpp": 8,
    }  # fmt: skip

    def seconds(**more: object) -> float:
        return float(Training().predict(columns_of([{**row, **more}])).value[0])

    assert seconds(recompute="none") == seconds(recompute="full")
    assert seconds(recompute="none", pp=1, vpp=1) < 0.8 * seconds(recompute="full", pp=1, vpp=1)
