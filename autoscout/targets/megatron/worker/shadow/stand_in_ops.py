"""Replaces Transformer Engine's operations (pytorch/ops). With `use_transformer_engine_op_fuser`, Megatron-core builds
feed-forward layers from these operations. In 16 bits, each saves its input, as in pytorch/ops/basic/*.py."""

import types
from typing import Any

import torch
import torch.distributed as dist
from fused_layers import Function, LinearFunction, NormFunction, gather, scatter
from watch import watch


class _Operation(torch.nn.Module):
    rms = False

    def __init__(self, *sizes: Any, **settings: Any) -> None:
        super().__init__()
        self.weight = self.bias = None
        self.tp_group: Any = settings.get("tensor_parallel_group") or (sizes[0] if sizes else None)
        self.parallel_mode = settings.get("tensor_parallel_mode")
        self.tp_size = self.tp_group.size() if self.parallel_mode else 1
        self.sequence_parallel = settings.get("sequence_parallel", False)
        self.fuse = settings.get("accumulate_into_main_grad", False)


class _LayerNorm(_Operation):
    def forward(self, x: Any) -> Any:
        return NormFunction.apply(x, self.weight, self.bias, self)


class _RMSNorm(_LayerNorm):
    rms = True


class _BasicLinear(_Operation):
    def forward(self, x: Any) -> Any:
        return LinearFunction.apply(x, self.weight, None, self)


class _Bias(_Operation):
    def forward(self, x: Any) -> Any:
        return x + self.bias


class _Activation(_Operation):
    halves = 1

    def forward(self, x: Any) -> Any:
        return _ActivationFunction.apply(x, self.halves)


class _GatedActivation(_Activation):
    halves = 2


class _ReduceScatter(_Operation):
    def forward(self, x: Any) -> Any:
        return _ScatteredFunction.apply(x, self.tp_group)


class _AllReduce(_Operation):
    def forward(self, x: Any) -> Any:
        dist.all_reduce(x, group=self.tp_group)
        return x


class _Sequential(torch.nn.Sequential):
    pass


class _ActivationFunction(Function):
    @staticmethod
    def forward(ctx: Any, x: Any, halves: int) -> Any:
        ctx.save_for_backward(x)
        watch.kernel("fused activation", tuple(x.shape))
        return torch.empty(*x.shape[:-1], x.shape[-1] // halves, dtype=x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        watch.kernel("fused activation", tuple(x.shape))
        return torch.empty_like(x), None


class _ScatteredFunction(Function):
    @staticmethod
    def forward(ctx: Any, x: Any, group: Any) -> Any:
        ctx.group = group
        return scatter(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return gather(grad.contiguous(), ctx.group), None


OPERATIONS: dict[str, Any] = {
    **{
        kind.__name__[1:]: kind
        for kind in (_LayerNorm, _RMSNorm, _BasicLinear, _Bias, _ReduceScatter, _AllReduce, _Sequential)
    },
    **dict.fromkeys(("GELU", "SiLU", "ReLU"), _Activation),
    **dict.fromkeys(("GEGLU", "SwiGLU", "ReGLU"), _GatedActivation),
}


class Operations(types.ModuleType):
    """The replacement for the module of operations. Operations that it does not know are empty classes, because
    Megatron-core only uses them as base classes."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return OPERATIONS.get(name) or type(name, (_Operation,), {})
