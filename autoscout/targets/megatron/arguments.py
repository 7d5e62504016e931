"""From (job, configuration) to what the worker's scripts are given: plain data in Megatron's own words."""

from typing import Any

from autoscout.cluster import devices
from autoscout.space.declared import own_knobs
from kb.records import AutoscoutError, Configuration, Job, Value

_GATED_ACTIVATION, _ACTIVATION = "silu", "gelu"
_POSITION = {"rope": "rope", "learned": "learned_absolute"}
_NORM = {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}
# Megatron's configuration classes, and where the worker reads what they are given.
_PARTS = {"TransformerConfig": "transformer", "DistributedDataParallelConfig": "ddp", "OptimizerConfig": "optimizer"}
_MIB_OF_FP32 = 2**20 // 4  # elements
# Transformer Engine's names for the GEMMs of a layer that communicate.
_OVERLAPPED_GEMMS = (
    *("qkv_fprop", "qkv_dgrad", "qkv_wgrad", "proj_fprop", "proj_dgrad"),
    *("fc1_fprop", "fc1_dgrad", "fc1_wgrad", "fc2_fprop", "fc2_dgrad"),
)


def device_kind(job: Job) -> str:
    """ "cpu" or "cuda". Errors: AutoscoutError when the cluster mixes CPUs and GPUs."""
    kinds = {"cpu" if node.device == "cpu" else "cuda" for node in job.cluster.nodes}
    if len(kinds) != 1:
        raise AutoscoutError("cluster: name CPU nodes or GPU nodes, not both and not none", 2)
    return kinds.pop()


def launcher(job: Job) -> str:
    """ "warm", "torchrun" or "replay"; "auto" is warm on CPUs with our own interpreter.

    Errors: AutoscoutError for warm on GPUs, whose state a forked process cannot use.
    """
    if job.launch.launcher == "warm" and device_kind(job) == "cuda":
        raise AutoscoutError('launch.launcher: "warm" works on CPUs only; use "torchrun" or "auto" on GPUs', 2)
    if job.launch.launcher in ("serve", "reuse"):
        raise AutoscoutError(f'launch.launcher: "{job.launch.launcher}" serves; training is "warm" or "torchrun"', 2)
    if job.launch.launcher != "auto":
        return job.launch.launcher
    foreign = job.launch.python or job.launch.command_prefix
    return "torchrun" if foreign or device_kind(job) == "cuda" else "warm"


def world_size(configuration: Configuration) -> int:
    size = 1
    for name in ("tp", "pp", "cp", "dp"):
        size *= int(configuration.knobs.get(name, 1))
    return size


