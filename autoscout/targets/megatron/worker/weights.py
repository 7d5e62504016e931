"""Initial weights that do not depend on the parallel layout.

Each parameter has a global name (with its layer and expert number in the whole model). It is drawn unsharded by a
generator seeded with that name, and each rank keeps its shard. All layouts of a job therefore start with the same
model, and their first losses and gradient norms must agree."""

import hashlib
import math
import re
from typing import Any

import torch
from megatron.core import parallel_state

_STD = 0.02


def fill(chunk: Any, layers: int, gated: bool, tied: bool) -> None:
    """Overwrites all parameters of one GPTModel `chunk` (a pipeline stage, or a part of one)."""
    with torch.no_grad():
        for name, parameter in chunk.named_parameters():
            name = _global_name(name, chunk, tied)
            if parameter.dim() == 1 or name.endswith("bias"):
                norm_weight = "norm" in name and name.endswith("weight")
                parameter.fill_(1.0 if norm_weight else 0.0)
            else:
                parameter.copy_(_shard(name, parameter, layers, gated))


def _global_name(name: str, chunk: Any, tied: bool) -> str:
    if tied and name == "output_layer.weight":  # the last stage's copy of the embedding
        return "embedding.word_embeddings.weight"
    layer = re.match(r"decoder\.layers\.(\d+)\.", name)
    if layer is None:
        return name
    module = chunk.decoder.layers[int(layer[1])]
    name = f"decoder.layers.{module.layer_number - 1}.{name[layer.end() :]}"
    # the name has the expert's number: local_experts.0.linear_fc1.weight, or with Transformer Engine linear_fc1.weight0
    expert = re.search(r"(?<=local_experts\.)\d+|(?<=\.weight)\d+$", name)
    if ".experts." not in name or expert is None:
        return name
    number = module.mlp.local_expert_indices[int(expert[0])]
    return f"{name[: expert.start()]}{number}{name[expert.end() :]}"


def _shard(name: str, parameter: Any, layers: int, gated: bool) -> torch.Tensor:
    ranks, rank, dim = 1, 0, 0
    if ".experts." in name:  # Transformer Engine does not mark the shards of experts' weights
        group: Any = parallel_state.get_expert_tensor_parallel_group()
        ranks, rank, dim = group.size(), group.rank(), 0 if "linear_fc1." in name else 1
    elif getattr(parameter, "tensor_model_parallel", False):
        group = parallel_state.get_tensor_model_parallel_group()
        ranks, rank, dim = group.size(), group.rank(), parameter.partition_dim
    shape = list(parameter.shape)
    shape[dim] *= ranks

    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big")
    generator = torch.Generator(parameter.device).manual_seed(seed)
    whole = torch.empty(shape, dtype=torch.float32, device=parameter.device)
    writes_residual = "linear_proj." in name or "linear_fc2." in name
    whole.normal_(0.0, _STD / math.sqrt(2 * layers) if writes_residual else _STD, generator=generator)

    # A gated fc1 is [gate; up], and each rank holds a shard of both.
    strides = 2 if gated and "linear_fc1." in name else 1
    return torch.cat(whole.chunk(ranks * strides, dim)[rank::ranks], dim)
