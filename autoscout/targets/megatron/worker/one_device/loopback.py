"""Collectives for a rank without peers. torch's `fake` process group sends nothing; each call writes output like that
of the real kernel, so that values remain finite and of normal size.

A gather returns this rank's tensor once per rank (by the fake group itself), and a reduction returns this rank's share.
A tensor received from a neighbour is random, drawn once per shape."""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

_drawn: dict[Any, torch.Tensor] = {}
_STD = 0.02
# names that torch's collectives use for their tensors, outputs first
_TENSORS = ("output_tensor", "output", "input_tensor", "input", "tensor")


def _repeated(out: torch.Tensor, value: torch.Tensor, *args: Any) -> None:
    """Fills `out` with repetitions of `value`."""
    into, of = out.detach().reshape(-1), value.detach().reshape(-1)
    if of.numel() == 0:
        into.zero_()
        return
    whole, rest = divmod(into.numel(), of.numel())
    into[: whole * of.numel()].view(whole, of.numel()).copy_(of.expand(whole, of.numel()))
    into[whole * of.numel() :].copy_(of[:rest])


def _received(tensor: torch.Tensor, *args: Any) -> None:
    key = (tuple(tensor.shape), tensor.dtype, tensor.device)
    if key not in _drawn:
        _drawn[key] = torch.empty_like(tensor).detach().normal_(0.0, _STD)
    tensor.detach().copy_(_drawn[key])


def _with(call: Callable[..., Any], write: Callable[..., None]) -> Callable[..., Any]:
    @functools.wraps(call)
    def both(*args: Any, **kwargs: Any) -> Any:
        done = call(*args, **kwargs)
        write(*args, *(kwargs[name] for name in _TENSORS if name in kwargs))
        return done

    return both


_WRITES = {
    "reduce_scatter_tensor": _repeated,
    "_reduce_scatter_base": _repeated,
    "recv": _received,
    "irecv": _received,
}


def install() -> None:
    """Must be called before Megatron-core is imported, because Megatron-core keeps references to some of the replaced
    functions."""
    import torch.testing._internal.distributed.fake_pg  # noqa: F401 - registers the backend

    for name, write in _WRITES.items():
        both = _with(getattr(c10d, name), write)
        setattr(c10d, name, both)
        setattr(dist, name, both)

    def exchanged(
        output: Any,
        input: Any,
        output_split_sizes: Any = None,
        input_split_sizes: Any = None,
        group: Any = None,
        async_op: bool = False,
    ) -> Any:
        """Replaces the fake group's all-to-all, which raises an error for a rank that receives no tokens."""
        _repeated(output, input)
        return dist.barrier(group=group, async_op=async_op)

    c10d.all_to_all_single = dist.all_to_all_single = exchanged

    def objects(out: list[Any], value: Any, group: Any = None) -> None:
        out[:] = [value] * len(out)

    c10d.all_gather_object = dist.all_gather_object = objects
