"""Rows of measured training runs, as columns of the analytic models, and what they measured.

The tables of ../shared/data/validation and ../shared/data/landscapes are read as they are; any other table works that
names its columns as they do, or as knobs and attributes are named. What such a table leaves out is assumed here, and
nowhere else (what no column says at all: inputs.DEFAULTS).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

Row = Mapping[str, Any]

# What tables call a column of ours.
ALIASES = {
    "n_gpus": "gpus",
    "gpus_per_node": "per_node",
    "num_layers": "layers",
    "kv_groups": "kv_heads",
    "num_experts": "experts",
    "moe_topk": "topk",
    "micro_batch": "mbs",
    "micro_batch_size": "mbs",
    "global_batch_size": "global_batch",
    "zero_stage": "zero",
    "dist_opt": "distopt",
    "overlap_grad_reduce": "overlap_grad",
    "overlap_param_gather": "overlap_param",
    "recompute_granularity": "ar",
    "recompute_method": "ar_method",
    "recompute_num_layers": "ar_layers",
    "precision": "dtype",
}

NUMBERS = [
    "layers",
    "hidden",
    "heads",
    "kv_heads",
    "head_dim",
    "ffn",
    "gated",
    "vocab",
    "experts",
    "topk",
    "expert_ffn",
    "bias",
    "tied",
    "learned_positions",
    "params",
    "seq_len",
    "global_batch",
    "gpus",
    "per_node",
    "tp",
    "pp",
    "dp",
    "cp",
    "ep",
    "etp",
    "vpp",
    "mbs",
    "sp",
    "recomputed",
    "ar_layers",
    "distopt",
    "zero",
    "zero_group",
    "overlap_grad",
    "overlap_param",
    "ddp_bucket",
    "tp_comm_overlap",
    "tp_comm",
    "overlap_p2p",
    "te",
    "dropout",
    "lora",
    "node_gb_s",
    "stage_layers",
    "stage_tp",
    "stage_recomputed",
    "grad_bytes",
    "a100",
    "a40",
]
NAMES = ("gpu", "dtype", "ar", "ar_method", "attention", "dispatcher")

# layers, hidden, heads, kv heads, ffn, gated, vocabulary, tied: from the models' public cards.
SHAPES: dict[str, tuple[float, ...]] = {
    "mpt-125m": (12, 768, 12, 12, 3072, 0, 50368, 1),
    "mpt-350m": (24, 1024, 16, 16, 4096, 0, 50368, 1),
    "mpt-760m": (24, 1536, 12, 12, 6144, 0, 50368, 1),
    "mpt-1b": (24, 2048, 16, 16, 8192, 0, 50368, 1),
    "mpt-3b": (32, 2560, 20, 20, 10240, 0, 50368, 1),
    "mpt-7b": (32, 4096, 32, 32, 16384, 0, 50368, 1),
    "mpt-13b": (40, 5120, 40, 40, 20480, 0, 50368, 1),
    "mpt-30b": (48, 7168, 56, 56, 28672, 0, 50368, 1),
    "mpt-70b": (80, 8192, 64, 64, 32768, 0, 50368, 1),
    "internlm-7b": (32, 4096, 32, 32, 11008, 1, 103168, 0),
    "internlm-20b": (60, 5120, 40, 40, 13824, 1, 103168, 0),
    "llama2-7b": (32, 4096, 32, 32, 11008, 1, 32000, 0),
    "llama2-13b": (40, 5120, 40, 40, 13824, 1, 32000, 0),
    "llama2-34b": (48, 8192, 64, 8, 22016, 1, 32000, 0),
    "llama2-70b": (80, 8192, 64, 8, 28672, 1, 32000, 0),
    "llama-2-7b": (32, 4096, 32, 32, 11008, 1, 32000, 0),
    "llama3-8b": (32, 4096, 32, 8, 14336, 1, 128256, 0),
    "llama-3-8b": (32, 4096, 32, 8, 14336, 1, 128256, 0),
    "llama3-70b": (80, 8192, 64, 8, 28672, 1, 128256, 0),
    "llama3.1-8b": (32, 4096, 32, 8, 14336, 1, 128256, 0),
    "llama-3.1-8b": (32, 4096, 32, 8, 14336, 1, 128256, 0),
    "llama3.1-70b": (80, 8192, 64, 8, 28672, 1, 128256, 0),
    "llama3.1-405b": (126, 16384, 128, 8, 53248, 1, 128256, 0),
    "llama-3.2-1b": (16, 2048, 32, 8, 8192, 1, 128256, 1),
    "llama-3.2-3b": (28, 3072, 24, 8, 8192, 1, 128256, 1),
    "mistral-7b": (32, 4096, 32, 8, 14336, 1, 32000, 0),
    "mistral-7b-v0.2": (32, 4096, 32, 8, 14336, 1, 32000, 0),
    "falcon-7b": (32, 4544, 71, 1, 18176, 0, 65024, 1),
    "gemma-2b": (18, 2048, 8, 1, 16384, 1, 256000, 1),
    "gemma-7b": (28, 3072, 16, 16, 24576, 1, 256000, 1),
    "gemma-2-2b": (26, 2304, 8, 4, 9216, 1, 256000, 1),
    "gemma-2-9b": (42, 3584, 16, 8, 14336, 1, 256000, 1),
    "phi-2": (32, 2560, 32, 32, 10240, 0, 51200, 0),
    "phi-3-mini-4k-instruct": (32, 3072, 32, 32, 8192, 1, 32064, 0),
    "stablelm-base-alpha-3b": (16, 4096, 32, 32, 16384, 0, 50688, 0),
    "tiny-llama": (22, 2048, 32, 4, 5632, 1, 32000, 0),
}
_HEAD_DIM = {"gemma-7b": 256.0, "gemma-2b": 256.0, "gemma-2-2b": 256.0, "gemma-2-9b": 256.0}

# How a framework's public benchmark trained, where its rows do not say.
FRAMEWORKS: dict[str, dict[str, Any]] = {
    # scripts/train/benchmarking of mosaicml/llm-foundry: learned positions, no biases, Triton's FlashAttention-1
    "llm-foundry FSDP": {"bias": 0, "tied": 1, "learned_positions": 1, "attention": "flash1"},
    # InternEvo's train_performance.md: FlashAttention, 4 × 100 Gb/s RoCE a node, gradients reduced beside the layers
    "InternEvo": {
        "bias": 0,
        "attention": "flash1",
        "overlap_grad": 1,
        "overlap_param": 1,
        "grad_bytes": 2,
        "node_gb_s": 50,
    },
    "fms-fsdp": {"bias": 0, "attention": "flash2"},
    "fms-fsdp (PyTorch FSDP + compile + SDPA)": {"bias": 0, "attention": "flash2"},
    "torchtitan FSDP2": {"bias": 0, "attention": "flash2"},
    "litgpt finetune": {"bias": 0, "attention": "flash2", "grad_bytes": 2},
}
OPERATORS = 13.0  # per layer, as Mist and Aceso cut models into stages
# fms-fsdp's README: what its "selective" repeats, by its columns HFU and MFU
FMS_RECOMPUTED = {"llama2-13b": 0.4, "llama2-34b": 1.0, "llama2-70b": 1.0}
# Megatron-LM of 2021-22 as Mist's and vTrain's authors ran it.
EARLY_MEGATRON = {"te": 0, "attention": "unfused", "dropout": 1, "tied": 1, "learned_positions": 1, "dtype": "fp16"}


def columns_of(rows: Sequence[Row]) -> dict[str, np.ndarray]:
    """(n,) each; NaN and "" where a row does not say."""
    said = [of_row(row) for row in rows]
    columns: dict[str, np.ndarray] = {}
    for name in NUMBERS:
        if any(name in row for row in said):
            columns[name] = np.array([row.get(name, np.nan) for row in said], dtype=float)
    for name in NAMES:
        if any(name in row for row in said):
            columns[name] = np.array([row.get(name, "") for row in said], dtype=str)
    return columns


def of_row(row: Row) -> dict[str, Any]:
    """One row, in our names. What the row says itself wins over what its model's name or its framework implies."""
    own = {ALIASES.get(k, k): v for k, v in row.items() if _said(v)}
    other = str(own.get("other", ""))
    x: dict[str, Any] = {**_model(_model_name(own)), **_software(own)}
    x |= {k: number for k, v in own.items() if k in NUMBERS and (number := _number(v)) is not None}
    x |= {k: str(own[k]) for k in ("gpu", "ar_method", "dispatcher") if k in own}
    x |= _recomputation(str(own.get("ar", x.get("ar", "none"))), x)
    x["dtype"] = _precision(str(own.get("dtype", x.get("dtype", "bf16"))), own)
    if match := re.search(r"zero1 group=(\d+)", other):
        x["zero_group"] = float(match[1])
    if "llm-foundry" in str(own.get("framework", "")) and "SHARD_GRAD_OP" in other:
        x["zero"] = 2.0
    if own.get("source") == "fms_fsdp" and x.get("ar") == "selective":
        x |= {"ar": "full", "recomputed": FMS_RECOMPUTED.get(str(own.get("model", "")).lower(), 0.5)}
    if "lora.yaml" in other:
        x["lora"] = 2.0 if "qlora" in other else 1.0
    if match := re.search(r'"ops_per_stage": \[(\d+)', other):
        x["stage_layers"] = float(match[1]) / OPERATORS
    if match := re.search(r'"(?:num_gpus_per_stage|num_gpus)": \[+(\d+)', other):
        x["stage_tp"] = float(match[1])
    if "tp" not in x and {"gpus", "pp", "dp"} <= x.keys():  # stages of several degrees: their mean
        x["tp"] = max(x["gpus"] / (x["pp"] * x["dp"]), 1.0)
    return {k: v for k, v in x.items() if not (isinstance(v, float) and np.isnan(v))}


