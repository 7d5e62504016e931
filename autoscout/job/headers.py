"""Normalizes the headers of tables, which people write in many ways, and names the columns."""

import re

_BETWEEN = re.compile(r"[\s\-()\[\]]+")
_PER_SECOND = re.compile(r"(?:_?/_?|_per_)s(?:ec(?:onds?)?)?(?![a-z])")
# Prefixes in tables that experiment trackers and tuners export, as in params.lr or metrics.loss.
_EXPORTED = re.compile(r"(params?|args|config|hparams|metrics?)[._/](?=\w)")
_PER_DEVICE = re.compile(r"(?<=_per_s)_?/_?(?=(?:gpu|device)(?![a-z]))")
_A_STEP = re.compile(r"(m?s(?:ec(?:onds?)?)?)s?(?:_?/_?|_per_)(?:it|iter|iteration|step)")

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
    "ep": ("expert_parallel", "expert_parallel_size", "expert_model_parallel_size", "ep_size", "ep_deg"),
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


def header(text: str) -> str:
    """Returns lower case words joined by underscores: "Step Time (s)" → step_time_s, "tokens/sec" → tokens_per_s,
    "sec/iter" → step_time_sec, "#GPUs" → gpus."""
    words = _BETWEEN.sub("_", text.strip().lower()).strip("_#") or text.strip().lower()
    if step := _A_STEP.fullmatch(words):
        return f"step_time_{step[1]}"
    return _PER_DEVICE.sub("_per_", _PER_SECOND.sub("_per_s", words))


def without_export(name: str) -> str:
    """Returns a header without the prefix that an experiment tracker's export gives it: "params.tp" → tp."""
    return _EXPORTED.sub("", name, count=1) if _EXPORTED.match(name) else name
