"""Builds process groups, model chunks, DDP and the optimizer.

`config` is the content of experiment.json; `config["given"]` has Megatron-LM's arguments (configs.py)."""

import datetime
import os
from typing import Any

import adapters
import configs
import step_clock
import torch
import weights
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, finalize_model_grads
from megatron.core.models.gpt import GPTModel, gpt_layer_specs
from megatron.core.optimizer import get_megatron_optimizer
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import TransformerConfig

# The learning rate is low, because otherwise rounding errors would grow from step to step, so that correct layouts
# diverge. Adam changes each weight by about this much regardless of its gradient, so a wrong update still affects the
# next loss.
_LEARNING_RATE = 1e-5
# Transformer Engine's names of a layer's GEMMs that can overlap with communication.
_OVERLAPPED_GEMMS = (
    *("qkv_fprop", "qkv_dgrad", "qkv_wgrad", "proj_fprop", "proj_dgrad"),
    *("fc1_fprop", "fc1_dgrad", "fc1_wgrad", "fc2_fprop", "fc2_dgrad"),
)


def device_of(config: dict[str, Any]) -> torch.device:
    """Returns this rank's device and makes it the current one. Errors: RuntimeError if the driver does not work."""
    if config["device"] == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    return device


def make_groups(config: dict[str, Any]) -> torch.device:
    """Joins the process group and splits it; returns this rank's device."""
    on_cpu = config["device"] == "cpu"
    timeout = datetime.timedelta(seconds=config["group_timeout_s"])
    device = device_of(config)
    torch.distributed.init_process_group("gloo" if on_cpu else "nccl", timeout=timeout)
    groups = configs.groups(config["given"])
    minutes: Any = timeout.total_seconds() / 60  # Megatron declares an int, but only passes it to timedelta
    parallel_state.initialize_model_parallel(
        **groups,
        distributed_timeout_minutes=minutes,
        create_gloo_process_groups=False,  # gloo groups in addition to NCCL's are needed only for checkpoints
    )
    graphs = bool(config["given"].get("te_rng_tracker"))
    tensor_parallel.model_parallel_cuda_manual_seed(1234, te_rng_tracker=graphs, use_cudagraphable_rng=graphs)
    return device


def transformer_config(config: dict[str, Any]) -> TransformerConfig:
    """Returns the model's configuration, which Megatron validates. Errors: any exception of that validation."""
    replicas = parallel_state.get_data_parallel_world_size()
    if config["global_batch"] % (config["micro_batch"] * replicas):
        raise ValueError(
            f"global batch size ({config['global_batch']}) is not divisible by micro batch size "
            f"({config['micro_batch']}) times data parallel size ({replicas})"
        )
    return configs.transformer(config["given"], config["device"] == "cpu")


def build(config: dict[str, Any], shape: TransformerConfig, device: torch.device) -> tuple[list[Any], Any]:
    """Returns (model chunks in DDP, optimizer). There are several chunks only with virtual pipeline stages."""
    virtual = shape.virtual_pipeline_model_parallel_size
    stages = [None] if virtual is None else range(virtual)
    chunks = [_chunk(config, shape, device, stage) for stage in stages]
    exchange = configs.ddp(config["given"])
    replicated = sharded_replicas(exchange) if exchange.use_megatron_fsdp else DistributedDataParallel
    wrapped: list[Any] = [
        replicated(
            config=shape,
            ddp_config=exchange,
            module=Float16Module(shape, chunk) if shape.bf16 else chunk,
            disable_bucketing=number > 0,  # as in Megatron-LM: only the first chunk's communication is exposed
        )
        for number, chunk in enumerate(chunks)
    ]
    optimizer = get_megatron_optimizer(
        configs.optimizer(config["given"], _LEARNING_RATE), wrapped, use_gloo_process_groups=False
    )
    _connect(shape, exchange, wrapped, optimizer)
    return wrapped, optimizer


def sharded_replicas(exchange: Any) -> Any:
    """Returns Megatron-FSDP's wrapper with Megatron-LM's default bucket size. Errors: RuntimeError if it is missing."""
    from megatron.core.distributed.fsdp import mcore_fsdp_adapter as fsdp

    if not fsdp.HAVE_MEGATRON_FSDP:
        raise RuntimeError("fsdp needs Megatron-FSDP, which this megatron-core cannot import; fix fsdp to none")
    if exchange.overlap_grad_reduce and exchange.bucket_size is None:
        replicas = parallel_state.get_data_parallel_world_size(with_context_parallel=True)
        exchange.bucket_size = max(40_000_000, 1_000_000 * replicas)
    return fsdp.FullyShardedDataParallel


def recorder(config: dict[str, Any], shape: TransformerConfig, chunks: list[Any], optimizer: Any) -> Any:
    """Returns Megatron's helper that captures CUDA graphs of layers after the warm-up steps; None if graphs are off."""
    if shape.cuda_graph_impl != "transformer_engine":
        return None
    from megatron.core import num_microbatches_calculator as calculator
    from megatron.core.transformer.cuda_graphs import TECudaGraphHelper

    calculator.init_num_microbatches_calculator(
        torch.distributed.get_rank(),
        None,
        config["global_batch"],
        config["micro_batch"],
        parallel_state.get_data_parallel_world_size(),
    )
    return TECudaGraphHelper(
        model=chunks,
        config=shape,
        seq_length=config["seq_len"],
        micro_batch_size=config["micro_batch"],
        optimizers=[optimizer],
    )


