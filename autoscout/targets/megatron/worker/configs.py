"""Converts the flags of Megatron-LM's training script to Megatron-core's configuration objects, like Megatron-LM does.

The rules are those of v0.16.1 (training/arguments.py, core_transformer_config_from_args; training/training.py,
get_model and get_megatron_optimizer_config): a field of TransformerConfig, DistributedDataParallelConfig or
OptimizerConfig gets the argument of its own name, with a few exceptions. Some arguments are on unless a flag disables
them, even if the field is off by default. The rules are repeated here, because megatron-core's wheel has no
`megatron/training`; tests compare them with Megatron-LM's own parser."""

import dataclasses
import re
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

_CLASSES = (MLATransformerConfig, DistributedDataParallelConfig, OptimizerConfig)
# Arguments of Megatron-LM whose default differs from the default of the field with the same name.
_DEFAULTS: dict[str, Any] = {
    "gradient_accumulation_fusion": True,
    "overlap_p2p_comm": True,
    "align_param_gather": True,
    "attention_softmax_in_fp32": False,
    "masked_softmax_fusion": True,
    "persist_layer_norm": True,
    "bias_dropout_fusion": True,
    "bias_swiglu_fusion": True,
    "bias_gelu_fusion": True,
    "apply_rope_fusion": True,
    "cp_comm_type": ["p2p"],
    "moe_router_load_balancing_type": "aux_loss",
    "cross_entropy_fusion_impl": "native",
    "check_for_nan_in_loss_and_grad": True,
    "barrier_with_L1_time": True,
    "inference_sampling_seed": 1234,
    "min_lr": 0.0,
    "fp8_recipe": "delayed",
    "muon_momentum": 0.9,
    "optimizer_offload_fraction": 1.0,
    "q_lora_rank": None,
    "rotary_scaling_factor": 1.0,
}
# Flags whose argument has a different name.
_ARGUMENT = {
    "num_virtual_stages_per_pipeline_rank": "virtual_pipeline_model_parallel_size",
    "num_experts": "num_moe_experts",
    "decoder_first_pipeline_num_layers": "num_layers_in_first_pipeline_stage",
    "decoder_last_pipeline_num_layers": "num_layers_in_last_pipeline_stage",
    "fp8_format": "fp8",
    "fp8_param_gather": "fp8_param",
    "use_nccl_ub": "nccl_ub",
}
_GROUPS = (
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size"),
    *("context_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size"),
    *("hierarchical_context_parallel_sizes", "num_distributed_optimizer_instances"),
)
PACKED = "packed.jsonl"  # name of a data file with packed samples, as in targets/megatron/finetuning.py
_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "fp8": torch.uint8}
_OFF = {
    "no_overlap_p2p_communication": "overlap_p2p_comm",
    "no_rope_fusion": "apply_rope_fusion",
    "disable_bias_linear": "add_bias_linear",
    "no_check_for_nan_in_loss_and_grad": "check_for_nan_in_loss_and_grad",
}
# Arguments of the script that are not fields of a configuration object.
_OF_THE_SCRIPT = frozenset(
    (
        *("micro_batch_size", "global_batch_size", "seq_length", "max_position_embeddings", "vocab_size", "bf16"),
        *(
            "make_vocab_size_divisible_by",
            "transformer_impl",
            "position_embedding_type",
            "untie_embeddings_and_output_weights",
            "rotary_base",
        ),
        *(
            "group_query_attention",
            "swiglu",
            "accumulate_allreduce_grads_in_fp32",
            "grad_reduce_in_bf16",
            "check_for_nan_in_loss_and_grad",
        ),
        *("ddp_bucket_size", "ddp_average_in_collective", "ddp_pad_buckets_for_high_nccl_busbw"),
        *("bias_swiglu_fusion", "bias_gelu_fusion", "tp_comm_overlap_cfg", "te_rng_tracker", "ckpt_format"),
        *("sft", "data_path", "create_attention_mask_in_dataloader", "use_transformer_engine_op_fuser"),
    )
)


def read(config: dict[str, Any]) -> dict[str, Any]:
    """Returns the content of experiment.json, with `given` (Megatron-LM's arguments) and the parameters of batches
    added."""
    flags = config["arguments"]
    return {
        **config,
        "given": arguments(flags),
        "seq_len": flags["--seq-length"],
        "global_batch": flags["--global-batch-size"],
        "micro_batch": flags["--micro-batch-size"],
        "vocab": flags["--vocab-size"],
        "packed": flags.get("--data-path") == PACKED,
    }


