"""Formats that weights and caches are stored in: their bytes, and how fast a device multiplies them."""

from collections.abc import Mapping

import numpy as np

from autoscout.simulate.serving.operators import Array
from kb.sizes import ONLY_EXPERTS, padded

WEIGHT_BYTES = {
    "bf16": 2.0,
    "fp16": 2.0,
    "fp32": 4.0,
    "float32": 4.0,
    "fp8": 1.0,
    "fp4": 0.5625,  # with a scale for every 16
    "nvfp4": 0.5625,
    "mxfp4": 0.53125,  # for every 32
    "int8": 1.0,
    "w8a8": 1.0,
    "awq": 0.53,
    "gptq": 0.53,
    "int4": 0.53,
}
KV_BYTES = {"fp8": 1.0, "fp8_e4m3": 1.0, "fp8_e5m2": 1.0, "int8": 1.0, "fp32": 4.0, "float32": 4.0}
_HAVE_FP4 = ("b200", "gb200", "b300", "gb300", "mi35", "rtx5090", "rtx-pro")
_HAVE_FP8 = ("h100", "h200", "h800", "l40s", "l4", "mi3", "rtx", *_HAVE_FP4)
# Speed of products whose weights are widened as they are read, relative to bf16 ones, at many tokens: Marlin's kernels
# on Qwen3-32B, and Triton's for experts in MXFP4 of gpt-oss-120b on H100; on A100 those, Marlin's, lose nothing.
_WIDENED, _WIDENED_EXPERTS = 0.65, 0.9
_MARLIN = 128  # to a multiple of which its kernels want an expert's width: vLLM loads 66.0 GiB then (issue 23278)


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
    four = (np.char.find(names, "fp4") >= 0) & device.startswith(_HAVE_FP4)
    eight = (np.char.startswith(names, "fp8") | (names == "w8a8")) & device.startswith(_HAVE_FP8)
    widened = np.where(
        (weight_bytes < 2) & ~np.isin(names, ["w8a8", "int8"]), _WIDENED, np.minimum(1.0, 2 / weight_bytes)
    )
    of_experts = _WIDENED_EXPERTS if device.startswith(_HAVE_FP8) else 1.0
    widened = np.where(names == "mxfp4", of_experts, widened)
    return np.where(four, 4.0, np.where(eight, 2.0, widened))


def lookup(words: np.ndarray, table: Mapping[str, float], default: Array) -> np.ndarray:
    known, inverse = np.unique(words, return_inverse=True)
    found = np.array([table.get(str(word).lower(), np.nan) for word in known])[inverse]
    return np.where(np.isnan(found), default, found)
