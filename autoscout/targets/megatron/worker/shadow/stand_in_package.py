"""A package `transformer_engine` (and the two extensions beside it) for an interpreter that has none: modules with the
real ones' parameters and attributes, whose work is fused_layers.py.

Megatron-core's own wrappers (core/extensions/transformer_engine.py) run on top of it unchanged.
"""

import contextlib
import importlib.machinery
import sys
import types
from typing import Any

import torch
from fused_layers import (
    AttentionFunction,
    CausalSoftmax,
    CrossEntropyFunction,
    GroupedFunction,
    LayerNormLinearFunction,
    LinearFunction,
    MovedFunction,
    NormFunction,
    RotaryFunction,
    Settings,
    kept_gradient,
)
from torch._subclasses.fake_tensor import FakeTensor
from watch import watch


class Base(torch.nn.Module):
    dtype: torch.dtype
    parallel_mode: Any

    def make(self, name: str, *shape: int) -> Any:
        self.register_parameter(name, torch.nn.Parameter(torch.empty(*shape, dtype=self.dtype)))
        return getattr(self, name)

    def set_tensor_parallel_group(self, group: Any) -> None:
        self.tp_group = group

    def place(self, weight: Any, dim: int) -> None:
        if self.parallel_mode in ("column", "row"):
            weight.tensor_model_parallel, weight.partition_dim, weight.partition_stride = True, dim, 1


class Linear(Base):
    gives_norm = False

    def __init__(
        self,
        in_features: int,
        out_features: int,
        sequence_parallel: bool = False,
        fuse_wgrad_accumulation: bool = False,
        tp_group: Any = None,
        tp_size: int = 1,
        bias: bool = True,
        return_bias: bool = False,
        parallel_mode: Any = None,
        params_dtype: torch.dtype = torch.bfloat16,
        normalization: str = "LayerNorm",
        return_layernorm_output: bool = False,
        **ignored: Any,
    ) -> None:
        super().__init__()
        self.dtype, self.fuse, self.tp_group, self.tp_size = params_dtype, fuse_wgrad_accumulation, tp_group, tp_size
        self.return_bias, self.parallel_mode = return_bias, parallel_mode
        self.sequence_parallel = sequence_parallel and tp_size > 1
        self.rms, self.normalization = normalization == "RMSNorm", normalization
        self.gives_norm = return_layernorm_output
        if parallel_mode == "column":
            out_features //= tp_size
        if parallel_mode == "row":
            in_features //= tp_size
        self.in_features, self.out_features, self.use_bias = in_features, out_features, bias
        self.make_parameters(in_features, out_features, bias)

    def make_parameters(self, i: int, o: int, bias: bool) -> None:
        self.place(self.make("weight", o, i), 0 if self.parallel_mode == "column" else 1)
        if not bias:
            self.bias = None
            return
        made = self.make("bias", o)
        if self.parallel_mode == "column":
            self.place(made, 0)
        elif self.parallel_mode == "row":
            made.sequence_parallel = self.sequence_parallel

    def added_inside(self) -> Any:
        return None if self.return_bias else self.bias

    def forward(self, x: Any, is_first_microbatch: Any = None) -> Any:
        with watch.tagged("Linear"):
            out = LinearFunction.apply(x, self.weight, self.added_inside(), self)
        return (out, self.bias) if self.return_bias else out


class LayerNormLinear(Linear):
    def make_parameters(self, i: int, o: int, bias: bool) -> None:
        self.make("layer_norm_weight", i).sequence_parallel = self.sequence_parallel
        if self.rms:
            self.layer_norm_bias = None
        else:
            self.make("layer_norm_bias", i).sequence_parallel = self.sequence_parallel
        super().make_parameters(i, o, bias)

    def forward(self, x: Any, is_first_microbatch: Any = None) -> Any:
        arguments = (x, self.layer_norm_weight, self.layer_norm_bias, self.weight, self.added_inside(), self)
        with watch.tagged("LayerNormLinear"):
            out: Any = LayerNormLinearFunction.apply(*arguments)
        if self.gives_norm:
            return (out[0], self.bias, out[1]) if self.return_bias else out
        return (out, self.bias) if self.return_bias else out