def step_seconds(rows: Sequence[Row]) -> np.ndarray:
    """(n,) measured seconds of a step; NaN where a row measured something else, or says it once more."""
    timed = {_reference(r) for r in rows if str(r.get("metric", "")).startswith("iteration_time")}
    return np.array([_seconds(row, timed) for row in rows], dtype=float)


def peak_gib(rows: Sequence[Row]) -> np.ndarray:
    """(n,) measured peak memory of the fullest rank in GiB; inf where it ran out of memory; NaN where not measured."""
    return np.array([_gib(row) for row in rows], dtype=float)


def _seconds(row: Row, timed: Iterable[Any]) -> float:
    for name in ("iteration_time_s", "step_time_s", "iteration_time_median_s"):
        if _said(row.get(name)):
            return float(row[name])
    metric, value = str(row.get("metric", "")), _number(row.get("value"))
    if value is None or str(row.get("status", "ok")) != "ok":
        return np.nan
    if metric in ("iteration_time", "iteration_time_derived"):
        return value
    if metric == "tokens_per_s_per_gpu" and _reference(row) not in timed:
        x = of_row(row)
        return x.get("global_batch", np.nan) * x.get("seq_len", np.nan) / (value * x.get("gpus", np.nan))
    return np.nan


def _gib(row: Row) -> float:
    if str(row.get("status", "ok")) == "oom":
        return np.inf
    if _said(row.get("peak_memory_gib")):
        return float(row["peak_memory_gib"])
    if _said(row.get("mem_max_allocated_bytes")):
        return float(row["mem_max_allocated_bytes"]) / 2**30
    value = _number(row.get("value"))
    if value is None or str(row.get("metric", "")) not in ("peak_mem_per_gpu", "peak_mem_allocated_any_rank"):
        return np.nan
    # Mist's logs say MB for MiB, as torch.cuda's own reports do; litgpt divides by 10⁹.
    return value * {"GiB": 1.0, "GB": 1e9 / 2**30, "MB": 1 / 1024}.get(str(row.get("unit", "")), 1.0)


