"""Partial fine-tuning: LoRA adapters on frozen weights, or training of only the layers above frozen layers.

An adapter computes y += 2 · U(D x), where D and U have the inner dimension `rank`. For a column-parallel linear layer
(split outputs), U is split and D replicated; for a row-parallel one (split inputs), D is split and U replicated."""

from typing import Any

import torch
from megatron.core.tensor_parallel import mappings

_SCALE = 2.0  # alpha / rank, since alpha is twice the rank


def apply(chunk: Any, config: dict[str, Any]) -> None:
    """Freezes layers and adds adapters. Must be called before weights are filled and DDP allocates its buffers.
    `config`: content of experiment.json. Errors: ValueError for a linear layer that does not exist."""
    lora, frozen = config.get("lora"), config.get("frozen_layers", 0)
    if lora:
        chunk.requires_grad_(False)
        for layer in chunk.decoder.layers:
            for name in lora["modules"]:
                _adapt(_product(layer, name), lora["rank"])
    if frozen:
        for layer in chunk.decoder.layers:
            layer.requires_grad_(layer.layer_number > frozen)
        if chunk.pre_process and not chunk.share_embeddings_and_output_weights:
            chunk.embedding.requires_grad_(False)
    if (lora or frozen) and chunk.pre_process:
        # With recomputation, a layer's weights get gradients only if the layer's input requires a gradient.
        again = config["given"].get("recompute_granularity") == "full"
        chunk.embedding.register_forward_hook(lambda module, given, out: _asking(out) if lora or again else out)


def _asking(out: torch.Tensor) -> torch.Tensor:
    return out.requires_grad_() if torch.is_grad_enabled() and not out.requires_grad else out


def _product(layer: Any, name: str) -> Any:
    block = layer.self_attention if name in ("linear_qkv", "linear_proj") else layer.mlp
    product = getattr(block, name, None)
    if product is None:
        raise ValueError(f"the model has no {name} for an adapter")
    return product


def _adapt(product: Any, rank: int) -> None:
    product.adapter = Adapter(product, rank)
    normed = hasattr(product, "layer_norm_weight")  # whether Transformer Engine fuses a norm into the linear layer
    if normed:
        product.return_layernorm_output = True

    def add(module: Any, given: tuple[Any, ...], out: Any) -> tuple[torch.Tensor, Any]:
        x, y, bias = given[0], out[0], out[1]
        if normed:  # `out` is ((output, norm), None) or (output, bias, norm)
            x, y, bias = (out[0][1], out[0][0], None) if isinstance(out[0], tuple) else (out[2], out[0], out[1])
        return y + module.adapter(x), bias

    product.register_forward_hook(add)


class Adapter(torch.nn.Module):
    """An adapter of one linear layer of Megatron-core, split over tensor parallel ranks like the layer."""

    def __init__(self, product: Any, rank: int) -> None:
        super().__init__()
        weight = product.weight
        outputs, inputs = weight.shape
        self.splits_outputs = getattr(weight, "partition_dim", 0) == 0
        self.sequence_parallel = bool(product.config.sequence_parallel)
        new = {"dtype": weight.dtype, "device": weight.device}
        self.down = torch.nn.Parameter(torch.empty(rank, inputs, **new))
        self.up = torch.nn.Parameter(torch.empty(outputs, rank, **new))
        split, whole, dim = (self.up, self.down, 0) if self.splits_outputs else (self.down, self.up, 1)
        marks: Any = split
        marks.tensor_model_parallel, marks.partition_dim, marks.partition_stride = True, dim, 1
        marks = whole
        marks.sequence_parallel = self.sequence_parallel  # each rank's gradients cover only its part of the sequence

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = torch.nn.functional.linear(x, self.down)
        if self.splits_outputs and self.sequence_parallel:
            inner = mappings.gather_from_sequence_parallel_region(inner)
        elif self.splits_outputs:
            inner = mappings.copy_to_tensor_model_parallel_region(inner)
        elif self.sequence_parallel:
            inner = mappings.reduce_scatter_to_sequence_parallel_region(inner)
        else:
            inner = mappings.reduce_from_tensor_model_parallel_region(inner)
        return _SCALE * torch.nn.functional.linear(inner, self.up)
