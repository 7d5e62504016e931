"""Core attention with context parallelism for Megatron's local layers. (Megatron's own needs Transformer Engine.)

The sequence has 2 × cp chunks, and rank r holds the r-th from the front and the r-th from the back (Megatron's zigzag,
which balances causal attention). Keys and values are gathered from all ranks; queries are not sent."""

import copy
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.transformer.dot_product_attention import DotProductAttention


class ContextParallelAttention(DotProductAttention):
    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        alone = copy.copy(config)
        alone.context_parallel_size = 1  # the base class raises an error for any other value
        super().__init__(alone, *args, **kwargs)

    def forward(self, query: Any, key: Any, value: Any, attention_mask: Any, *args: Any, **kwargs: Any) -> Any:
        """Like DotProductAttention.forward. `query`, `key`, `value`: [local sequence, batch, heads, head size]."""
        group: Any = parallel_state.get_context_parallel_group()
        key = gather_from_sequence_parallel_region(key, group=group)
        value = gather_from_sequence_parallel_region(value, group=group)
        places = [_positions(rank, group.size(), query.size(0)) for rank in range(group.size())]
        later = torch.cat(places)[None, :] > places[group.rank()][:, None]
        mask = later[None, None].to(query.device)
        return super().forward(query, key, value, mask, *args, **kwargs)


def _positions(rank: int, ranks: int, length: int) -> torch.Tensor:
    """Returns the global positions of the `length` tokens that `rank` holds."""
    half = length // 2
    chunk = torch.arange(half)
    return torch.cat([chunk + rank * half, chunk + (2 * ranks - 1 - rank) * half])
