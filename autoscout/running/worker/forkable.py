"""Imports GPU packages in a process that will fork, without initializing CUDA, because forked children cannot use CUDA
after that."""

import contextlib
import os
from collections.abc import Iterator
from multiprocessing import get_context
from types import SimpleNamespace
from typing import Any


@contextlib.contextmanager
def imports() -> Iterator[None]:
    """A context for imports. Some packages query the current GPU and its properties on import (Transformer Engine with
    flash-attn); they get the values of the first GPU, which a child process has read beforehand."""
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # otherwise torch.cuda.is_available() initializes CUDA
    import torch

    cuda: Any = torch.cuda
    known = _seen_by_a_child()
    real = cuda.current_device, cuda.get_device_properties
    if known:
        cuda.current_device, cuda.get_device_properties = lambda: 0, lambda device=None: SimpleNamespace(**known)
    try:
        yield
    finally:
        cuda.current_device, cuda.get_device_properties = real


def usable() -> bool:
    """Whether a process that is forked now can use its GPU."""
    return bool(_seen_by_a_child())


def _properties() -> dict[str, Any]:
    import torch

    found = torch.cuda.get_device_properties(0)
    torch.zeros(1, device="cuda")
    return {name: getattr(found, name) for name in ("name", "major", "minor", "total_memory", "multi_processor_count")}


def _seen_by_a_child() -> dict[str, Any]:
    """Properties of the GPU, read in a child; {} if a child cannot use it."""
    context = get_context("fork")
    ours, theirs = context.Pipe(duplex=False)

    def body() -> None:
        try:
            theirs.send(_properties())
        finally:
            os._exit(0)

    child = context.Process(target=body)
    child.start()
    theirs.close()
    try:
        return ours.recv()
    except EOFError:
        return {}
    finally:
        ours.close()
        child.join()
