"""A backward pass that runs itself again and again, ended while there is memory."""

from typing import Any

import torch

_DEEPEST = 16  # a recomputed part within a recomputed layer is two


def end() -> None:
    """From here on such a pass raises RecursionError. Without it would start threads until the host has no memory left:
    a recomputed function that returns a parameter (the bias of a product that leaves adding it to others) makes itself
    that parameter's history."""
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
