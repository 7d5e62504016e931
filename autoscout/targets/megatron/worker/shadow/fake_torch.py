"""Torch without a GPU and without storage, for a shadow run. `before_megatron` must run before the first import of
megatron.core, `after_megatron` after it. A comment at each patch gives its reason.

Fake tensors are on the CPU, since fake CUDA tensors abort in autograd's C++ code in CPU builds."""

from typing import Any

import cpu_shim
import for_each
import offloaded
import torch
import torch._dynamo.polyfills.loader  # before the patches, which replace functions that it uses as keys
import torch.distributed as dist
from fused_layers import NormFunction
from watch import watch


def before_megatron() -> None:
    tensor: Any = torch.Tensor
    product = tensor.matmul
    cpu_shim.before_megatron()
    tensor.matmul = product  # undoes cpu_shim's replacement, which copies matrices; a GPU needs no such copy
    cuda: Any = torch.cuda
    # The state of the real generator. It is read now, because a generator's state cannot be set from a fake tensor.
    state = torch.get_rng_state()
    cuda.get_rng_state = cuda.random.get_rng_state = lambda *args, **kwargs: state
    cuda.set_rng_state = cuda.manual_seed = cuda.set_device = cuda.empty_cache = lambda *args, **kwargs: None
    cuda.is_current_stream_capturing = lambda: False
    cuda.get_device_capability = lambda *args: (8, 0)
    tensor.pin_memory = lambda self, *args, **kwargs: self
    for name in ("rand", "randn"):
        setattr(torch, name, cpu_shim._on_cpu(getattr(torch, name)))
    # Module.to would swap fake parameters, which fails while DDP has weak references to them.
    module: Any = torch.nn.Module
    module.to = module.bfloat16 = module.cuda = lambda self, *args, **kwargs: self
    # A GPU's dropout stores a mask of one byte per element, but a CPU's stores the noise in the input's dtype.
    functional: Any = torch.nn.functional
    functional.dropout = lambda x, p=0.5, training=True, inplace=False: (
        torch.native_dropout(x, p, True)[0] if training and p else x
    )
    compiled: Any = lambda f=None, **kwargs: watch.fused if f is None else watch.fused(f)  # noqa: E731
    torch.compile = compiled
    gathered: Any = lambda out, value, group=None: out.__setitem__(slice(None), [value] * len(out))  # noqa: E731
    dist.all_gather_object = gathered
    # Gloo groups would wait for ranks that do not exist.
    new_group = dist.new_group
    dist.new_group = lambda *args, **kwargs: new_group(*args, **{**kwargs, "backend": "fake"})


def after_megatron() -> None:
    cpu_shim.after_megatron()
    watch.resizes()
    from megatron.core.optimizer import clip_grads
    from megatron.core.tensor_parallel import random

    random._set_cuda_rng_state = lambda *args, **kwargs: None
    clip_grads.l2_norm_impl = _norm
    for name in ("multi_tensor_scale_impl", "multi_tensor_scale_tensor_impl"):
        if hasattr(clip_grads, name):
            setattr(clip_grads, name, lambda *args, **kwargs: None)


def as_on_a_gpu() -> None:
    """Makes operators behave as on a GPU. On a CPU, some run several kernels, or save different tensors."""
    functional: Any = torch.nn.functional
    functional.rms_norm = lambda x, shape, weight=None, eps=None: NormFunction.apply(x, weight, None, _RootMeanSquare)
    # the kernel's temporary: tmp = grad * output (aten/src/ATen/native/cuda/SoftMax.cu, softmax_backward_cuda_out)
    watch.scratch["aten._softmax_backward_data"] = torch.empty_like
    for_each.as_on_a_gpu()
    offloaded.as_on_a_gpu()


class _RootMeanSquare:
    rms = True


def _norm(chunk_size: int, overflow: Any, tensors: list[list[Any]], *args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Replaces the fused kernel that computes the norm of all gradients, which has a second, unused result."""
    watch.kernel("norm of gradients", sum(t.numel() * t.element_size() for group in tensors for t in group))
    return torch.zeros(1, dtype=torch.float32), torch.zeros(0, dtype=torch.float32)
