"""Formats of weights: what scales in blocks cost, and whose kernels experts are. Figures: aiconfigurator's tables."""

import numpy as np
import pytest

from autoscout.simulate.serving.engine_shapes import engine
from autoscout.simulate.serving.serving_device import device
from autoscout.simulate.serving.steps import linear_s
from autoscout.simulate.serving.weight_formats import (
    blocks_us,
    expert_kernels,
    expert_speed,
    lasting_speed,
    routing_us,
    speed,
)

H100 = device("h100")
DENSE = {"layers": 36, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 12288, "vocab": 151936, "dtype": "bf16"}
GPUS = ("a100", "h100", "b200", "gb200", "gb300")
MIXTURE = {**DENSE, "experts": 128, "topk": 8, "expert_ffn": 1536}


@pytest.mark.parametrize(("width", "measured"), [(2048, 259), (4096, 481), (5120, 588), (8192, 924), (16384, 1803)])
def test_scales_of_blocks_of_activations_cost_what_was_measured(width: int, measured: float) -> None:
    """What a product of 8,192 tokens takes beside the time that grows with its columns, vLLM 0.14 on H100, in µs."""
    assert blocks_us(H100.elementwise, 8192, width) == pytest.approx(measured, rel=0.12)


def test_eight_bits_in_blocks_are_slower_than_with_one_scale() -> None:
    def seconds(quantization: str, tokens: float, gpu: str = "h100") -> float:
        return float(linear_s(engine({**DENSE, "quantization": np.array([quantization])}, device(gpu), 1), tokens)[0])

    for tokens in (1.0, 256.0, 8192.0):
        assert seconds("fp8_block", tokens) > seconds("fp8", tokens)
    assert seconds("fp8", 8192) < 0.6 * seconds("none", 8192)
    assert 1 < seconds("fp8_block", 8192) / seconds("none", 8192) < 1.2, "vLLM's pull request 23280 measured 1 to 2"
    assert seconds("fp8_block", 8192, "a100") == seconds("fp8", 8192, "a100"), "widened there: no activations in 8 bits"


def test_int8_has_the_speed_of_the_data_sheet_where_tensor_cores_know_it() -> None:
    """624 and 1,979 TOPS on A100 and H100, twice as many as TFLOP/s in 16 bits; it counted as fast as those on A100.
    Blackwell's kernels know it no more (vLLM's cutlass_scaled_mm refuses it from SM 100 on)."""
    formats, size = np.array(["int8", "w8a8"]), np.ones(2)
    for gpu in ("a100", "a40", "a10g", "l4", "l40s", "h100", "h200", "rtx4090", "mi300x"):
        assert speed(formats, size, device(gpu)).tolist() == [2, 2]
    assert speed(formats, size, device("v100")).tolist() == [1, 1]
    assert speed(formats[:1], size[:1], device("b200")).tolist() == [1]
    vllm, tensorrt = np.ones(2), np.full(2, 1.3)
    assert expert_speed(formats, size, vllm, device("a100")).tolist() == [1.1, 1.1], "Triton's kernel, as in FP8"
    assert expert_speed(formats, size, tensorrt, device("a100")).tolist() == [2, 2]


def test_experts_have_kernels_of_their_own() -> None:
    formats, size = (
        np.array(["fp8", "fp8_block", "int4", "mxfp4", "nvfp4"]),
        np.array([1.0, 1.0, 0.53, 0.53125, 0.5625]),
    )
    vllm, tensorrt = np.ones(5), np.full(5, 1.3)
    assert speed(formats, size, device("h100")).tolist() == [2, 2, 0.65, 0.65, 0.65]
    assert expert_speed(formats, size, vllm, device("h100")).tolist() == [1.1, 2, 1, 0.9, 1]
    assert expert_speed(formats, size, tensorrt, device("h100")).tolist() == [2, 2, 1, 0.9, 1]
    assert expert_speed(formats, size, vllm, device("a100")).tolist() == [0.65, 0.65, 1, 1, 1]
    assert expert_speed(formats, size, vllm, device("b200")).tolist() == [1.1, 2, 1, 2, 2.75], (
        "MXFP4 with inputs in 8 bits"
    )
    assert expert_speed(formats, size, tensorrt, device("b200")).tolist() == [2, 2, 1, 2, 2.75]
    assert expert_speed(formats, size, vllm, device("mi355x")).tolist() == [1.75, 1.75, 1, 2, 2.75], "AITER's kernels"
    assert expert_kernels(formats, tensorrt, device("h100")).tolist() == [1.3, 1, 1.3, 1, 1.3]
    assert expert_kernels(formats, tensorrt, device("b200")).tolist() == [1.3, 1, 1.3, 1.3, 1.3]
    assert expert_kernels(formats, vllm, device("b200")).tolist() == [1, 1, 1, 1.3, 1]
    assert expert_kernels(formats[::2], vllm[::2], device("mi300x")).tolist() == [1.9, 1.3, 1.3]
    assert routing_us(formats, device("h100")).tolist() == [0, 0, 0, 28, 0], (
        "Triton's kernels for MXFP4 sort tokens longer"
    )
    many = 8192.0
    (a,), (b,) = (
        linear_s(engine({**MIXTURE, "framework": np.array([name])}, H100, 1), many) for name in ("vLLM", "TensorRT-LLM")
    )
    assert 1.1 < a / b < 1.3


def test_long_products_are_within_what_power_allows() -> None:
    """Prompts of 7,373 tokens to Llama-70B in FP8 took 1.5 times what its products take one by one on B200."""
    names, size = np.array(["bf16", "fp8", "nvfp4"]), np.array([2.0, 1.0, 0.5625])
    share = {gpu: lasting_speed(names, size, device(gpu)) / speed(names, size, device(gpu)) for gpu in GPUS}
    assert share["a100"].tolist() == [1, 1, 1], "whose products are slower than its power allows"
    assert share["h100"][:2] == pytest.approx([0.84, 0.78], abs=0.01)
    assert 0.55 < share["b200"][0] == share["b200"][1] < share["gb200"][1] < share["gb300"][1] < share["h100"][1]
    assert share["b200"][2] > 0.9, "four bits need half the power of eight, and do not reach twice their speed"

    def seconds(gpu: str, tokens: float, **more: object) -> float:
        return float(linear_s(engine({**DENSE, "quantization": np.array(["fp8"]), **more}, device(gpu), 1), tokens)[0])

    assert seconds("b200", 8192, power_cap=60) > 1.2 * seconds("b200", 8192), "a limit comes on top"
    assert seconds("b200", 1) == pytest.approx(seconds("b200", 8), rel=0.05), "bound by memory"


def test_shared_experts_take_less_as_one_more_expert_and_none_of_the_time_beside_them() -> None:
    def added(framework: str, version: str, shared: int = 1536, **more: int) -> float:
        """Seconds that shared experts of this width add to a step of four tokens."""
        named = {"framework": np.array([framework]), "version": np.array([version]), **more}
        row = {**MIXTURE, "quantization": np.array(["fp8_block"]), **named}
        some, none = (linear_s(engine({**row, "shared_ffn": each}, H100, 1), 4.0) for each in (shared, 0))
        return float(some[0] - none[0])

    apart = added("vllm", "0.11")
    assert 0 < added("sglang", "0.5.9") < 0.75 * apart
    assert added("tensorrt-llm", "1.1") < 0.01 * apart
    assert added("sglang", "0.5.9", shared=3072) > apart, "two of them are kept apart"
    spread = {"tp": 2, "ep": 1}
    assert added("sglang", "0.5.9", **spread) == pytest.approx(added("vllm", "0.11", **spread)), "and so is one"