def groups(given: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of parallel_state.initialize_model_parallel, which creates process groups."""
    return {name: given[name] for name in _GROUPS if name in given}


def arguments(flags: dict[str, Any]) -> dict[str, Any]:
    """Converts {"--tensor-model-parallel-size": 2, "--no-rope-fusion": True} to Megatron-LM's arguments by name, with
    relevant defaults. Errors: ValueError for an unknown flag."""
    fields = {field.name for kind in _CLASSES for field in dataclasses.fields(kind)}
    found = dict(_DEFAULTS)
    for flag, value in flags.items():
        name = flag.removeprefix("--").replace("-", "_")
        if value is True and name not in fields and name not in _OF_THE_SCRIPT:
            off = _OFF.get(name) or name.removeprefix("no_")
            if off != name:
                name, value = off, False
        name = _ARGUMENT.get(name, name)
        if name not in fields and name not in _OF_THE_SCRIPT:
            raise ValueError(f"{flag} sets no field of {', '.join(kind.__name__ for kind in _CLASSES)}")
        found[name] = value
    if isinstance(pattern := found.get("moe_layer_freq"), str):  # an expression such as ([0]*1+[1]*26)
        runs = re.findall(r"\[([01])\]\*(\d+)", pattern)
        found["moe_layer_freq"] = [int(kind) for kind, length in runs for _ in range(int(length))]
    if layout := found.get("pipeline_model_parallel_layout"):
        chunks = len(layout.split("|")) // found["pipeline_model_parallel_size"]
        found["virtual_pipeline_model_parallel_size"] = chunks if chunks > 1 else None
    if sizes := found.get("hierarchical_context_parallel_sizes"):
        found["hierarchical_context_parallel_sizes"] = [int(size) for size in sizes]
    for name in ("exp_avg_dtype", "exp_avg_sq_dtype"):
        if name in found:
            found[name] = _DTYPES[found[name]]
    if found.get("virtual_pipeline_model_parallel_size") is None:
        # Megatron-LM allows both settings only in interleaved schedules.
        found["overlap_p2p_comm"] = found["align_param_gather"] = False
    if found.get("position_embedding_type") != "rope":
        found["apply_rope_fusion"] = False
    if found.get("add_bias_linear", True):
        found["add_qkv_bias"] = True
    return found


def transformer(given: dict[str, Any], on_cpu: bool) -> TransformerConfig:
    """Returns the model's configuration, which Megatron validates. Errors: any exception of that validation."""
    dtype = torch.bfloat16 if given.get("bf16") else torch.float32
    kind = MLATransformerConfig if given.get("multi_latent_attention") else TransformerConfig
    fields = {field.name for field in dataclasses.fields(kind)}
    config = {name: value for name, value in given.items() if name in fields}
    gated = bool(given.get("swiglu"))
    overlap = config["overlap_p2p_comm"]
    communication = config["cp_comm_type"]
    config |= {
        # Megatron-LM always sets this to True. With gloo, a tensor could be freed while it is still being sent, which
        # silently causes wrong losses.
        "deallocate_pipeline_outputs": not (on_cpu and overlap),
        "batch_p2p_comm": not overlap,
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "gated_linear_unit": gated,
        "activation_func": torch.nn.functional.silu if gated else torch.nn.functional.gelu,
        "bias_activation_fusion": given["bias_swiglu_fusion" if gated else "bias_gelu_fusion"],
        "num_query_groups": given.get("num_query_groups") if given.get("group_query_attention") else None,
        "cp_comm_type": communication[0] if len(communication) == 1 else communication,
        "use_cpu_initialization": on_cpu,
    }
    for name in ("init_method", "output_layer_init_method", "embedding_init_method"):
        config[name] = lambda weight: None  # the weights come from weights.py
    return kind(**config)


def ddp(given: dict[str, Any]) -> DistributedDataParallelConfig:
    """Returns the configuration of Megatron-LM's get_model, with a single bucket unless communication overlaps."""
    fields = {field.name for field in dataclasses.fields(DistributedDataParallelConfig)}
    config = {name: value for name, value in given.items() if name in fields}
    config |= {
        # Megatron-LM's default for bf16, unless --grad-reduce-in-bf16 is set.
        "grad_reduce_in_fp32": bool(given.get("accumulate_allreduce_grads_in_fp32") or given.get("bf16"))
        and not given.get("grad_reduce_in_bf16"),
        "check_for_nan_in_grad": given["check_for_nan_in_loss_and_grad"],
        "bucket_size": given.get("ddp_bucket_size"),
        "average_in_collective": given.get("ddp_average_in_collective", False),
        "pad_buckets_for_high_nccl_busbw": given.get("ddp_pad_buckets_for_high_nccl_busbw", False),
    }
    if config.get("use_megatron_fsdp"):
        config["use_custom_fsdp"] = True  # as in Megatron-LM, in which both names mean the same setting
    return DistributedDataParallelConfig(**config)


def optimizer(given: dict[str, Any], learning_rate: float) -> OptimizerConfig:
    fields = {field.name for field in dataclasses.fields(OptimizerConfig)}
    config = {name: value for name, value in given.items() if name in fields}
    config["params_dtype"] = torch.bfloat16 if given.get("bf16") else torch.float32
    return OptimizerConfig(**{"optimizer": "adam", "lr": learning_rate, "clip_grad": 1.0, **config})
