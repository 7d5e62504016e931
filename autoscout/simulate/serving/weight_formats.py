"""Formats that weights and caches are stored in: their bytes, and how fast a device multiplies them."""

from collections.abc import Mapping

import numpy as np

from autoscout.simulate.serving.operators import Array, Elementwise, elementwise_us
from kb.sizes import ONLY_EXPERTS, STORED, padded

WEIGHT_BYTES = {
    **STORED,
    **dict.fromkeys(("bf16", "fp16"), 2.0),
    **dict.fromkeys(("fp32", "float32"), 4.0),
    "fp4": STORED["nvfp4"],
    "w8a8": STORED["int8"],
    **dict.fromkeys(("awq", "gptq"), STORED["int4"]),
}
KV_BYTES = {"fp8": 1.0, "fp8_e4m3": 1.0, "fp8_e5m2": 1.0, "int8": 1.0, "fp32": 4.0, "float32": 4.0}
_HAVE_FP4 = ("b200", "gb200", "b300", "gb300", "mi35", "rtx5090", "rtx-pro")
_HAVE_FP8 = ("h100", "h200", "h800", "l40s", "l4", "mi3", "rtx", *_HAVE_FP4)
# Tensor cores that multiply int8 twice as fast as 16 bits, by their data sheets, and kernels that do so: vLLM's reach
# 460 and 487 TOPS for 2,048 tokens on A100 (SGLang's pull request 2752), beside 246 of 16 bits. vLLM has none from
# Blackwell on.
_HAVE_INT8 = ("a100", "a800", "a40", "a10g", "l4", "h100", "h200", "h800", "rtx4090", "mi3")
_INT8 = ("int8", "w8a8")
# Products in FP4 beside 16 bits, where the data sheets have 4: fits to four tables of B200 (vLLM 0.14 and 0.19,
# TensorRT-LLM 1.0 and 1.2; aiconfigurator 0.8) say 2.5 to 3.0. Those in FP8 on AMD, by its own best rates: 1.8 and 1.7.
_FP4, _FP8_AMD = 2.75, 1.75
# Speed of products whose weights are widened as they are read, relative to bf16 ones, at many tokens: Marlin's kernels
# on Qwen3-32B. Those of experts in 4 bits lose nothing (aiconfigurator's vllm_marlin_moe on H100: 1.07 times bf16's
# speed; MXFP4 of gpt-oss-120b on A100), Triton's for MXFP4 on Hopper a little (gpt-oss-120b).
_WIDENED, _WIDENED_EXPERTS, _TRITON_MXFP4 = 0.65, 1.0, 0.9
# Where a device multiplies FP4, the inputs of experts in MXFP4 are brought to 8 bits (gpt-oss-120b in TensorRT-LLM's
# overview of 1.2). vLLM has the same kernels from FlashInfer: with inputs in 16 bits, its default by its code, RedHat's
# Offline run on B200 in MLPerf v6.0 would be 44 % faster than predicted.
_MXFP4_AND_8 = 2.0
_ROUTING_US = 28.0  # gpt-oss-120b on H100, four users, on one device and on two
_AMD_BLOCKS_US = 200.0  # DeepSeek-V3.1 in SGLang on eight MI300X, one user
_MARLIN = 128  # to a multiple of which its kernels want an expert's width: vLLM loads 66.0 GiB then (issue 23278)
# Experts in 8 bits whose scales are of whole tensors or tokens, at many tokens: vLLM's Triton kernel, of FP8 on H100
# and L40S; int8 takes the same.
_EIGHT_BIT_EXPERTS = 1.1
# TensorRT-LLM's experts against vLLM's: median of 2,820 equal shapes on A100 (aiconfigurator; 1.3 at 2 to 256 tokens).
# AMD's vLLM has AITER's, in assembly (Mixtral in FP8, Offline, by AMD itself in MLPerf v5.1: 3 and 8 % off).
_FUSED_EXPERTS, _AITER_EXPERTS = 1.3, 1.9
# What scales of 128 activations each cost before a product: bytes that its kernels move for an activation (H100, 14
# shapes of aiconfigurator's table of `fp8_block`), and how many kernels (Qwen3-8B in SGLang, four users).
_BLOCK_BYTES, _BLOCK_KERNELS = 29.0, 4.0


