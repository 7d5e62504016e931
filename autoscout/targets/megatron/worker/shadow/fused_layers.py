"""Replacements for Transformer Engine's modules in a shadow run, whose tensors have shapes but no data (watch.py).

Each one allocates tensors, saves tensors for the backward pass, and communicates like the real module (Transformer
Engine 2.x, pytorch/module/*.py). Its kernels are recorded by shape, but not computed. In 8 bits, a linear layer saves
the transposed 8-bit copy of its input instead of the input, and keeps 8-bit copies of its weights."""

from typing import Any

import torch
import torch.distributed as dist
from watch import watch

Function: Any = torch.autograd.Function  # typed as Any, because backward() is declared for a single gradient
_PLACEHOLDERS: dict[Any, torch.Tensor] = {}


class Settings:
    """Properties of the replaced modules. `flash`: whether attention uses flash-attn 2 instead of cuDNN's fused kernel.
    `multiprocessors`: the device's number of SMs if flash-attn's backward pass is deterministic (it then has more
    accumulators), else 0. `fp8`: whether GEMMs use 8 bits. `once`: whether the placeholder for a fused weight gradient
    is allocated only once (since Transformer Engine 2.5)."""

    flash = True
    multiprocessors = 0
    fp8 = False
    once = True


def gather(x: Any, group: Any) -> Any:
    out = torch.empty((x.shape[0] * group.size(), *x.shape[1:]), dtype=x.dtype)
    dist.all_gather_into_tensor(out, x, group=group)
    return out


