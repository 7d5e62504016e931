"""Lets Megatron-core train on CPUs with gloo, although it has no CPU mode and calls torch.cuda directly.

`before_megatron` patches torch and must run before the first import of megatron.core. `after_megatron` patches
Megatron. `without_transformer_engine` repairs Megatron's local layers (those without Transformer Engine), also for
GPUs. `for_a_script` applies all of these patches, plus those that only Megatron-LM's own scripts need. A comment at
each patch gives its reason."""

import contextlib
import glob
import os
import sys
import types
from typing import Any

import torch

_CPU = torch.device("cpu")


class _NoStream:
    """Replaces CUDA streams and events. On a CPU, all operations are executed in order."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def _nothing(self, *args: Any, **kwargs: Any) -> None:
        pass

    wait_stream = wait_event = record = wait = synchronize = _nothing

    def record_event(self, event: Any = None) -> "_NoStream":
        return event or _NoStream()


def before_megatron() -> None:
    cuda: Any = torch.cuda
    # Megatron passes the result of this function as `device=…` in about 60 places.
    cuda.current_device = lambda: _CPU
    # Called by peer-to-peer communication and by timers.
    cuda.synchronize = lambda *args, **kwargs: None
    # The MoE dispatchers and DDP create side streams.
    cuda.Stream = cuda.Event = _NoStream
    cuda.current_stream = cuda.default_stream = lambda *args, **kwargs: _NoStream()
    cuda.stream = lambda stream: contextlib.nullcontext()
    # Megatron's RNG tracker saves and restores the CUDA generator.
    cuda.manual_seed = torch.default_generator.manual_seed
    cuda.get_rng_state = cuda.random.get_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    cuda.set_rng_state = lambda state, *args, **kwargs: torch.set_rng_state(state)
    # Creates one process group per set of ranks. Megatron creates about twenty groups from a few sets of ranks, and
    # gloo keeps three threads even for unused groups. (NCCL creates communicators on first use.)
    torch.distributed.new_group = _once_for_each_set(torch.distributed.new_group)
    # CUDA profilers' ranges have no meaning on a CPU.
    cuda.nvtx.range_push = cuda.nvtx.range_pop = lambda *args, **kwargs: None

    tensor: Any = torch.Tensor
    tensor.cuda = lambda self, *args, **kwargs: self
    tensor.record_stream = lambda self, stream: None
    # Speeds up the gradient of a linear layer's input in bf16. For a matrix that is not transposed, torch uses a plain
    # loop, which is twenty times slower at 4096 × 4096.
    tensor.matmul = _matmul(tensor.matmul)
    # The optimizers accept only parameters whose type name is "torch.cuda.FloatTensor" or the like.
    plain_type = tensor.type

    def cuda_type(self: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if dtype is not None:
            return plain_type(self, dtype, *args, **kwargs)
        return plain_type(self).replace("torch.", "torch.cuda.")

    tensor.type = cuda_type

    # `device="cuda"` and `pin_memory=True` are hard-coded in schedules, optimizers and masks.
    for name in ("tensor", "zeros", "ones", "empty", "full", "arange"):
        setattr(torch, name, _on_cpu(getattr(torch, name)))


def _matmul(plain: Any) -> Any:
    def matmul(self: Any, other: Any) -> Any:
        if self.dtype is torch.bfloat16 and other.dtype is torch.bfloat16 and other.dim() == 2:
            return torch.nn.functional.linear(self, other.t().contiguous())
        return plain(self, other)

    return matmul


def _once_for_each_set(new_group: Any) -> Any:
    """Returns `new_group` with a cache of process groups by their ranks. All ranks create the same groups in the same
    order, so their caches agree."""
    made: dict[Any, Any] = {}
    world: list[Any] = []

    def group(ranks: Any = None, *args: Any, **kwargs: Any) -> Any:
        if world != [torch.distributed.group.WORLD]:  # after re-initialization, earlier groups no longer exist
            made.clear()
            world[:] = [torch.distributed.group.WORLD]
        key = None if ranks is None else tuple(ranks), kwargs.get("backend")
        if key not in made:
            made[key] = new_group(ranks, *args, **kwargs)
        return made[key]

    return group


def _on_cpu(factory: Any) -> Any:
    def make(*args: Any, **kwargs: Any) -> Any:
        if "cuda" in str(kwargs.get("device", "")):
            kwargs["device"] = _CPU
        kwargs.pop("pin_memory", None)
        return factory(*args, **kwargs)

    return make


def _norm(chunk_size: int, overflow: Any, tensors: list[list[Any]], *args: Any) -> tuple[torch.Tensor, None]:
    squares = sum(torch.linalg.vector_norm(t, dtype=torch.float64) ** 2 for group in tensors for t in group)
    return torch.as_tensor(squares, dtype=torch.float64).sqrt().float().reshape(1), None


def after_megatron() -> None:
    from megatron.core.optimizer import clip_grads

    # torch.norm on a CPU sums sequentially in fp32. The error (7e-4 for a matrix of 4096 × 4096) depends on how a
    # layout splits the matrix, so that equivalent layouts would disagree.
    clip_grads.l2_norm_impl = _norm

    from megatron.core.tensor_parallel import random
    from megatron.core.transformer.moe import moe_utils, token_dispatcher

    # Megatron defers this call until CUDA is initialized, which never happens, so the RNG tracker would have no effect.
    random._set_cuda_rng_state = lambda state, *args, **kwargs: torch.set_rng_state(state)

    # The dispatcher needs split sizes as numbers, but Megatron converts only CUDA tensors.
    def to_host(value: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
        return value.numpy() if as_numpy and torch.is_tensor(value) else value

    moe_utils.maybe_move_tensor_to_cpu = to_host
    token_dispatcher.maybe_move_tensor_to_cpu = to_host


def without_transformer_engine() -> None:
    from megatron.core.transformer import torch_norm
    from megatron.core.transformer.moe import moe_utils

    # Megatron imports this name in a `try` without a fallback; if it is missing, every MoE router raises NameError.
    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None

    # Megatron rejects torch's norms with sequence parallelism. They work if the gradients of their parameters are
    # summed over the tensor parallel ranks. Megatron sums the gradients of parameters with the attribute
    # sequence_parallel.
    def norm(cls: Any, config: Any, hidden_size: int, eps: float = 1e-5, **kwargs: Any) -> torch.nn.Module:
        kind = torch.nn.RMSNorm if config.normalization == "RMSNorm" else torch.nn.LayerNorm
        module = kind(hidden_size, eps=eps)
        for parameter in module.parameters():
            parameter.sequence_parallel = config.sequence_parallel
        return module

    torch_norm.WrappedTorchNorm.__new__ = norm


def for_a_script() -> None:
    """Patches for a script of Megatron-LM. Call before it runs, with its folder first on sys.path."""
    # The real module needs Triton for kernels that are not used.
    kernels: Any = types.ModuleType("megatron.core.transformer.custom_layers.batch_invariant_kernels")
    kernels.enable_batch_invariant_mode = lambda: None
    kernels.is_batch_invariant_mode_enabled = lambda: False
    sys.modules[kernels.__name__] = kernels

    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")  # required by the parser, as on a GPU
    cuda: Any = torch.cuda
    before_megatron()
    cuda.is_available = lambda: True
    cuda.device_count = lambda: int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    cuda.set_device = lambda device: None
    cuda.get_device_capability = lambda device=None: (9, 0)
    cuda.reset_peak_memory_stats = cuda.empty_cache = lambda *args, **kwargs: None
    cuda.memory_allocated = cuda.max_memory_allocated = cuda.memory_reserved = lambda *args, **kwargs: 0
    cuda.max_memory_reserved = cuda.device_memory_used = lambda *args, **kwargs: 0
    cuda.memory_stats = lambda *args, **kwargs: {}
    cuda.get_device_properties = lambda device=None: types.SimpleNamespace(total_memory=2**34, name="CPU", major=9)
    cuda._lazy_init = lambda: None
    cuda.cudart = lambda: None
    # otherwise a torch built for CUDA would allocate batches in pinned memory
    torch.accelerator.is_available = lambda: False
    for name in ("rand", "randn", "randint"):
        setattr(torch, name, _on_cpu(getattr(torch, name)))
    for name in ("Float", "Int", "Long", "Double", "Half", "BFloat16", "Byte"):
        setattr(cuda, f"{name}Tensor", getattr(torch, f"{name}Tensor"))

    import megatron.core  # noqa: F401

    after_megatron()
    without_transformer_engine()
    from megatron.core import datasets
    from megatron.core.datasets import utils

    with contextlib.suppress(ModuleNotFoundError):  # 0.19 has no such kernels any more
        from megatron.legacy import fused_kernels

        fused_kernels.load = lambda args: None
    # Megatron-LM's Makefile uses the system's Python; megatron-core's wheel has the compiled helpers.
    utils.compile_helpers = lambda: None
    for folder in sys.path:
        if glob.glob(f"{folder}/megatron/core/datasets/helpers_cpp*.so"):
            datasets.__path__.append(f"{folder}/megatron/core/datasets")
