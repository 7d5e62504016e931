"""Storage formats of weights and KV caches: bytes per number, and the speed of products in each format."""

from collections.abc import Mapping

import numpy as np

from autoscout.simulate.serving.operators import Array, ServingElementwise, elementwise_us
from autoscout.simulate.serving.serving_device import ServingDevice
from kb.sizes import ONLY_EXPERTS, STORED, padded

# Bytes per weight, and per number in the KV cache, by the format's name.
WEIGHT_BYTES = {
    **STORED,
    **dict.fromkeys(("bf16", "fp16"), 2.0),
    **dict.fromkeys(("fp32", "float32"), 4.0),
    "fp4": STORED["nvfp4"],
    "w8a8": STORED["int8"],
    **dict.fromkeys(("awq", "gptq"), STORED["int4"]),
}
KV_BYTES = {"fp8": 1.0, "fp8_e4m3": 1.0, "fp8_e5m2": 1.0, "int8": 1.0, "fp32": 4.0, "float32": 4.0}
_INT8 = ("int8", "w8a8")
_TWICE = 2.0  # speed of int8 products relative to 16 bits, by the data sheets
# Speed, relative to bf16 and with many tokens, of products that widen their weights to 16 bits when reading them,
# measured with Marlin's kernels on Qwen3-32B. 4-bit experts lose nothing (aiconfigurator's vllm_marlin_moe on H100 has
# 1.07 times bf16's speed).
_WIDENED, _WIDENED_EXPERTS = 0.65, 1.0
# Speed, relative to bf16 and with many tokens, of 8-bit experts with a scale per tensor or token: vLLM's Triton kernel
# in FP8 on H100 and L40S; int8 is as fast.
_EIGHT_BIT_EXPERTS = 1.1
# Speed of fused expert kernels that a device offers to every engine (`fused_experts`), relative to vLLM's Triton
# kernel: the figure of TensorRT-LLM's record. vLLM also uses them for MXFP4.
_FUSED_EXPERTS = 1.3
# Cost of quantizing activations in blocks of 128 before a product: bytes moved per activation (fitted to 14 shapes of
# `fp8_block` on H100 in aiconfigurator's table), and number of kernels (from Qwen3-8B in SGLang with four users).
_BLOCK_BYTES, _BLOCK_KERNELS = 29.0, 4.0