def _model_name(own: Row) -> str:
    """litgpt's files are named after the model more exactly than its table."""
    file = str(own.get("other", "")).split("/")[0]
    return {"gemma2-2b": "gemma-2-2b", "gemma2b": "gemma-2-2b", "gemma2-9b": "gemma-2-9b"}.get(
        file, str(own.get("model", ""))
    )


def _model(name: str) -> dict[str, float]:
    shape = SHAPES.get(name.lower())
    if shape is None:
        return {}
    names = ("layers", "hidden", "heads", "kv_heads", "ffn", "gated", "vocab", "tied")
    found = dict(zip(names, map(float, shape), strict=True))
    return found | ({"head_dim": _HEAD_DIM[name.lower()]} if name.lower() in _HEAD_DIM else {})


def _software(own: dict[str, Any]) -> dict[str, Any]:
    framework = str(own.get("framework", ""))
    if "s_per_sample" in own and "seq_len" not in own:  # vTrain's landscape: its paper, section 4
        wide = _number(own.get("hidden")) or 0.0
        # Its traces are of one layer without padding of the vocabulary; none of its stages recomputes (its code leaves
        # the last one out, and the table's times are exactly forward + backward in all of them).
        shape = {"heads": max(16.0, wide / 128), "seq_len": 1024.0, "vocab": 50257.0}
        return {**EARLY_MEGATRON, **shape, "gpu": "a100-40-sxm", "ar": "none", "tied": 0}
    if str(own.get("source", "")) == "mist_baseline_runs":
        return EARLY_MEGATRON
    if "transformer_impl" in own or "mem_max_allocated_bytes" in own:  # Megatron-core's own regression runs
        plain = {"te": 1, "attention": "flash", "dropout": 1, "learned_positions": 1}
        ffn, hidden = _number(own.get("ffn")), _number(own.get("hidden"))
        if vocab := _number(own.get("vocab")):  # padded so that it divides by 128 on every rank
            unit = 128 * float(own.get("tp") or 1)
            own["vocab"] = unit * np.ceil(vocab / unit)
        return {**plain, "gated": 0 if ffn is None or ffn == 4 * (hidden or 0) else 1, **_chunks(own)}
    return FRAMEWORKS.get(framework, {})


