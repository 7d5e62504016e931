"""A replacement for the package `transformer_engine`, even if it is installed, and for three extensions of Apex.

Megatron-core's own wrappers (core/extensions/transformer_engine.py) work with the replacement without changes."""

import contextlib
import importlib.machinery
import sys
import types
from typing import Any

import torch
from fused_layers import CausalSoftmax, CrossEntropyFunction, MovedFunction, RotaryFunction, Settings, kept_gradient
from stand_in_modules import (
    DotProductAttention,
    Fp8Padding,
    Fp8Unpadding,
    FusedAdam,
    GroupedLinear,
    LayerNorm,
    LayerNormLinear,
    Linear,
    RMSNorm,
)
from stand_in_ops import Operations
from torch._subclasses.fake_tensor import FakeTensor
from watch import watch


class _Tracker:
    """Replaces the tracker of random number generators. A shadow needs no random numbers."""

    def __init__(self) -> None:
        self.states_: dict[str, Any] = {}

    def reset(self) -> None:
        self.states_ = {}

    def get_states(self) -> dict[str, Any]:
        return self.states_

    def set_states(self, states: dict[str, Any]) -> None:
        self.states_ = states

    def add(self, name: str, seed: Any) -> None:
        self.states_[name] = seed

    @contextlib.contextmanager
    def fork(self, name: str = "") -> Any:
        yield


class _State8:
    is_fp8_enabled = staticmethod(lambda: Settings.fp8)
    is_fp8_calibration = staticmethod(lambda: False)
    reset = staticmethod(lambda: None)


class _Recipe:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.settings = kwargs


class QuantizedTensor(torch.Tensor):
    pass


def _checkpoint(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Transformer Engine's own checkpointing, used with 8-bit GEMMs: saves the inputs and runs the function again."""
    import torch.utils.checkpoint

    return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=True, preserve_rng_state=False)


def _nothing(*args: Any, **kwargs: Any) -> Any:
    return contextlib.nullcontext()


def _norms(chunk: Any, flag: Any, lists: Any, each: Any) -> Any:
    watch.kernel("norm of gradients", sum(t.numel() * t.element_size() for group in lists for t in group))
    return torch.zeros(1, dtype=torch.float32), torch.zeros(0, dtype=torch.float32)


def _entropy(
    logits: Any, target: Any, smoothing: float = 0.0, reduce: bool = False, group: Any = None, *args: Any
) -> Any:
    with watch.tagged("cross entropy"):
        return CrossEntropyFunction.apply(logits, target, group)


def _permuted(tokens: Any, routing_map: Any, num_out_tokens: Any = None, **ignored: Any) -> Any:
    if isinstance(routing_map, FakeTensor):
        rows = num_out_tokens if isinstance(num_out_tokens, int) else round(routing_map.numel() * watch.selected)
    else:
        rows = int(routing_map.sum() if num_out_tokens is None else num_out_tokens)
    places = torch.empty(tokens.shape[0], 2 * routing_map.shape[-1] + 1, dtype=torch.int32)
    return MovedFunction.apply(tokens, (rows, tokens.shape[-1])), places


def _permuted_with_probs(tokens: Any, probs: Any, routing_map: Any, num_out_tokens: Any = None) -> Any:
    moved, places = _permuted(tokens, routing_map, num_out_tokens)
    return moved, MovedFunction.apply(probs, (moved.shape[0],)), places


def _added_gradient(total_input: Any, grad_output: Any, main_grad: Any) -> None:
    rows = grad_output.reshape(-1, grad_output.shape[-1])
    watch.kernel("matmul", (rows.shape[1], rows.shape[0], total_input.shape[-1]))


def install(version: str) -> None:
    """Installs this package in sys.modules, replacing an imported transformer_engine."""
    te = "transformer_engine"
    _module(te, __version__=version)
    _module(f"{te}.common")
    recipes = ("DelayedScaling", "Float8CurrentScaling", "Float8BlockScaling", "MXFP8BlockScaling")
    formats = types.SimpleNamespace(E4M3="e4m3", HYBRID="hybrid")
    _module(f"{te}.common.recipe", Format=formats, **{name: type(name, (_Recipe,), {}) for name in recipes})
    made = (Linear, LayerNormLinear, GroupedLinear, Fp8Padding, Fp8Unpadding, LayerNorm, RMSNorm, DotProductAttention)
    autocast = {"fp8_autocast": _nothing, "fp8_model_init": _nothing}
    _module(f"{te}.pytorch", **{kind.__name__: kind for kind in made}, **autocast)
    _module(f"{te}.pytorch.ops", Operations)
    _module(f"{te}.pytorch.module")
    _module(f"{te}.pytorch.module.base", get_dummy_wgrad=lambda shape, dtype, zero=False: kept_gradient(shape, dtype))
    _module(f"{te}.pytorch.fp8", FP8GlobalStateManager=_State8, **autocast)
    _module(
        f"{te}.pytorch.distributed",
        CudaRNGStatesTracker=_Tracker,
        checkpoint=_checkpoint,
        is_fp8_activation_recompute_enabled=lambda: False,
        activation_recompute_forward=_nothing,
    )
    _module(f"{te}.pytorch.cpu_offload", CPUOffloadEnabled=False)
    _module(f"{te}.pytorch.tensor", QuantizedTensor=QuantizedTensor)
    _module(f"{te}.pytorch.attention")
    _module(f"{te}.pytorch.attention.rope", apply_rotary_pos_emb=lambda t, freqs, **k: RotaryFunction.apply(t, freqs))
    _module(
        f"{te}.pytorch.permutation",
        moe_permute=_permuted,
        moe_permute_with_probs=_permuted_with_probs,
        moe_unpermute=lambda t, map, restore_shape=None, **k: MovedFunction.apply(t, tuple(restore_shape or t.shape)),
        moe_sort_chunks_by_index=lambda t, sizes, order: MovedFunction.apply(t, tuple(t.shape)),
        moe_sort_chunks_by_index_with_probs=lambda t, probs, sizes, order: (
            MovedFunction.apply(t, tuple(t.shape)),
            MovedFunction.apply(probs, tuple(probs.shape)),
        ),
    )
    _module(f"{te}.pytorch.cross_entropy", parallel_cross_entropy=_entropy)
    _module(
        f"{te}.pytorch.optimizers",
        FusedAdam=FusedAdam,
        FusedSGD=torch.optim.SGD,
        multi_tensor_applier=lambda op, flag, lists, *args: op(65536, flag, lists, *args),
        multi_tensor_l2norm=_norms,
        multi_tensor_scale=lambda *args: None,
    )
    _module("scaled_masked_softmax_cuda", get_batch_per_block=lambda *sizes: 1)
    kernel = CausalSoftmax
    _module("scaled_upper_triang_masked_softmax_cuda", forward=kernel.forward, backward=kernel.backward)
    _module(
        "fused_weight_gradient_mlp_cuda",
        wgrad_gemm_accum_fp32=_added_gradient,
        wgrad_gemm_accum_fp16=_added_gradient,
    )


def _module(name: str, kind: Any = types.ModuleType, **content: Any) -> None:
    made = kind(name)
    made.__dict__.update(content)
    made.__path__ = []
    made.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    sys.modules[name] = made
    if "." in name:
        parent, _, own = name.rpartition(".")
        setattr(sys.modules[parent], own, made)