def environment_variables(job: Job, configuration: Configuration, gpus: list[str]) -> dict[str, str]:
    """What every rank's environment must have before it imports torch."""
    if device_kind(job) == "cpu":
        # One thread per rank: ranks outnumber cores, and spinning OpenMP threads stall for minutes. Dynamo
        # would compile C++ in every new process. The ranks are on this machine.
        return {"OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1", "GLOO_SOCKET_IFNAME": "lo"}
    chosen = devices.variables(job, configuration, gpus, world_size(configuration))
    variables = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", **chosen}  # the order in which the probe counts them
    knobs = configuration.knobs
    if int(knobs.get("tp", 1)) > 1 or int(knobs.get("cp", 1)) > 1:
        # Communication must be enqueued before the GEMM that it overlaps with (Megatron-LM insists).
        variables["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    return variables


def worker_config(job: Job, configuration: Configuration, gpus: list[str]) -> dict[str, Any]:
    """What worker/train.py reads; `gpus`: the names of the machine's.

    Errors: AutoscoutError for a configuration without `mbs`.
    """
    knobs = configuration.knobs
    if "mbs" not in knobs:
        raise AutoscoutError("a Megatron configuration needs the knob mbs (micro batch size)", 2)
    model, launch = job.model, job.launch
    config: dict[str, Any] = {
        "device": device_kind(job),
        "environment": environment_variables(job, configuration, gpus),
        "dtype": model.dtype,
        "vocab": model.vocab,
        "tied": model.tied,
        "position": _POSITION[model.position],
        "transformer_engine": launch.transformer_engine,
        "seq_len": job.traffic.seq_len,
        "global_batch": job.traffic.global_batch,
        "micro_batch": knobs["mbs"],
        "warmup": launch.warmup,
        "iterations": launch.iterations,
        "measure_s": launch.measure_s,
        "group_timeout_s": max(15.0, launch.timeout_s / 2),
        "groups": _groups(knobs),
        "transformer": _transformer(job, knobs),
        "ddp": _ddp(job, knobs),
        "optimizer": {
            "optimizer": "adam",
            "lr": 1e-3,
            "clip_grad": 1.0,
            "use_distributed_optimizer": knobs.get("distopt", False),
        },
        "user_buffers": _user_buffers(knobs),
    }
    for name, sets in own_knobs(job).items():
        if name in knobs:
            part, _, field = sets.partition(".")
            config[_PARTS[part]][field] = knobs[name]
    return config


def _groups(knobs: dict[str, Value]) -> dict[str, Any]:
    vpp = int(knobs.get("vpp", 1))
    return {
        "tensor_model_parallel_size": knobs.get("tp", 1),
        "pipeline_model_parallel_size": knobs.get("pp", 1),
        "virtual_pipeline_model_parallel_size": vpp if vpp > 1 else None,
        "context_parallel_size": knobs.get("cp", 1),
        "expert_model_parallel_size": knobs.get("ep", 1),
        "expert_tensor_parallel_size": knobs.get("etp", 1),
    }


def _transformer(job: Job, knobs: dict[str, Value]) -> dict[str, Any]:
    """TransformerConfig's arguments, without the dtypes and functions, which the worker adds."""
    model = job.model
    ffn = model.ffn or 4 * model.hidden
    on_cpu = device_kind(job) == "cpu"
    overlap_p2p = knobs.get("overlap_p2p", False)
    arguments: dict[str, Any] = {
        **_groups(knobs),
        "num_layers": model.layers,
        "hidden_size": model.hidden,
        "num_attention_heads": model.heads,
        "num_query_groups": model.kv_heads or model.heads,
        "kv_channels": model.head_dim or model.hidden // model.heads,
        "ffn_hidden_size": ffn,
        "gated_linear_unit": model.gated,
        "activation_func": _GATED_ACTIVATION if model.gated else _ACTIVATION,
        "normalization": _NORM[model.norm],
        "add_bias_linear": model.bias,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "use_cpu_initialization": on_cpu,
        "gradient_accumulation_fusion": False,  # needs Apex's CUDA extension
        "bias_activation_fusion": not on_cpu and _fusible_activation(job),
        "bias_dropout_fusion": not on_cpu,
        "masked_softmax_fusion": False,
        "sequence_parallel": knobs.get("sp", False),
        "overlap_p2p_comm": overlap_p2p,
        "batch_p2p_comm": not overlap_p2p,
        # As Megatron-LM, but gloo may still be sending what would be freed: silently wrong losses, or NaN.
        "deallocate_pipeline_outputs": not (on_cpu and overlap_p2p),
        "tp_comm_overlap": knobs.get("tp_comm_overlap", False),
        "cp_comm_type": knobs.get("cp_comm"),
        "cross_entropy_loss_fusion": knobs.get("ce_fusion", False),
        "cross_entropy_fusion_impl": "te" if knobs.get("ce_fusion") else "native",
        **_recomputation(knobs),
    }
    if model.experts:
        arguments |= {
            "num_moe_experts": model.experts,
            "moe_router_topk": model.topk,
            "moe_router_pre_softmax": model.topk == 1,  # Megatron insists for top-1
            "moe_ffn_hidden_size": model.expert_ffn or ffn,
            "moe_token_dispatcher_type": knobs.get("dispatcher", "alltoall"),
            "moe_permute_fusion": knobs.get("permute_fusion", False),
            # Dropless and unbalanced: anything else depends on how the batch is cut, and layouts could
            # no longer be compared by their losses.
            "moe_router_load_balancing_type": "none",
            "moe_router_dtype": "fp32",
        }
    return arguments


def _fusible_activation(job: Job) -> bool:
    """Megatron raises where it has no fused kernel instead of falling back."""
    model = job.model
    if model.gated:
        return not (model.experts and model.bias)
    return model.bias and not model.experts


def _recomputation(knobs: dict[str, Value]) -> dict[str, Any]:
    granularity = knobs.get("ar", "none")
    if granularity == "selective":
        return {
            "recompute_granularity": "selective",
            "recompute_modules": str(knobs.get("ar_modules", "core_attn")).split("+"),
        }
    if granularity == "full":
        return {
            "recompute_granularity": "full",
            "recompute_method": knobs.get("ar_method", "uniform"),
            "recompute_num_layers": knobs.get("ar_layers", 1),
        }
    return {}


def _ddp(job: Job, knobs: dict[str, Value]) -> dict[str, Any]:
    bucket = knobs.get("ddp_bucket")
    return {
        "grad_reduce_in_fp32": job.model.dtype == "bf16",
        "use_distributed_optimizer": knobs.get("distopt", False),
        "overlap_grad_reduce": knobs.get("overlap_grad", False),
        "overlap_param_gather": knobs.get("overlap_param", False),
        "bucket_size": None if bucket is None else int(bucket * _MIB_OF_FP32),
    }


def _user_buffers(knobs: dict[str, Value]) -> dict[str, dict[str, Value]] | None:
    if "tp_comm" not in knobs:
        return None
    return {name: {"num_sm": knobs["tp_comm"]} for name in _OVERLAPPED_GEMMS}
