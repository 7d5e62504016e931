"""The norm of the experts' gradients, which must be equal in all equivalent layouts. This norm is compared separately,
because the experts' gradients are very small: if they were missing, the total norm would change only by as much as by
rounding in bf16."""

from typing import Any

import torch
from megatron.core import parallel_state


def gradient_norm(chunks: list[Any], sharded: bool) -> float:
    """Returns the norm. Must be called on all ranks between the backward pass and the optimizer step. `chunks`: model
    chunks, wrapped in DDP. `sharded`: whether the optimizer is distributed, so that each rank has reduced gradients
    only for its part of each bucket."""
    total = torch.zeros(1, dtype=torch.float64)
    copies = parallel_state.get_expert_data_parallel_world_size()
    for chunk in chunks:
        of_experts = {id(p) for name, p in chunk.named_parameters() if ".experts." in name}
        for buffer in chunk.buffers + chunk.expert_parallel_buffers:
            parts = buffer.data_parallel_world_size if sharded else 1
            mine = buffer.data_parallel_group.rank() if sharded else 0
            for bucket in buffer.buckets:
                length = bucket.grad_data.numel() // parts
                for parameter, (start, end) in bucket.param_to_index.items():
                    start, end = max(start, mine * length), min(end, (mine + 1) * length)
                    if id(parameter) in of_experts and start < end:
                        part = bucket.grad_data[start:end].double()
                        total += (part @ part).cpu() * parts / copies
    device = chunks[0].buffers[0].grad_data.device
    total = total.to(device)
    torch.distributed.all_reduce(total)
    return total.sqrt().item()
