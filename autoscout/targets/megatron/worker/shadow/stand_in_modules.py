"""Replacements for Transformer Engine's modules and optimizer, with the same parameters and state. Their memory, GEMMs
and communication are in fused_layers.py."""

from typing import Any

import torch
from fused_layers import (
    AttentionFunction,
    GroupedFunction,
    LayerNormLinearFunction,
    LinearFunction,
    MovedFunction,
    NormFunction,
    Settings,
)
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
        eps: float = 1e-5,
        zero_centered_gamma: bool = False,
        ub_name: Any = None,
        **ignored: Any,
    ) -> None:
        super().__init__()
        # Megatron-core reads these attributes when it builds operations from the module.
        self.eps, self.zero_centered_gamma, self.ub_name = eps, zero_centered_gamma, ub_name
        self.fuse_wgrad_accumulation = fuse_wgrad_accumulation
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
    """Pads each expert's rows to a multiple that 8-bit GEMMs accept. This copies the rows, unless their number already
    is such a multiple."""

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
        normalized_shape: int = 0,
        eps: float = 1e-5,
        sequence_parallel: bool = False,
        params_dtype: torch.dtype = torch.bfloat16,
        hidden_size: int = 0,
        **ignored: Any,
    ) -> None:
        """`hidden_size`: an older name for `normalized_shape`."""
        super().__init__()
        self.dtype = params_dtype
        size = normalized_shape or hidden_size
        self.make("weight", size).sequence_parallel = sequence_parallel
        if self.rms:
            self.bias = None
        else:
            self.make("bias", size).sequence_parallel = sequence_parallel

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
            # flash-attn needs equal head sizes of queries and values. Otherwise, Transformer Engine uses cuDNN's
            # attention.
            flash = Settings.flash and q.shape[-1] == v.shape[-1]
            if flash:
                q, k, v = (t.transpose(0, 1).contiguous() for t in (q, k, v))
            else:
                q, k, v = (t.contiguous() for t in (q, k, v))
            out: Any = AttentionFunction.apply(q, k, v, b, s, group, self.cp_comm_type, flash)
            if flash:
                out = out.transpose(0, 1).contiguous()
        return out.view(s, b, -1)


class FusedAdam(torch.optim.Optimizer):
    """Optimizer state like pytorch/optimizers/fused_adam.py: moments in their dtypes, a scale for each 8-bit moment,
    and master weights. Master weights are fp32; with `store_param_remainders`, only the 16 bits that bf16 lacks are
    stored."""

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
            # fp32 copies of all low-precision moments of the group, which exist at the same time
            unscaled: list[Any] = []
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
