"""How NVIDIA's code for MLPerf Training, which its partners run, trains where a table's rows do not say it: read from
mlcommons/training_results_v4.1, v5.0 and v5.1."""

import re
from collections.abc import Mapping
from typing import Any

from autoscout.job.device_names import capability_of
from autoscout.simulate.validation.column_names import number

_HOPPER, _BLACKWELL = 9, 10  # major compute capabilities


def mlperf_code(own: Mapping[str, Any]) -> dict[str, Any]:
    return _lora(own) if number(own.get("lora")) else _pretraining(own)


def _lora(own: Mapping[str, Any]) -> dict[str, Any]:
    """NVIDIA's code for MLPerf's LoRA, which its partners run (llama2_70b_lora/implementations/*nemo of
    mlcommons/training_results_v5.0 and v5.1): on Blackwell NeMo 25.04 or newer, attention in 8 bits that exchanges
    heads (`cp_comm_type`, FP8_DPA), and CUDA graphs where sequences are split (MCORE_CUDA_GRAPH); since 25.09
    Transformer Engine's operation fuser (USE_TE_OPS), where no tensor is. On Hopper frozen weights are transposed in
    every backward pass (disable_parameter_transpose_cache), and since 24.09 layers are graphs where sequences are split
    and tensors are (LAYER_CUDA_GRAPH of training_results_v4.1's config_DGXH100_8x8x1xtp4pp1cp2.sh)."""
    releases = re.findall(r"\b\d\d\.\d\d\b", str(own.get("framework", "")))
    if _generation(own) == _HOPPER:
        split = (number(own.get("cp")) or 1.0) > 1 and (number(own.get("tp")) or 1.0) > 1
        return {"transposes": 1, "graphs": 1.0 * (split and max(releases, default="") >= "24.09")}
    if _generation(own) != _BLACKWELL:
        return {}
    fused = max(releases, default="") >= "25.09" and number(own.get("tp")) == 1
    graphs = (number(own.get("cp")) or 1.0) > 1
    return {"cp_comm": "a2a", "fp8_attention": 1, "graphs": 1.0 * graphs, "op_fuser": 1.0 * fused}


def _pretraining(own: Mapping[str, Any]) -> dict[str, Any]:
    """NVIDIA's code for MLPerf's Llama-3.1, which its partners run: weights are gathered in 8 bits where products have
    them (FP8_PARAMS, FP8_PARAM_GATHER) and gradients reduced in 16 (grad_reduce_in_fp32=False), NCCL has one channel
    for context parallel ranks and eight for replicas (custom_communicator_cta.yaml), and the 8B model buckets of 768
    million gradients and, where no tensor is split, the operation fuser (BUCKET_SIZE, USE_TE_OPS of
    config_common_8b.sh). Since v5.1 Blackwell replays the layers as CUDA graphs (config_common_cg.sh)."""
    if _generation(own) not in (_HOPPER, _BLACKWELL):
        return {}
    found: dict[str, Any] = {"gathered_bytes": 1} if "fp8" in str(own.get("dtype", "")) else {}
    found |= {"dp_channels": 8, "cp_channels": 1, "grad_bytes": 2}
    small = number(own.get("layers")) == 32
    if small:
        found["ddp_bucket"] = 768e6 * 4 / 2**20
    newer = str(own.get("round", "")) >= "v5.1" and _generation(own) != _HOPPER
    fused = small and number(own.get("tp")) == 1
    return found | ({"graphs": 1, "op_fuser": 1.0 * fused} if newer else {})


def _generation(own: Mapping[str, Any]) -> int:
    return int(capability_of(str(own.get("gpu", ""))))
