"""Renames the columns of tables of training runs to the names that the models use."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from autoscout.job.device_names import kinds
from autoscout.job.headers import header
from autoscout.job.outcome_words import outcome
from autoscout.simulate.training.inputs import READ

# our name → other names; case, spaces and hyphens are ignored
_ALSO = {
    "gpu": ("gpu_name", "gpu_type", "gpu_model", "device", "device_name", "accelerator", "hardware"),
    "gpu_mem_gb": ("gpu_memory_gb", "device_memory_gb"),
    "gpus": ("n_gpus", "num_gpus", "ngpus", "gpu_count", "world_size", "n_devices", "num_devices", "devices"),
    "per_node": ("gpus_per_node", "devices_per_node"),
    "model": ("model_name", "case"),
    "layers": ("num_layers", "n_layers", "n_layer", "num_hidden_layers"),
    "hidden": ("hidden_size", "d_model", "n_embd", "hidden_dim"),
    "heads": ("num_heads", "n_heads", "n_head", "num_attention_heads", "attention_heads"),
    "kv_heads": ("kv_groups", "num_kv_heads", "n_kv_heads", "num_key_value_heads", "num_query_groups"),
    "ffn": ("ffn_hidden_size", "intermediate_size", "ffn_size", "d_ff"),
    "vocab": ("vocab_size", "padded_vocab_size"),
    "experts": ("num_experts", "n_experts"),
    "topk": ("moe_topk", "top_k", "moe_router_topk", "num_experts_per_tok"),
    "expert_ffn": ("moe_ffn_hidden_size", "moe_intermediate_size"),
    "seq_len": ("seq_length", "sequence_length", "max_seq_len", "seqlen", "seq", "context_length"),
    "global_batch": ("global_batch_size", "gbs", "train_batch_size"),
    "mbs": ("micro_batch", "micro_batch_size", "microbatch_size", "local_batch_size"),
    "tp": ("tensor_parallel", "tensor_parallel_size", "tensor_model_parallel_size", "tp_size"),
    "pp": ("pipeline_parallel", "pipeline_parallel_size", "pipeline_model_parallel_size", "pp_size"),
    "dp": ("data_parallel", "data_parallel_size", "dp_size"),
    "cp": ("context_parallel", "context_parallel_size", "cp_size"),
    "ep": ("expert_parallel", "expert_parallel_size", "expert_model_parallel_size", "ep_size"),
    "sp": ("sequence_parallel",),
    "vpp": ("virtual_pp", "virtual_pipeline", "interleave"),
    "zero": ("zero_stage",),
    "sharding": ("sharding_strategy", "fsdp_sharding_strategy", "fsdp_strategy"),
    "distopt": ("dist_opt", "distributed_optimizer", "use_distributed_optimizer"),
    "overlap_grad": ("overlap_grad_reduce",),
    "overlap_param": ("overlap_param_gather",),
    "ar": (
        "recompute", "recomputation", "recompute_granularity", "activation_recompute", "activation_recomputation",
        "activation_checkpointing", "gradient_checkpointing",
    ),
    "attention": (
        "kernel", "attention_kernel", "attn", "attn_impl", "attn_implementation", "attention_backend",
        "flash_attn", "use_flash_attn", "flash_attention",
    ),
    "deterministic": ("deterministic_mode", "use_deterministic_algorithms"),
    "fused_norm": ("rms_kernel", "norm_kernel", "fused_rmsnorm", "fused_layernorm"),
    "fused_activation": ("fused_swiglu", "fused_mlp"),
    "ar_method": ("recompute_method",),
    "ar_layers": ("recompute_num_layers",),
    "dtype": ("precision", "params_dtype"),
}  # fmt: skip
ALIASES = {other: ours for ours, others in _ALSO.items() for other in others}

# Columns in which 0 is a value. In all other columns, tables use 0 for "not used".
MAY_BE_0 = (
    "gated", "bias", "tied", "learned_positions", "sp", "recomputed", "distopt", "zero", "overlap_grad", "experts",
    "overlap_param", "tp_comm_overlap", "tp_comm_dgrad", "overlap_p2p", "overlap_experts", "te", "dropout",
    "deterministic", "fused_norm", "fused_activation", "fused_gate", "norm_copy", "foreach", "grads_apart", "graphs",
    "op_fuser", "transposes", "fp8_attention", "split_loss", "lora", "adapters", "packing",
)  # fmt: skip
NAMES = (
    "gpu", "dtype", "ar", "ar_method", "ar_modules", "attention", "dispatcher", "cp_comm", "framework", "software",
)  # fmt: skip


# Columns of the models that are not read from tables, because tables describe them by other columns or not at all.
_NO_NUMBERS = ("fp8", "dtype_bytes", "memory_gib", "cuda", "fsdp", "moments")


@cache
def numbers() -> list[str]:
    """Names of numeric columns, including the number of devices of each kind."""
    read = [name for name in READ if name not in (*NAMES, *_NO_NUMBERS)]
    return [*read, "release", *counts()]


@cache
def counts() -> list[str]:
    return [kind.replace("-", "_") for kind in kinds()]


def plain(name: str) -> str:
    return header(name)


def renamed(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with our column names, without empty values. If two columns have the same meaning, the one with our name
    is used."""
    own = {plain(str(k)): v for k, v in row.items() if stated(v)}
    return {ALIASES[k]: v for k, v in reversed(own.items()) if k in ALIASES} | {
        k: v for k, v in own.items() if k not in ALIASES
    }


def status_of(row: Mapping[str, Any]) -> str:
    """The outcome of the row's run: "ok", "oom" or "failed"."""
    known = outcome(str(row.get("status") if stated(row.get("status")) else "ok"))
    return known if known in ("ok", "oom") else "failed"


def stated(value: Any) -> bool:
    if isinstance(value, str):
        return value.strip().lower() not in ("", "nan", "none", "null", "n/a")
    return value is not None and value == value  # not NaN


def number(value: Any) -> float | None:
    if isinstance(value, str) and value.strip().lower() in ("true", "false", "yes", "no"):
        return float(value.strip().lower() in ("true", "yes"))
    try:
        found = float(value)
    except (TypeError, ValueError):
        return None
    return found if abs(found) < float("inf") else None