def scatter(x: Any, group: Any) -> Any:
    out = torch.empty((x.shape[0] // group.size(), *x.shape[1:]), dtype=x.dtype)
    dist.reduce_scatter_tensor(out, x, group=group)
    return out


def product(a: Any, b: Any, bias: Any = None) -> Any:
    return torch.mm(a, b) if bias is None else torch.addmm(bias, a, b)


def placeholder(weight: Any) -> Any:
    """Returns the placeholder that autograd gets as a weight's gradient, since the GEMM has already added the real
    gradient to main_grad."""
    return kept_gradient(weight.shape, weight.dtype)


def kept_gradient(shape: Any, dtype: Any) -> Any:
    """Transformer Engine's get_dummy_wgrad, which Megatron-core's output layer also calls. It caches one tensor per
    shape; older versions allocated a new tensor in each call."""
    key = (tuple(shape), dtype)
    with watch.tagged("placeholder gradient"):
        if not Settings.once:
            return torch.empty(key[0], dtype=dtype)
        if key not in _PLACEHOLDERS:
            _PLACEHOLDERS[key] = torch.empty(key[0], dtype=dtype)
    return _PLACEHOLDERS[key].detach()


def _product() -> str:
    return "matmul 8-bit" if Settings.fp8 else "matmul"


def input_gradient(grad: Any, weight: Any) -> Any:
    if not Settings.fp8:
        return torch.mm(grad, weight)
    watch.kernel(_product(), (*grad.shape, weight.shape[1]))
    return torch.empty(grad.shape[0], weight.shape[1], dtype=weight.dtype)


def output_gradient(grad: Any, m: Any, gathers: bool) -> tuple[Any, Any]:
    """Returns (the output's gradient for a backward GEMM, gathered from all ranks if `gathers`; its transposed 8-bit
    copy, or None in 16 bits)."""
    grad = grad.reshape(-1, grad.shape[-1])
    if not Settings.fp8:
        return (gather(grad, m.tp_group) if gathers else grad), None
    rows, transposed = quantised(grad)
    if not gathers:
        return rows, transposed
    total = gather(rows, m.tp_group)
    return total, torch.empty_like(total)


def weight_gradient(weight: Any, grad: Any, x: Any, fuse: bool) -> Any:
    shape = (grad.shape[1], grad.shape[0], x.shape[1])
    if not (fuse and hasattr(weight, "main_grad")):
        if not Settings.fp8:
            return torch.mm(grad.t(), x)
        watch.kernel("matmul 8-bit", shape)
        return torch.empty_like(weight)
    watch.kernel(f"{_product()} into gradient", shape)
    if hasattr(weight, "grad_added_to_main_grad"):
        weight.grad_added_to_main_grad = True
    return placeholder(weight)


def quantised(x: Any) -> tuple[Any, Any]:
    """Returns the two 8-bit copies that one kernel makes of a tensor: (plain, transposed for the weight gradient)."""
    watch.kernel("quantise", tuple(x.shape))
    return torch.empty(x.shape, dtype=torch.uint8), torch.empty(x.shape, dtype=torch.uint8)


def _weight_copy(m: Any, weight: Any) -> None:
    """Allocates the 8-bit copies of a weight when it is first used, and keeps them."""
    if Settings.fp8 and getattr(m, "copy8", None) is None:
        with watch.tagged("communication: 8-bit weights"):
            m.copy8 = torch.empty((2, *weight.shape), dtype=torch.uint8)


def _norm_forward(x: Any, rms: bool) -> tuple[Any, Any, Any]:
    watch.kernel("norm", tuple(x.shape))
    mean = None if rms else torch.empty(x.shape[0], dtype=torch.float32)
    return torch.empty_like(x), mean, torch.empty(x.shape[0], dtype=torch.float32)


def _norm_backward(grad: Any, weight: Any, bias: Any) -> tuple[Any, Any, Any]:
    watch.kernel("norm backward", tuple(grad.shape))
    return torch.empty_like(grad), torch.empty_like(weight), None if bias is None else torch.empty_like(bias)


def _bias_gradient(bias: Any) -> Any:
    return None if bias is None else torch.empty_like(bias)


def _back_through_columns(d: Any, m: Any, gathers: bool) -> Any:
    """Returns the gradient of a column-parallel layer's input, summed over the ranks."""
    if gathers:
        return scatter(d, m.tp_group)
    if m.parallel_mode == "column" and m.tp_size > 1:
        dist.all_reduce(d, group=m.tp_group)
    return d


class LayerNormLinearFunction(Function):
    @staticmethod
    def forward(ctx: Any, inp: Any, norm_w: Any, norm_b: Any, weight: Any, bias: Any, m: Any) -> Any:
        x = inp.reshape(-1, inp.shape[-1])
        normed, mean, deviation = _norm_forward(x, m.rms)
        gathers = m.parallel_mode == "column" and m.sequence_parallel and m.tp_size > 1
        _weight_copy(m, weight)
        if Settings.fp8:
            rows, kept = quantised(normed)
            total = gather(rows, m.tp_group) if gathers else rows
            out = torch.empty(total.shape[0], weight.shape[0], dtype=x.dtype)
            watch.kernel("matmul 8-bit", (*total.shape, weight.shape[0]))
        else:
            kept = normed
            out = product(gather(normed, m.tp_group) if gathers else normed, weight.t(), bias)
        ctx.save_for_backward(x, norm_w, norm_b, weight, bias, kept, mean, deviation)
        ctx.m, ctx.gathers, ctx.shape = m, gathers, inp.shape
        full = out.view(-1, *inp.shape[1:-1], out.shape[-1])
        return (full, normed.view(inp.shape)) if m.gives_norm else full

    @staticmethod
    def backward(ctx: Any, grad: Any, of_norm: Any = None) -> Any:
        _, norm_w, norm_b, weight, bias, kept, _, _ = ctx.saved_tensors
        m = ctx.m
        grad, transposed = output_gradient(grad, m, False)
        kept = kept.reshape(-1, kept.shape[-1])
        total = gather(kept, m.tp_group) if ctx.gathers else kept
        d = input_gradient(grad, weight)
        local = _back_through_columns(d, m, ctx.gathers)
        dw = weight_gradient(weight, grad, total, m.fuse)
        db = _bias_gradient(bias)
        del total, d, transposed
        dx, dg, dbeta = _norm_backward(local, norm_w, norm_b)
        return dx.view(ctx.shape), dg, dbeta, dw, db, None


class LinearFunction(Function):
    @staticmethod
    def forward(ctx: Any, inp: Any, weight: Any, bias: Any, m: Any) -> Any:
        x = inp.reshape(-1, inp.shape[-1])
        gathers = m.parallel_mode == "column" and m.sequence_parallel and m.tp_size > 1
        _weight_copy(m, weight)
        kept = x
        if Settings.fp8:
            rows, kept = quantised(x)
            total = gather(rows, m.tp_group) if gathers else rows
            out = torch.empty(total.shape[0], weight.shape[0], dtype=x.dtype)
            watch.kernel("matmul 8-bit", (*total.shape, weight.shape[0]))
        else:
            out = product(gather(x, m.tp_group) if gathers else x, weight.t(), bias)
        ctx.row = m.parallel_mode == "row" and m.tp_size > 1
        if ctx.row and m.sequence_parallel:
            out = scatter(out, m.tp_group)
        elif ctx.row:
            dist.all_reduce(out, group=m.tp_group)
        ctx.save_for_backward(kept, weight, bias)
        ctx.m, ctx.gathers, ctx.shape = m, gathers, inp.shape
        return out.view(-1, *inp.shape[1:-1], out.shape[-1])

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        kept, weight, bias = ctx.saved_tensors
        m = ctx.m
        grad, transposed = output_gradient(grad, m, ctx.row and m.sequence_parallel)
        kept = kept.reshape(-1, kept.shape[-1])
        total = gather(kept, m.tp_group) if ctx.gathers else kept
        d = _back_through_columns(input_gradient(grad, weight), m, ctx.gathers)
        dw = weight_gradient(weight, grad, total, m.fuse)
        del transposed
        return d.view(ctx.shape), dw, _bias_gradient(bias), None


class GroupedFunction(Function):
    """The linear layers of all experts of this rank: one GEMM per expert, and one common output."""

    @staticmethod
    def forward(ctx: Any, inp: Any, m: Any, splits: list[int], *weights: Any) -> Any:
        x = inp.reshape(-1, inp.shape[-1])
        out = torch.empty(x.shape[0], weights[0].shape[0], dtype=x.dtype)
        _experts(_product(), splits, weights[0].shape[1], weights[0].shape[0])
        kept = quantised(x)[1] if Settings.fp8 else x
        ctx.save_for_backward(kept, *weights)
        ctx.m, ctx.splits, ctx.shape = m, splits, inp.shape
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        _, *weights = ctx.saved_tensors
        d = torch.empty(ctx.shape, dtype=grad.dtype)
        fused = ctx.m.fuse and hasattr(weights[0], "main_grad")
        rows, (outputs, inputs) = sum(ctx.splits) / len(weights), weights[0].shape
        _experts(_product(), ctx.splits, outputs, inputs)
        watch.kernel(_product() + " into gradient" * fused, (len(weights), outputs, rows, inputs))
        transposed = quantised(grad.reshape(-1, outputs)) if Settings.fp8 else None
        grads = []
        for weight in weights:
            if fused:
                weight.grad_added_to_main_grad = True
                grads.append(placeholder(weight))
            else:
                grads.append(torch.empty_like(weight))
        del transposed
        return d, None, None, *grads


def _experts(name: str, splits: list[int], inputs: int, outputs: int) -> None:
    """Records one GEMM per expert, all concurrent, each with the mean number of rows."""
    watch.kernel(name, (len(splits), sum(splits) / len(splits), inputs, outputs))


class NormFunction(Function):
    @staticmethod
    def forward(ctx: Any, inp: Any, weight: Any, bias: Any, m: Any) -> Any:
        x = inp.reshape(-1, inp.shape[-1])
        out, mean, deviation = _norm_forward(x, m.rms)
        ctx.save_for_backward(x, weight, bias, mean, deviation)
        return out.view(inp.shape)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        _, weight, bias, _, _ = ctx.saved_tensors
        return *_norm_backward(grad, weight, bias), None


class AttentionFunction(Function):
    """Attention: flash-attn 2 on (batch, sequence, heads, size), or cuDNN's on (sequence, batch, heads, size). `group`:
    the context parallel group. `how`: its communication: keys and values are passed around a ring ("p2p") or gathered
    ("all_gather"), or heads are exchanged for tokens ("a2a")."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, batch: int, seq: int, group: Any, how: str, flash: bool) -> Any:
        ranks = group.size() if group is not None else 1
        out = torch.empty((*q.shape[:-1], v.shape[-1]), dtype=q.dtype)
        logsumexp = torch.empty(batch, q.shape[2], seq, dtype=torch.float32)
        generator = torch.empty(2 * ranks, dtype=torch.int64)
        watch.kernel("attention", tuple(q.shape), tuple(k.shape), ranks)
        if ranks > 1 and how == "a2a":
            _exchanged((q, k, v, out), group)
        elif ranks > 1 and how == "p2p":
            passing = [torch.stack([k, v]) for _ in range(2)]
            _pass_on(passing, group, ranks - 1)
            parts = [torch.empty_like(out) for _ in range(ranks)]  # outputs by step of the ring, combined at the end
            del parts, passing
        elif ranks > 1:
            gathered = [gather(t.reshape(-1, *t.shape[2:]), group) for t in (k, v)]
            del gathered
        ctx.save_for_backward(q, k, v, out, logsumexp, generator)
        ctx.batch, ctx.seq, ctx.group, ctx.how, ctx.flash = batch, seq, group if ranks > 1 else None, how, flash
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        q, k, v, _, _, _ = ctx.saved_tensors
        ranks = ctx.group.size() if ctx.group is not None else 1
        watch.kernel("attention backward", tuple(q.shape), tuple(k.shape), ranks)
        if ranks > 1 and ctx.how == "a2a":
            _exchanged((grad, q, k, v), ctx.group)
        elif ranks > 1 and ctx.how == "p2p":
            # buffers of keys, values and their gradients
            passing = [torch.empty((2, 2, *k.shape), dtype=k.dtype) for _ in range(2)]
            _pass_on(passing, ctx.group, ranks)
            del passing
        elif ranks > 1:
            gathered = [gather(t.reshape(-1, *t.shape[2:]), ctx.group) for t in (k, v)]
            gradients = [torch.empty_like(t) for t in gathered]
            for t in gradients:
                scatter(t, ctx.group)
            del gathered, gradients
        made = (torch.empty_like(q), torch.empty_like(k), torch.empty_like(v))
        scratch = _flash_scratch(ctx, q, k, v) if ctx.flash else ()
        del scratch
        return *made, None, None, None, None, None


def _flash_scratch(ctx: Any, q: Any, k: Any, v: Any) -> tuple[Any, ...]:
    """Returns temporaries as mha_bwd in flash_api.cpp allocates them: an fp32 accumulator (one per split if
    deterministic), and expanded gradients for grouped-query attention."""
    heads = q.shape[2]
    splits = -(-Settings.multiprocessors // (ctx.batch * heads)) if Settings.multiprocessors else 1
    made = [torch.empty(splits, ctx.batch, ctx.seq, heads, q.shape[3], dtype=torch.float32)]
    made.append(torch.empty(ctx.batch, heads, ctx.seq, dtype=torch.float32))
    if k.shape[2] != heads:
        made += [torch.empty(*t.shape[:2], heads, t.shape[3], dtype=t.dtype) for t in (k, v)]
    return tuple(made)


def _exchanged(tensors: tuple[Any, ...], group: Any) -> None:
    """All-to-all between a split by tokens and a split by heads. Tensor sizes do not change."""
    for t in tensors:
        dist.all_to_all_single(torch.empty_like(t), t, group=group)


def _pass_on(passing: list[Any], group: Any, times: int) -> None:
    """Sends to the next rank of the ring and receives from the previous one."""
    ranks = dist.get_process_group_ranks(group)
    mine = group.rank()
    for _ in range(times):
        dist.send(passing[0], ranks[(mine + 1) % len(ranks)], group=group)
        dist.recv(passing[1], ranks[mine - 1], group=group)


class RotaryFunction(Function):
    @staticmethod
    def forward(ctx: Any, t: Any, freqs: Any) -> Any:
        ctx.save_for_backward(freqs)
        watch.kernel("rotary", tuple(t.shape))
        return torch.empty_like(t, memory_format=torch.contiguous_format)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        watch.kernel("rotary", tuple(grad.shape))
        return torch.empty_like(grad, memory_format=torch.contiguous_format), None


class MovedFunction(Function):
    """One kernel that sorts, repeats or merges rows, such as those of tokens on their way to and from experts."""

    @staticmethod
    def forward(ctx: Any, t: Any, shape: tuple[int, ...]) -> Any:
        watch.kernel("moved", tuple(t.shape), shape)
        ctx.shape = t.shape
        return torch.empty(shape, dtype=t.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        watch.kernel("moved", tuple(grad.shape), tuple(ctx.shape))
        return torch.empty(ctx.shape, dtype=grad.dtype), None


class CrossEntropyFunction(Function):
    """Cross entropy over vocabulary shards. The gradient overwrites the logits. Each rank gathers three numbers per
    token from all ranks."""

    @staticmethod
    def forward(ctx: Any, logits: Any, target: Any, group: Any) -> Any:
        watch.kernel("cross entropy", tuple(logits.shape))
        if group is not None and group.size() > 1:
            own = torch.empty(3 * target.numel(), dtype=torch.float32)
            everyone = torch.empty(3 * target.numel() * group.size(), dtype=torch.float32)
            dist.all_gather_into_tensor(everyone, own, group=group)
        ctx.save_for_backward(logits.detach())
        return torch.empty(target.shape, dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (logits,) = ctx.saved_tensors
        watch.kernel("cross entropy backward", tuple(logits.shape))
        return logits, None, None


class CausalSoftmax:
    """Apex's softmax kernel of unfused attention, which Megatron's own layers can use."""

    @staticmethod
    def forward(scores: Any, scale: Any) -> Any:
        watch.kernel("softmax", tuple(scores.shape))
        return torch.empty_like(scores)

    @staticmethod
    def backward(grad: Any, probabilities: Any, scale: Any) -> Any:
        """Returns `grad` itself, because the real kernel overwrites it with its result."""
        watch.kernel("softmax backward", tuple(grad.shape))
        return grad