class GroupedLinear(Linear):
    num_gemms: Any

    def __init__(self, num_gemms: int, *args: Any, **kwargs: Any) -> None:
        object.__setattr__(self, "num_gemms", num_gemms)
        super().__init__(*args, **kwargs)

    def make_parameters(self, i: int, o: int, bias: bool) -> None:
        for number in range(self.num_gemms):
            self.place(self.make(f"weight{number}", o, i), 0)

    def forward(self, x: Any, m_splits: Any, is_first_microbatch: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        weights = [getattr(self, f"weight{number}") for number in range(self.num_gemms)]
        with watch.tagged("GroupedLinear"):
            out = GroupedFunction.apply(x, self, list(m_splits), *weights)
        return (out, None) if self.return_bias else out


class Fp8Padding(torch.nn.Module):
    """Rows of every expert made a multiple that 8-bit products take: a copy, unless they are one already."""

    ALIGNED = 16

    def __init__(self, num_gemms: int, align_size: Any = None) -> None:
        super().__init__()
        self.to = align_size or self.ALIGNED

    def padded(self, splits: Any) -> list[int]:
        return [-(-rows // self.to) * self.to for rows in splits]

    def forward(self, x: Any, m_splits: Any) -> Any:
        wanted = self.padded(m_splits)
        if wanted == list(m_splits):
            return x, m_splits
        return MovedFunction.apply(x, (sum(wanted), *x.shape[1:])), wanted


class Fp8Unpadding(Fp8Padding):
    def forward(self, x: Any, m_splits: Any) -> Any:
        if self.padded(m_splits) == list(m_splits):
            return x
        return MovedFunction.apply(x, (sum(m_splits), *x.shape[1:]))


class LayerNorm(Base):
    rms = False

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-5,
        sequence_parallel: bool = False,
        params_dtype: torch.dtype = torch.bfloat16,
        **ignored: Any,
    ) -> None:
        super().__init__()
        self.dtype = params_dtype
        self.make("weight", hidden_size).sequence_parallel = sequence_parallel
        if self.rms:
            self.bias = None
        else:
            self.make("bias", hidden_size).sequence_parallel = sequence_parallel

    def forward(self, x: Any) -> Any:
        with watch.tagged("Norm"):
            return NormFunction.apply(x, self.weight, self.bias, self)


class RMSNorm(LayerNorm):
    rms = True


class DotProductAttention(torch.nn.Module):
    def __init__(
        self,
        num_attention_heads: Any = None,
        kv_channels: Any = None,
        attention_dropout: float = 0.0,
        cp_group: Any = None,
        cp_comm_type: str = "p2p",
        **ignored: Any,
    ) -> None:
        super().__init__()
        self.qkv_format, self.num_splits = "sbhd", None
        self.cp_group, self.cp_comm_type = cp_group, cp_comm_type or "p2p"

    def forward(self, q: Any, k: Any, v: Any, mask: Any = None, **ignored: Any) -> Any:
        s, b = q.shape[:2]
        group = self.cp_group if self.cp_group is not None and self.cp_group.size() > 1 else None
        with watch.tagged("attention"):
            flash = Settings.flash and q.shape[-1] == v.shape[-1]  # Transformer Engine uses cuDNN's for the others
            if flash:
                q, k, v = (t.transpose(0, 1).contiguous() for t in (q, k, v))
            else:
                q, k, v = (t.contiguous() for t in (q, k, v))
            out: Any = AttentionFunction.apply(q, k, v, b, s, group, self.cp_comm_type, flash)
            if flash:
                out = out.transpose(0, 1).contiguous()
        return out.view(s, b, -1)


class FusedAdam(torch.optim.Optimizer):
    """State as pytorch/optimizers/fused_adam.py keeps it: moments in their types, a scale beside those of 8 bits, and
    of the weights all of fp32 or (`store_param_remainders`) the 16 bits that bf16 lacks."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        master_weights: bool = False,
        master_weight_dtype: torch.dtype = torch.float32,
        exp_avg_dtype: torch.dtype = torch.float32,
        exp_avg_sq_dtype: torch.dtype = torch.float32,
        use_decoupled_grad: bool = False,
        store_param_remainders: bool = False,
        **ignored: Any,
    ) -> None:
        self.kept = {"exp_avg": exp_avg_dtype, "exp_avg_sq": exp_avg_sq_dtype}
        if master_weights:
            self.kept["master_param"] = master_weight_dtype
        self.use_decoupled_grad, self.store_param_remainders = use_decoupled_grad, store_param_remainders
        usual = {"lr": lr, "bias_correction": True, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, usual)

    def zero_grad(self, set_to_none: bool = True) -> None:
        if not self.use_decoupled_grad:
            super().zero_grad(set_to_none)
            return
        for group in self.param_groups:
            for p in group["params"]:
                p.decoupled_grad = None

    def initialize_state(self, p: Any, *args: Any) -> None:
        for name, dtype in self.kept.items():
            if name == "master_param" and self.store_param_remainders and p.dtype == torch.bfloat16:
                dtype = torch.int16
            self.state[p][name] = torch.empty(p.shape, dtype=dtype)

    def step(self, closure: Any = None, **ignored: Any) -> None:  # type: ignore[override]
        for group in self.param_groups:
            numbers = 0
            unscaled: list[Any] = []  # in fp32, of all weights of the group at once
            for p in group["params"]:
                if p.grad is None and getattr(p, "decoupled_grad", None) is None:
                    continue
                if not self.state[p]:
                    self.initialize_state(p)
                rounded = [t for t in self.state[p].values() if t.dtype not in (torch.float32, torch.int16)]
                unscaled += [torch.empty(t.shape, dtype=torch.float32) for t in rounded]
                numbers += p.numel()
            if numbers:
                watch.kernel("adam", (numbers,))
            del unscaled


class Anything(types.ModuleType):
    """A module of which only names are asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__init__": lambda self, *args, **kwargs: None})


class _Tracker:
    """Of generators, which a shadow has no use for."""

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
    """Transformer Engine's own, used with 8-bit products: keeps the inputs, and runs the function again."""
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
    """Errors: none; what is there already is replaced."""
    te = "transformer_engine"
    _module(te, __version__=version)
    _module(f"{te}.common")
    recipes = ("DelayedScaling", "Float8CurrentScaling", "Float8BlockScaling", "MXFP8BlockScaling")
    formats = types.SimpleNamespace(E4M3="e4m3", HYBRID="hybrid")
    _module(f"{te}.common.recipe", Format=formats, **{name: type(name, (_Recipe,), {}) for name in recipes})
    made = (Linear, LayerNormLinear, GroupedLinear, Fp8Padding, Fp8Unpadding, LayerNorm, RMSNorm, DotProductAttention)
    autocast = {"fp8_autocast": _nothing, "fp8_model_init": _nothing}
    _module(f"{te}.pytorch", **{kind.__name__: kind for kind in made}, **autocast)
    _module(f"{te}.pytorch.ops", Anything)
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
