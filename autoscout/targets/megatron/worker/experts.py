"""The norm of the experts' gradients alone, which is equal for all equivalent layouts. Their share of all gradients is
so small that in bf16, missing ones would pass for rounding in the total norm.
"""

from typing import Any

import torch
from megatron.core import parallel_state


def gradient_norm(chunks: list[Any], sharded: bool) -> float:
    """Call on all ranks after a backward pass and before the optimizer's step. `chunks`: wrapped in DDP; `sharded`: the
    distributed optimizer is on, so each rank has reduced gradients only for its own part of every bucket."""
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
