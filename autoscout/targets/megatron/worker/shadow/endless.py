"""Detects a backward pass that runs itself again and again, and ends it before memory runs out."""

from typing import Any

import torch

_DEEPEST = 16  # the deepest normal nesting is two: a recomputed part within a recomputed layer


def end() -> None:
    """From here on such a pass raises RecursionError. Otherwise it would start threads until the host has no memory
    left: a recomputed function that returns a parameter (for example, the bias of a product whose addition is left to
    others) becomes that parameter's own history."""
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
