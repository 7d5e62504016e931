"""Builds what one rank of a shadow run trains: Megatron-core's own model, DDP and optimizer, with fake parameters."""

from types import SimpleNamespace
from typing import Any

import building
import configs
import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel
from megatron.core.models.gpt import GPTModel
from megatron.core.optimizer import get_megatron_optimizer
from megatron.core.transformer.module import Float16Module
from watch import watch


class Script:
    """Settings of the training script that affect the model or its batches. `mask`: whether each micro batch has a
    causal mask with a byte per pair of tokens (Megatron-LM's default)."""

    def __init__(self, mask: bool = False, rotary_percent: float = 1.0, squared_relu: bool = False) -> None:
        self.mask, self.rotary_percent, self.squared_relu = mask, rotary_percent, squared_relu

    @classmethod
    def of(cls, question: dict[str, Any]) -> tuple["Script", dict[str, Any]]:
        config = configs.read(question)
        config["given"]["perform_initialization"] = False
        return cls(**question.get("script", {})), config

    def complete(self, shape: Any) -> None:
        if self.squared_relu:
            from megatron.core.activations import squared_relu

            shape.activation_func = squared_relu

    def batch(self, config: dict[str, Any], first: bool, last: bool) -> SimpleNamespace:
        """Returns a batch as from Megatron-LM's get_batch; stages that need no data get none."""
        if not (first or last):
            return SimpleNamespace(tokens=None, labels=None, loss_mask=None, mask=None, positions=None)
        length, samples = config["seq_len"], config["micro_batch"]
        own = length // parallel_state.get_context_parallel_world_size()
        with watch.tagged("batch"):
            tokens, labels, positions = (torch.empty(samples, own, dtype=torch.int64) for _ in range(3))
            loss_mask = torch.empty(samples, own, dtype=torch.float32)
            mask = torch.empty(samples, 1, own, length, dtype=torch.bool) if self.mask else None
        return SimpleNamespace(tokens=tokens, labels=labels, loss_mask=loss_mask, mask=mask, positions=positions)


def build(config: dict[str, Any], script: Script, shape: Any) -> tuple[list[Any], Any]:
    """Like building.build, but does not fill the weights or move them to a device."""
    virtual = shape.virtual_pipeline_model_parallel_size
    with watch.in_phase("weights"):
        bare = [_chunk(config, script, shape, stage) for stage in ([None] if virtual is None else range(virtual))]
    exchange = configs.ddp(config["given"])
    with watch.in_phase("gradients"):
        chunks: list[Any] = [
            DistributedDataParallel(
                shape, exchange, Float16Module(shape, chunk) if shape.bf16 else chunk, disable_bucketing=number > 0
            )
            for number, chunk in enumerate(bare)
        ]
        for buffer in [b for c in chunks for b in c.buffers + c.expert_parallel_buffers]:
            if buffer.param_data is not None:  # with the distributed optimizer, this buffer holds the weights
                watch.rename(buffer.param_data, "weights", "weights")
    with watch.in_phase("optimizer"):
        optimizer = get_megatron_optimizer(
            configs.optimizer(config["given"], 1e-5), chunks, use_gloo_process_groups=False
        )
    building._connect(shape, exchange, chunks, optimizer)
    return chunks, optimizer


def _chunk(config: dict[str, Any], script: Script, shape: Any, stage: int | None) -> Any:
    given = config["given"]
    chunk = GPTModel(
        shape,
        building._layer_spec(config, shape, stage),
        vocab_size=config["vocab"],
        max_sequence_length=config["seq_len"],
        pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=stage),
        post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=stage),
        share_embeddings_and_output_weights=not given.get("untie_embeddings_and_output_weights", False),
        position_embedding_type=given["position_embedding_type"],
        rotary_percent=script.rotary_percent,
        vp_stage=stage,
    )
    if shape.bf16:  # Float16Module converts all fp32 parameters, but its .bfloat16() has no effect here (fake_torch.py)
        for part in chunk.modules():
            for name, value in list(part._parameters.items()):
                if value is not None and value.dtype == torch.float32:
                    made = torch.nn.Parameter(torch.empty(value.shape, dtype=torch.bfloat16))
                    made.__dict__.update(value.__dict__)
                    part._parameters[name] = made
    return chunk
