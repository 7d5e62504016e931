"""Reads vLLM's effective configuration, in which vLLM has silently overridden some arguments and derived further
values."""

import hashlib
import json
from typing import Any


class _Nothing:
    """Replaces a missing part of a configuration."""


PARTS = {
    "scheduler": (
        *("max_num_seqs", "max_num_batched_tokens", "enable_chunked_prefill", "long_prefill_token_threshold"),
        *("async_scheduling", "policy", "stream_interval", "max_num_active_reqs"),
    ),
    "cache": (
        *("block_size", "cache_dtype", "enable_prefix_caching", "kv_cache_memory_bytes", "gpu_memory_utilization"),
        *("cpu_offload_gb", "kv_offloading_size", "kv_offloading_backend"),
    ),
    "model": ("dtype", "max_model_len", "enforce_eager", "quantization", "seed"),
    "parallel": (
        *("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "enable_expert_parallel"),
        *("distributed_executor_backend", "decode_context_parallel_size", "all2all_backend", "enable_dbo"),
    ),
    "compilation": ("mode", "cudagraph_mode", "max_cudagraph_capture_size"),
    "speculative": (
        *("method", "model", "num_speculative_tokens", "prompt_lookup_max", "num_speculative_tokens_per_batch_size"),
    ),
    "kv_transfer": ("kv_connector", "kv_connector_extra_config"),
    "attention": ("backend",),
}


def of_config(config: Any) -> dict[str, Any]:
    """Returns {"identity": …, "values": {"scheduler.max_num_seqs": …}} of a VllmConfig, without fields that this
    version lacks. Configurations with the same engine have the same identity."""
    return of_described({part: vars(getattr(config, f"{part}_config", None) or _Nothing) for part in PARTS})


def of_described(parts: dict[str, Any]) -> dict[str, Any]:
    """Like `of_config`, for a configuration whose parts are dictionaries."""
    found: dict[str, Any] = {}
    for part, names in PARTS.items():
        for name in names:
            if name in parts[part]:
                found[f"{part}.{name}"] = plain(parts[part][name])
    return {"identity": _identity(found), "values": found}


def kv_cache_tokens(config: Any) -> int:
    """Returns the capacity of one rank's KV cache in tokens, after the engine has started."""
    cache = config.cache_config
    return int((cache.num_gpu_blocks or 0) * cache.block_size)


def _identity(found: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:16]


def plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return getattr(value, "name", value)
    return getattr(value, "name", None) or str(value)