def formats_of(dtype: np.ndarray, quantization: np.ndarray, stored: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(format of most weights, format of experts). `quantization`, a column or knob, takes precedence over `stored`,
    the format in the model's folder."""
    alone = np.isin(quantization, ONLY_EXPERTS)
    stored, quantization = np.where(alone, quantization, stored), np.where(alone, "none", quantization)
    unsaid = np.isin(quantization, ["none", ""])
    whole = np.where(np.isin(stored, ["", *ONLY_EXPERTS]), dtype, stored)
    formats = np.where(unsaid, whole, quantization)
    return formats, np.where(unsaid & (stored != ""), stored, formats)


def expert_shape(
    formats: np.ndarray, hidden: np.ndarray, ffn: np.ndarray, multiple: np.ndarray, device: ServingDevice
) -> tuple[np.ndarray, np.ndarray]:
    """(hidden, ffn) of an expert, padded as the device computes it. `multiple`: on devices without 8-bit products,
    4-bit experts are padded to a multiple of this width; 0: the usual padding."""
    alone = np.isin(formats, ONLY_EXPERTS)
    wide, usual = padded(hidden, ffn)
    own = (multiple > 0) & ("fp8" not in device.formats)
    more = -(-ffn // np.maximum(multiple, 1)) * multiple
    return np.where(alone, wide, hidden), np.where(alone, np.where(own, more, usual), ffn)


def speed(names: np.ndarray, weight_bytes: np.ndarray, device: ServingDevice) -> np.ndarray:
    """Speed of products relative to bf16. Weights that the device cannot multiply are widened to 16 bits; fp32 has half
    the speed."""
    names = np.char.lower(names)
    four = np.isin(names, ("fp4", "nvfp4")) & ("fp4" in device.formats)
    eight = (np.char.startswith(names, "fp8") | (names == "w8a8")) & ("fp8" in device.formats)
    eight = eight | np.isin(names, _INT8) & ("int8" in device.formats)
    widened = (weight_bytes < 2) & ~np.isin(names, _INT8)
    twice = np.where(np.isin(names, _INT8), _TWICE, device.kernels.eight_bits)
    known = [device.kernels.four_bits, twice, _WIDENED]
    return np.select([four, eight, widened], known, np.minimum(1.0, 2 / weight_bytes))


def lasting_speed(names: np.ndarray, weight_bytes: np.ndarray, device: ServingDevice) -> np.ndarray:
    """`speed` in long steps, whose products follow each other without a pause, so that the power limit slows the
    device. Formats with fewer bits reach the limit at a higher speed."""
    own, names = speed(names, weight_bytes, device), np.char.lower(names)
    four = np.isin(names, ("fp4", "nvfp4")) & (own > 1)
    eight = np.where(np.isin(names, _INT8), device.lasting.get("int8", np.inf), device.lasting.get("fp8", np.inf))
    limits = [device.lasting.get("fp4", np.inf), eight]
    return np.minimum(own, np.select([four, own > 1], limits, device.lasting["bf16"]))


def more_launches(names: np.ndarray, weight_bytes: np.ndarray, device: ServingDevice) -> np.ndarray:
    """Additional launches of a layer's four products compared to 16 bits, in units of a usual kernel launch without
    CUDA graphs. A product takes 28 to 31 µs if its weights are widened (W8A16 in vLLM 0.20, AWQ in 0.9, on A100). It
    takes 58 µs if a separate kernel also quantizes its inputs to 8 bits (W8A8)."""
    fast = speed(names, weight_bytes, device) > 1
    return np.select([fast & device.kernels.norms_quantize, fast, weight_bytes < 2], [0.0, 6.0, 3.0], 0.0)


def expert_speed(names: np.ndarray, weight_bytes: np.ndarray, engine: np.ndarray, device: ServingDevice) -> np.ndarray:
    """Speed of expert products relative to bf16. `engine`: speed of its expert kernels relative to vLLM's Triton
    kernel."""
    own, names = speed(names, weight_bytes, device), np.char.lower(names)
    eight = np.isin(names, ("fp8", *_INT8)) & ~_fused(engine, device)
    return np.select(
        [names == "mxfp4", (own == _WIDENED) & (weight_bytes < 1), (own > 1) & eight],
        [device.kernels.mxfp4_experts, _WIDENED_EXPERTS, _EIGHT_BIT_EXPERTS],
        own,
    )


def expert_kernels(names: np.ndarray, engine: np.ndarray, device: ServingDevice) -> np.ndarray:
    """Speed of an engine's expert kernels relative to vLLM's Triton kernel. No engine has faster kernels for
    block-scaled FP8, nor for MXFP4 on devices without 4-bit products. On devices with 4-bit products, every engine has
    the same fast MXFP4 kernels."""
    names, four = np.char.lower(names), "fp4" in device.formats
    alike = (names == "fp8_block") | (names == "mxfp4") & (not four)
    fused = np.where(engine > 1, engine, _FUSED_EXPERTS)
    own = np.where((names == "fp8") & device.kernels.fused_experts, device.kernels.fp8_experts, fused)
    return np.where(_fused(engine, device) & ~alike | (names == "mxfp4") & four, own, 1.0)


def _fused(engine: np.ndarray, device: ServingDevice) -> np.ndarray:
    return (engine > 1) | device.kernels.fused_experts


def routing_us(names: np.ndarray, device: ServingDevice) -> np.ndarray:
    """Additional microseconds of a layer with experts in these formats on this device, compared to 16-bit experts."""
    names, kernels = np.char.lower(names), device.kernels
    return np.select(
        [names == "fp8_block", names == "mxfp4"], [kernels.block_experts_us, kernels.mxfp4_routing_us], 0.0
    )


def in_blocks(names: np.ndarray, device: ServingDevice) -> np.ndarray:
    """Whether products quantize their input activations to 8 bits in blocks."""
    return (np.char.lower(names) == "fp8_block") & ("fp8" in device.formats)


def blocks_us(c: ServingElementwise, tokens: Array, width: Array) -> Array:
    return elementwise_us(c, _BLOCK_BYTES * np.asarray(tokens) * width, _BLOCK_KERNELS)


def lookup(words: np.ndarray, table: Mapping[str, float], default: Array) -> np.ndarray:
    known, inverse = np.unique(words, return_inverse=True)
    found = np.array([table.get(str(word).lower(), np.nan) for word in known])[inverse]
    return np.where(np.isnan(found), default, found)