def formats_of(dtype: np.ndarray, quantization: np.ndarray, stored: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(of most weights, of experts). What a row or a knob says comes before what the model's folder stores."""
    alone = np.isin(quantization, ONLY_EXPERTS)
    stored, quantization = np.where(alone, quantization, stored), np.where(alone, "none", quantization)
    unsaid = np.isin(quantization, ["none", ""])
    whole = np.where(np.isin(stored, ["", *ONLY_EXPERTS]), dtype, stored)
    formats = np.where(unsaid, whole, quantization)
    return formats, np.where(unsaid & (stored != ""), stored, formats)


def expert_shape(
    formats: np.ndarray, hidden: np.ndarray, ffn: np.ndarray, framework: np.ndarray, device: str
) -> tuple[np.ndarray, np.ndarray]:
    """(hidden, ffn) of an expert as a device holds and multiplies it."""
    alone = np.isin(formats, ONLY_EXPERTS)
    marlin = (np.char.lower(framework) == "vllm") & (not device.startswith(_HAVE_FP8))
    (wide, usual), (_, more) = padded(hidden, ffn), padded(hidden, ffn, _MARLIN)
    return np.where(alone, wide, hidden), np.where(alone, np.where(marlin, more, usual), ffn)


def speed(names: np.ndarray, weight_bytes: np.ndarray, device: str) -> np.ndarray:
    """Speed of products, relative to bf16. Weights in formats that the device cannot multiply are widened first; fp32
    takes twice as long."""
    names = np.char.lower(names)
    four = np.isin(names, ("fp4", "nvfp4")) & device.startswith(_HAVE_FP4)
    eight = (np.char.startswith(names, "fp8") | (names == "w8a8")) & device.startswith(_HAVE_FP8)
    eight = eight | np.isin(names, _INT8) & device.startswith(_HAVE_INT8)
    widened = (weight_bytes < 2) & ~np.isin(names, _INT8)
    twice = np.where(~np.isin(names, _INT8) & device.startswith("mi3"), _FP8_AMD, 2.0)
    return np.select([four, eight, widened], [_FP4, twice, _WIDENED], np.minimum(1.0, 2 / weight_bytes))


def more_launches(names: np.ndarray, weight_bytes: np.ndarray, device: str) -> np.ndarray:
    """What the four products of a layer cost the host beyond those of 16 bits where kernels are launched one by one, in
    launches of a usual kernel: 28 to 31 µs a product whose weights are widened (W8A16 in vLLM 0.20, AWQ in 0.9, on
    A100), 58 µs where its inputs are brought to 8 bits, too (W8A8); nothing on AMD, whose norms and activations do that
    (a token of Llama-2-70B takes 32 and 35 ms without graphs, as many as 800 launches)."""
    fast = speed(names, weight_bytes, device) > 1
    fused = fast & device.startswith("mi3")
    return np.select([fused, fast, weight_bytes < 2], [0.0, 6.0, 3.0], 0.0)


def expert_speed(names: np.ndarray, weight_bytes: np.ndarray, framework: np.ndarray, device: str) -> np.ndarray:
    """The same of experts."""
    own, names = speed(names, weight_bytes, device), np.char.lower(names)
    eight = np.isin(names, ("fp8", *_INT8)) & ~_fused(framework, device)
    mxfp4, blackwell = names == "mxfp4", device.startswith(_HAVE_FP4)
    widened = np.where(mxfp4 & device.startswith(_HAVE_FP8) & (not blackwell), _TRITON_MXFP4, _WIDENED_EXPERTS)
    return np.select(
        [mxfp4 & blackwell, (own == _WIDENED) & (weight_bytes < 1), (own > 1) & eight],
        [_MXFP4_AND_8, widened, _EIGHT_BIT_EXPERTS],
        own,
    )


def expert_kernels(names: np.ndarray, framework: np.ndarray, device: str) -> np.ndarray:
    """Speed of an engine's kernels for experts, relative to Triton's in vLLM. In blocks of FP8, and in MXFP4 on Hopper,
    TensorRT-LLM has none that are faster; for MXFP4 on Blackwell vLLM has TensorRT-LLM's."""
    names, four = np.char.lower(names), device.startswith(_HAVE_FP4)
    alike = (names == "fp8_block") | (names == "mxfp4") & (not four)
    own = np.where((names == "fp8") & device.startswith("mi3"), _AITER_EXPERTS, _FUSED_EXPERTS)
    return np.where(_fused(framework, device) & ~alike | (names == "mxfp4") & four, own, 1.0)


def _fused(framework: np.ndarray, device: str) -> np.ndarray:
    return of_tensorrt(framework) | device.startswith("mi3")


def routing_us(names: np.ndarray, device: str) -> np.ndarray:
    """What Triton's kernels for MXFP4 take to sort tokens by experts, beside those of a usual mixture, and what a layer
    takes longer on AMD whose experts are in blocks of FP8."""
    names = np.char.lower(names)
    on_amd = (names == "fp8_block") & device.startswith("mi3")
    return np.select([on_amd, (names == "mxfp4") & device.startswith(_HAVE_FP8)], [_AMD_BLOCKS_US, _ROUTING_US], 0.0)


def of_tensorrt(framework: np.ndarray) -> np.ndarray:
    return np.char.find(np.char.lower(framework), "tensorrt") >= 0


def in_blocks(names: np.ndarray, device: str) -> np.ndarray:
    """Whether a product's activations are brought to 8 bits in blocks first."""
    return (np.char.lower(names) == "fp8_block") & device.startswith(_HAVE_FP8)


def blocks_us(c: Elementwise, tokens: Array, width: Array) -> Array:
    return elementwise_us(c, _BLOCK_BYTES * np.asarray(tokens) * width, _BLOCK_KERNELS)


def lookup(words: np.ndarray, table: Mapping[str, float], default: Array) -> np.ndarray:
    known, inverse = np.unique(words, return_inverse=True)
    found = np.array([table.get(str(word).lower(), np.nan) for word in known])[inverse]
    return np.where(np.isnan(found), default, found)
