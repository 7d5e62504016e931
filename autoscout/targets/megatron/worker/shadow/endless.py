"""Detects and ends a backward pass that recurses without end."""

from typing import Any

import torch

_DEEPEST = 16  # deeper nesting is endless; at most two levels are normal (recomputation in a recomputed layer)


def end() -> None:
    """Makes an endlessly recursing backward pass raise RecursionError. Without this, autograd would start threads until
    the host is out of memory. Such a recursion occurs if a recomputed function returns a parameter (such as the bias of
    a linear layer, to be added later), because the parameter then becomes its own ancestor in autograd's graph."""
    plain: Any = torch.autograd.backward
    depth = 0

    def backward(*args: Any, **kwargs: Any) -> None:
        nonlocal depth
        if depth >= _DEEPEST:
            raise RecursionError(
                "the backward pass of a recomputed part runs that same pass, without end: Megatron hangs there"
            )
        depth += 1
        try:
            plain(*args, **kwargs)
        finally:
            depth -= 1

    torch.autograd.backward = backward