def _chunks(own: Row) -> dict[str, float]:
    """Megatron names the layers of a chunk, we name the chunks of a stage."""
    each = _number(own.get("vpp_layers"))
    return {} if each is None else {"vpp": float(own["layers"]) / (float(own.get("pp", 1)) * each)}


def _recomputation(ar: str, x: Mapping[str, Any]) -> dict[str, Any]:
    if match := re.search(r"\[([^\]]*)\]", ar):  # Mist and Aceso: the share of each stage that is recomputed
        shares = [float(v) for v in match[1].split(",") if v.strip()]
        return {"ar": "full", "recomputed": float(np.mean(shares)), "stage_recomputed": shares[0]}
    if ar.startswith("selective"):
        # "selective layer" of PyTorch trainers: every other layer as a whole
        return {"ar": "full", "recomputed": 0.5} if "layer" in ar else {"ar": "selective"}
    return {"ar": "full" if ar == "full" else "none"}


def _precision(name: str, own: Row) -> str:
    plain = name.lower()
    if "transformer_impl" in own or "fp8" in own:
        return "bf16" if str(own.get("bf16", "True")) == "True" else "fp16"
    for known in ("bf16", "fp16", "fp32"):
        if known in plain:
            return known
    return "fp8" if "fp8" in plain or "float8" in plain else "bf16"


def _reference(row: Row) -> tuple[str, str]:
    return str(row.get("source", "")), str(row.get("source_ref", ""))


def _said(value: Any) -> bool:
    return value is not None and value != "" and not (isinstance(value, float) and np.isnan(value))


def _number(value: Any) -> float | None:
    if isinstance(value, str) and value in ("True", "False"):
        return float(value == "True")
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return None if np.isnan(number) else number