def record(graphs: Any, chunks: list[Any], gathers_ahead: bool) -> None:
    """Captures CUDA graphs between two steps, like Megatron-LM's train(). Hooks that gather parameters are disabled
    during capture."""
    if gathers_ahead:
        for chunk in chunks:
            chunk.disable_forward_pre_hook(param_sync=False)
    graphs.create_cudagraphs()
    if gathers_ahead:
        for chunk in chunks:
            chunk.enable_forward_pre_hook()
        graphs.cuda_graph_set_manual_hooks()


def _chunk(config: dict[str, Any], shape: TransformerConfig, device: torch.device, stage: int | None) -> Any:
    tied = not config["given"].get("untie_embeddings_and_output_weights", False)
    chunk = GPTModel(
        shape,
        _layer_spec(config, shape, stage),
        vocab_size=config["vocab"],
        max_sequence_length=config["seq_len"],
        pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=stage),
        post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=stage),
        share_embeddings_and_output_weights=tied,
        position_embedding_type=config["given"]["position_embedding_type"],
        vp_stage=stage,
    ).to(device)
    adapters.apply(chunk, config)
    weights.fill(chunk, shape.num_layers, shape.gated_linear_unit, tied)
    return chunk


def _layer_spec(config: dict[str, Any], shape: TransformerConfig, stage: int | None) -> Any:
    """Returns the specification that all layers share, or one per layer if only some layers have experts."""
    latent: dict[str, Any] = {
        "multi_latent_attention": shape.multi_latent_attention,
        "qk_layernorm": shape.qk_layernorm,
    }
    experts, fused = shape.num_moe_experts, config["given"]["transformer_impl"] == "transformer_engine"
    if isinstance(shape.moe_layer_freq, list):
        spec = gpt_layer_specs.get_gpt_decoder_block_spec(shape, fused, shape.normalization, vp_stage=stage)
    elif fused:
        spec = gpt_layer_specs.get_gpt_layer_with_transformer_engine_spec(
            num_experts=experts,
            moe_grouped_gemm=shape.moe_grouped_gemm,
            use_te_op_fuser=bool(config["given"].get("use_transformer_engine_op_fuser")),
            **latent,
        )
    else:
        spec = gpt_layer_specs.get_gpt_layer_local_spec(
            num_experts=experts, normalization=shape.normalization, **latent
        )
    if shape.context_parallel_size > 1 and not fused:
        from cp_attention import ContextParallelAttention

        for layer in getattr(spec, "layer_specs", [spec]):
            layer.submodules.self_attention.submodules.core_attention = ContextParallelAttention
    return spec


def _connect(shape: TransformerConfig, exchange: Any, chunks: list[Any], optimizer: Any) -> None:
    """Sets the hooks by which the schedule starts and ends communication, like Megatron-LM's train()."""

    def for_chunks(hooks: list[Any]) -> Any:
        return hooks[0] if len(hooks) == 1 else hooks

    shape.grad_scale_func = optimizer.scale_loss
    shape.finalize_model_grads_func = step_clock.around(finalize_model_grads)
    if exchange.overlap_grad_reduce:
        shape.no_sync_func = for_chunks([chunk.no_sync for chunk in chunks])
        shape.grad_sync_func = for_chunks([chunk.start_grad_sync for chunk in chunks])
    # With interleaving, the schedule gathers parameters ahead of the forward pass.
    if exchange.overlap_param_gather and exchange.align_param_gather:
        shape.param_sync_func = for_chunks([chunk.start_param_sync for chunk in chunks])


def start_user_buffers(config: dict[str, Any], shape: TransformerConfig) -> None:
    """Allocates Transformer Engine's buffers for overlapping tensor parallel communication with GEMMs.

    Errors: RuntimeError if Transformer Engine is not installed."""
    try:
        from transformer_engine.pytorch import module as te_module
    except ImportError as error:
        raise RuntimeError(
            "tp_comm_overlap needs Transformer Engine: install it in the target's interpreter and set "
            "launch.transformer_engine, or fix tp_comm_overlap to false"
        ) from error
    from megatron.core.utils import is_te_min_version

    rows = config["seq_len"] * config["micro_batch"] // shape.context_parallel_size
    multiprocessors = config["given"].get("tp_comm_overlap_cfg")
    buffers = multiprocessors and {name: {"num_sm": multiprocessors} for name in _OVERLAPPED_GEMMS}
    arguments: dict[str, Any] = {"bootstrap_backend": "nccl", "ub_cfgs": buffers}
    in_fp8 = shape.fp8 is not None  # a layer needs buffers of the precision in which it computes
    if is_te_min_version("2.7.0"):
        modes = te_module.base.UserBufferQuantizationMode
        arguments["quantization_modes"] = [modes.FP8 if in_fp8 else modes.NONE]
    else:
        arguments["use_fp8"] = in_fp8
    te_module.base.initialize_ub(shape=[rows, shape.hidden_size], tp_size=shape.tensor_model_parallel_size, **arguments)
