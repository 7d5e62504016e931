"""Activations that are offloaded to host memory until the backward pass. Groups, order and offloaded fraction are those
of Megatron-core (core/pipeline_parallel/fine_grained_activation_offload.py). Megatron-core's own code cannot be used,
because it skips fake tensors on the assumption that a compiler is tracing."""

from typing import Any

import torch


def as_on_a_gpu() -> None:
    try:
        from megatron.core.pipeline_parallel.fine_grained_activation_offload import ChunkOffloadHandler

        handler: Any = ChunkOffloadHandler
    except ImportError:  # Megatron-core before 0.16 has no such module
        return
    handler.tensor_push = _kept
    handler.offload, handler.reload = _sent, _brought_back
    handler.tensor_need_offloading_checker = _large


def _kept(self: Any, tensor: Any) -> Any:
    if isinstance(tensor, torch.nn.Parameter):
        return tensor
    tag = (self._offloaded_group_index, self._tensor_count_current_group)
    self._tensor_count_current_group += 1
    self.offload_groups[self._offloaded_group_index - 1].push_tensor(tag, tensor)
    return tag


def _large(self: Any, tensor: Any) -> bool:
    return tensor.numel() >= self.min_offloaded_tensor_size and not getattr(tensor, "_do_not_offload", False)


def _sent(self: Any, tensor: Any, **ignored: Any) -> tuple[Any, Any]:
    """Returns the tensor's shape and dtype instead of a copy in host memory, because host memory is not counted."""
    return tuple(tensor.shape), tensor.dtype


def _brought_back(self: Any, state: tuple[Any, Any], **ignored: Any) -> Any:
    return torch.empty(state[0], dtype=state[1])
