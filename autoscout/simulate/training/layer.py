"""Predicts seconds of one transformer layer, and of the output layer with the loss, for one micro batch on one rank.

Compute and communication are separate, because they may overlap. Forward, recomputation, backward, and the host's time
to launch kernels are also separate. Operators and shapes follow Megatron-core, and for sequence parallelism and
recomputation Korthikanti et al. 2022."""

from functools import partial
from typing import NamedTuple

import numpy as np

from autoscout.simulate.hardware.collectives import Topology
from autoscout.simulate.hardware.device import Hardware
from autoscout.simulate.hardware.roofline import batched_gemm, flash, flash_backward, gemm, memory_bound
from autoscout.simulate.training import expert_biases
from autoscout.simulate.training import hub_layers as hub
from autoscout.simulate.training import latent_attention as latent
from autoscout.simulate.training import ring_attention as ring
from autoscout.simulate.training.inputs import Inputs
from autoscout.simulate.training.issuing import issued
from autoscout.simulate.training.rank_parameters import adapter_width, weights_of_layer

Array = np.ndarray
# Bytes moved per value to quantize an operand, counted from Transformer Engine: it is read in bf16 and written twice,
# because weight gradients need it transposed; 4 bits also need a Hadamard transform (one more read and write). With
# frozen weights (FROZEN_CAST) the transposed copy and the transform are unnecessary, but 4 bits need a pass for the
# largest value. With an operation fuser (FUSED_CAST) the previous kernel writes 8 bits directly, and finds the largest
# value for 4 bits.
CAST = {"fp8": 4.0, "fp4": 7.0}
FROZEN_CAST = {"fp8": 3.0, "fp4": 4.5}
FUSED_CAST = {"fp8": 0.0, "fp4": 2.5}
# With sequence parallelism, a rank quantizes its own tokens before the all-gather (Transformer Engine's
# layernorm_linear.py, grad_output_preprocess), so fewer bytes are sent (GATHERED, relative to 16 bits). Before
# Blackwell, 8-bit GEMMs support only one operand layout, so weight gradients need a transposed copy of the gathered
# values (TURNED bytes per value).
GATHERED = {"fp8": 0.5, "fp4": 4.5 / 16}
TURNED = 2.0
# Relative speed of a deterministic fused backward pass. Qiang et al. 2026 ("DASH", arXiv 2601.21824) measured up to
# 37.9 % less on H800, and half of this slowdown is assumed.
DETERMINISTIC = 0.81
# Speed of masked attention relative to FlashAttention 2: Llama-3-8B fine-tuned on H100 and A100 (docs/lab/unsaid.md).
MASKED = 0.21
# Relative speed of fused attention with dropout, forward and backward, which draws a random number per score.
# flash-attention's pull request 2597 states 75 to 85 % and 60 to 70 % (GB200).
DROPPED = (0.80, 0.65)
IMBALANCE = 1.1  # tokens of the busiest expert rank relative to the mean, with a load-balancing auxiliary loss; assumed
# Bytes moved per logit by the loss, forward and backward: with plain PyTorch kernels (from Mist's gpt-post-process on
# A100, without its matrix product), and with fused kernels.
LOSS_BYTES = (35.0, 12.0)
FUSED_LOSS_BYTES = (12.0, 8.0)
# The same bytes for Transformer Engine's in-place kernels, counted from triton/cross_entropy.py of 2.9: the forward
# pass sums the softmax and overwrites the logits with their gradient; the backward pass scales the gradient.
IN_PLACE_LOSS_BYTES = (6.0, 4.0)


class Times(NamedTuple):
    """(n,) seconds of a layer, or of the output layer with the loss (head), by component."""

    forward: Array
    backward: Array
    # Parts of `forward` that selective recomputation can repeat: the attention core, the feed-forward block with its
    # activation, the activation alone, the norms, and the up projections of latent attention.
    core: Array
    block: Array
    activation: Array
    norms: Array
    up: Array
    tp_forward: Array
    tp_backward: Array
    # Seconds of tp_forward and tp_backward that cannot overlap with a GEMM.
    bare_forward: Array
    bare_backward: Array
    cp: Array
    cp_backward: Array
    ep: Array  # per pass: backward takes as long as forward
    host_forward: Array
    host_backward: Array


def layer_times(hw: Hardware, topology: Topology, x: Inputs) -> Times:
    b = 4 if x.dtype == "fp32" else 2
    tokens = x.mbs * x.seq_len / x.cp
    own = tokens / np.where(x.sp > 0, x.tp, 1)
    qkv = (x.heads + 2 * x.kv_heads) * x.head_dim / x.tp
    attended = x.heads * x.head_dim / x.tp

    # An adapter reads the norm's 16-bit output, so the norm writes 8 bits only if the adapter is fused (`fusible`).
    projections = _linear(hw, x, tokens, qkv, x.hidden, fusible="x", gathered="x")
    projections = projections + _linear(hw, x, tokens, x.hidden, attended, gathered="dy")
    up = np.zeros(1)
    if np.any(x.kv_lora_rank > 0):
        others, raised = latent.projections(x, tokens, own, partial(_linear, hw, x))
        projections = _Linear(*(np.where(x.kv_lora_rank > 0, *both) for both in zip(others, projections, strict=True)))
        turned = memory_bound(hw, latent.moved(x, tokens, b), hw.elementwise.bandwidth)
        up = np.where(x.kv_lora_rank > 0, raised.forward + turned, 0.0)
    core, core_backward = _attention(hw, x)
    feed_forward, block, ep = _feed_forward(hw, topology, x, tokens, own)
    plain_forward, plain_backward, activation, norms = _elementwise(hw, x, own, b)
    beside = _adapters(hw, x, tokens, b)

    forward = projections.forward + core + feed_forward.forward + plain_forward + beside[0]
    backward = projections.backward + core_backward + feed_forward.backward + plain_backward + beside[1]
    (tp_forward, bare_forward), (tp_backward, bare_backward) = _tensor_parallel(hw, topology, x, tokens * x.hidden * b)
    cp, cp_backward = _context_parallel(hw, topology, x, tokens, b)
    host_forward, host_backward = issued(hw, x)
    return Times(
        forward=forward,
        backward=backward,
        core=core,
        block=block + activation,
        activation=activation,
        norms=norms,
        up=up,
        tp_forward=tp_forward,
        tp_backward=tp_backward,
        bare_forward=bare_forward,
        bare_backward=bare_backward,
        cp=cp,
        cp_backward=cp_backward,
        ep=ep,
        host_forward=host_forward,
        host_backward=host_backward,
    )


def _loss_bytes(x: Inputs, way: int) -> Array:
    told = np.where(x.ce_fusion > 0, IN_PLACE_LOSS_BYTES[way], LOSS_BYTES[way])
    assumed = np.where((x.attention > 0) & (x.hub == 0), FUSED_LOSS_BYTES[way], LOSS_BYTES[way])
    return np.where(np.isnan(x.ce_fusion), assumed, told)


def head_times(hw: Hardware, topology: Topology, x: Inputs) -> Times:
    """The seconds of final norm, logits and cross entropy on the last stage, with the vocabulary split over tp."""
    b = 4 if x.dtype == "fp32" else 2
    tokens = x.mbs * x.seq_len / x.cp
    logits = _linear(hw, x, tokens, x.vocab / x.tp, x.hidden, "bf16" if x.dtype == "fp4" else x.dtype)
    elements, share = tokens * x.vocab / x.tp, hw.elementwise.bandwidth
    forward = logits.forward + memory_bound(hw, elements * _loss_bytes(x, 0), share)
    backward = logits.backward + memory_bound(hw, elements * _loss_bytes(x, 1), share)
    if hub.on(x):
        theirs = (memory_bound(hw, size, share) for size in hub.vocabulary_moved(x))
        forward, backward = (
            time + np.where(x.hub > 0, more, 0.0) for time, more in zip((forward, backward), theirs, strict=True)
        )
    gathered = topology.all_gather(tokens * x.hidden * b, x.tp, np.ones(1))
    scalars = 3 * topology.all_reduce(tokens * 4.0, x.tp, np.ones(1))  # per token: maximum, sum, target logit
    zero = np.zeros(1)
    return Times(
        forward=forward,
        backward=backward,
        core=zero,
        block=zero,
        activation=zero,
        norms=zero,
        up=zero,
        tp_forward=np.where(x.sp > 0, gathered, 0) + scalars,
        tp_backward=topology.all_reduce(tokens * x.hidden * b, x.tp, np.ones(1)),
        bare_forward=zero,
        bare_backward=zero,
        cp=zero,
        cp_backward=zero,
        ep=zero,
        host_forward=np.full(1, 6e-6 * hw.host.forward_us),
        host_backward=np.full(1, 6e-6 * hw.host.backward_us),
    )


class _Linear(NamedTuple):
    forward: Array
    backward: Array

    def __add__(self, other: "_Linear") -> "_Linear":  # pyright: ignore[reportIncompatibleMethodOverride]
        return _Linear(self.forward + other.forward, self.backward + other.backward)


def _linear(
    hw: Hardware,
    x: Inputs,
    tokens: Array,
    outputs: Array,
    inputs: Array,
    dtype: str = "",
    fusible: str = "",
    gathered: str = "",
) -> _Linear:
    """Seconds of y = x W, and backward of dx = dy Wᵀ and dW = xᵀ dy, which is accumulated over micro batches.
    `fusible`: "x" or "dy": the operand that an operation fuser quantizes in the kernel that produces it; `gathered`:
    "x" or "dy": the operand that sequence parallelism splits over ranks."""
    accumulate = np.where(x.grads_apart > 0, 0.0, outputs * inputs * 2 * x.grad_bytes)
    frozen = x.lora > 0
    dtype = dtype or x.dtype
    dx = gemm(hw, tokens, inputs, outputs, dtype)
    # Rounding avoids gemm's penalty for unaligned rows: dW's operands are stored by token, so their rows are aligned.
    dw = np.where(frozen, 0.0, gemm(hw, outputs, inputs, np.ceil(tokens / 8) * 8, dtype, accumulate))
    forward = gemm(hw, tokens, outputs, inputs, dtype)
    if dtype in CAST:
        forward = forward + _cast(hw, x, dtype, tokens * inputs, fusible == "x", gathered == "x")
        dx = dx + _cast(hw, x, dtype, tokens * outputs, fusible == "dy", gathered == "dy")
        turned = memory_bound(hw, TURNED * outputs * inputs, hw.elementwise.bandwidth)
        dx = dx + np.where(frozen & (x.transposes > 0) & (dtype == "fp8"), turned, 0.0)
    return _Linear(forward, dx + dw)


def _cast(hw: Hardware, x: Inputs, dtype: str, values: Array, fusible: bool, gathered: bool) -> Array:
    frozen = x.lora > 0
    each = np.where(frozen, FROZEN_CAST[dtype], CAST[dtype])
    if gathered:
        again = 0.0 if "fp4" in hw.peak_tflops else np.where(frozen, 0.0, TURNED)
        once = np.where(again > 0, FROZEN_CAST[dtype], each)
        each = np.where((x.sp > 0) & (x.tp > 1), once / x.tp + again, each)
    if fusible:  # the previous kernel quantizes, without the Hadamard transform
        each = np.where((x.op_fuser > 0) & (frozen | (dtype == "fp8")), FUSED_CAST[dtype], each)
    return np.where(each > 0, memory_bound(hw, each * values, hw.elementwise.bandwidth), 0.0)


def _attention(hw: Hardware, x: Inputs) -> tuple[Array, Array]:
    """((n,) seconds forward, (n,) backward) of the attention core: one fused kernel, or scores, softmax, dropout and
    weighting."""
    heads = x.heads / x.tp
    queries = x.seq_len / x.cp
    dtype = "bf16" if x.dtype in CAST else x.dtype  # only linear layers use 8 or 4 bits
    seen = np.where(x.packing > 0, x.packed_context, x.seq_len)  # fused kernels skip the other packed samples
    fused = flash(hw, x.mbs * x.seq_len / seen, heads, seen / x.cp, seen, x.head_dim, dtype)
    fused_backward = flash_backward(hw, fused)
    newest = np.where(x.deterministic > 0, hw.attention.deterministic, 1.0)
    own = hw.attention
    older = np.select([x.attention == i for i in (1, 2, 4)], [own.flash1, own.flash2, MASKED * own.flash2], newest)
    fused, fused_backward = fused / older, fused_backward / older
    fused_backward = fused_backward / np.where(x.deterministic > 0, DETERMINISTIC, 1.0)
    forward, backward = DROPPED
    fused, fused_backward = (
        t / np.where(x.dropout > 0, share, 1.0) for t, share in ((fused, forward), (fused_backward, backward))
    )
    copied = ring.copies(hw, x)
    fused, fused_backward = fused + copied[0], fused_backward + copied[1]
    if np.all(x.attention > 0):
        return fused, fused_backward
    b = 4 if x.dtype == "fp32" else 2
    product = batched_gemm(hw, x.mbs * heads, queries, x.seq_len, x.head_dim, dtype)
    weighting = batched_gemm(hw, x.mbs * heads, queries, x.head_dim, x.seq_len, dtype)
    scores = x.mbs * heads * queries * x.seq_len
    e = hw.elementwise
    # Megatron's fused softmax for up to 2,048 keys reads the lower triangle and writes all scores. Longer sequences are
    # scaled, masked and normalised by plain fp32 operators.
    passes = np.where(x.fused_activation == 0, 13.0, np.where(x.seq_len <= 2048, 1.5, 3.0))
    softmax = memory_bound(hw, passes * b * scores, e.bandwidth)
    softmax_backward = memory_bound(hw, np.where(x.hub > 0, hub.SOFTMAX_BACKWARD, 3.0 * b) * scores, e.bandwidth)
    dropped = np.where(x.dropout > 0, memory_bound(hw, (2.0 * b + 1) * scores, e.bandwidth), 0.0)
    plain = product + weighting + softmax + dropped
    plain_backward = 2 * product + 2 * weighting + softmax_backward + dropped
    unfused = x.attention == 0
    return np.where(unfused, plain, fused), np.where(unfused, plain_backward, fused_backward)


def _feed_forward(
    hw: Hardware, topology: Topology, x: Inputs, tokens: Array, own: Array
) -> tuple[_Linear, Array, Array]:
    """(compute seconds, seconds of the forward pass that block recomputation repeats, seconds of expert communication
    per pass), each averaged over layers with and without experts."""
    wide = np.where(x.gated > 0, 2.0, 1.0)
    # The fused activation quantizes its output for the next GEMM; backward, its gradient for the previous GEMM.
    dense = _linear(hw, x, tokens, wide * x.ffn / x.tp, x.hidden, fusible="dy", gathered="x")
    dense = dense + _linear(hw, x, tokens, x.hidden, x.ffn / x.tp, fusible="x", gathered="dy")
    if not np.any(x.experts):
        return dense, dense.forward, np.zeros(1)
    experts, busiest = np.maximum(x.experts, 1), np.where(x.ep > 1, IMBALANCE, 1.0)
    local = np.maximum(experts / x.ep, 1)
    routed = own * x.topk * busiest * x.etp  # tokens per rank, gathered from all etp ranks
    each = routed / local
    up = _linear(hw, x, each, wide * x.expert_ffn / x.etp, x.hidden)
    down = _linear(hw, x, each, x.hidden, x.expert_ffn / x.etp)
    router = _linear(hw, x, own, experts, x.hidden)
    b = 4 if x.dtype == "fp32" else 2
    permute = memory_bound(hw, 4.0 * b * routed * x.hidden, hw.elementwise.bandwidth, 4)
    biases = [permute + memory_bound(hw, size, hw.elementwise.bandwidth) for size in expert_biases.moved(x, routed)]
    sparse = _Linear(
        local * (up.forward + down.forward) + router.forward + biases[0],
        local * (up.backward + down.backward) + router.backward + biases[1],
    )
    if np.any(x.shared_ffn):
        widest = np.maximum(x.shared_ffn, 1) / x.tp
        shared = _linear(hw, x, tokens, wide * widest, x.hidden) + _linear(hw, x, tokens, x.hidden, widest)
        sparse = sparse + _Linear(*(np.where(x.shared_ffn > 0, part, 0.0) for part in shared))
    size, stride = own * x.topk * x.hidden * b, np.where(x.etp > 1, x.tp, 1)
    swapped = 2 * (topology.all_to_all(size * busiest, x.ep, stride) + topology.late(x.ep))
    once = topology.all_to_all(size * busiest, x.ep, stride, own * x.hidden * b * busiest, x.topk)
    swapped = np.where(x.dispatcher == 2, 2 * (once + topology.late(x.ep)), swapped)
    everything = own * x.ep * x.hidden * b
    gathered = topology.all_gather(everything, x.ep, stride) + topology.reduce_scatter(everything, x.ep, stride)
    ep = np.where(x.dispatcher == 1, gathered, swapped) + np.where(
        x.etp > 1, 2 * topology.all_gather(size * x.etp, x.etp, np.ones(1)), 0.0
    )
    is_moe, plain = x.experts > 0, x.dense_layers / x.layers
    mixed = [(1 - plain) * some + plain * none for some, none in zip(sparse, dense, strict=True)]
    return (
        _Linear(*(np.where(is_moe, mean, none) for mean, none in zip(mixed, dense, strict=True))),
        np.where(is_moe, (1 - plain) * sparse.forward, dense.forward),
        np.where(is_moe, (1 - plain) * ep, 0.0),
    )


def _adapters(hw: Hardware, x: Inputs, tokens: Array, b: int) -> tuple[Array, Array]:
    """((n,) seconds forward, (n,) backward) of a layer's adapters: two thin, memory-bound GEMMs each, as in NeMo.
    Dropout reads the input and writes it with a mask, a GEMM reads it, and the output is written, scaled and added to
    the frozen GEMM's output. The backward pass moves as much and sums two gradients. Without dropout, a GEMM reads the
    input, and the output is written and added (lora.py of NeMo AutoModel). If fused (TEFusedLoRALinear), GEMMs scale
    and accumulate, one of two inputs has 8 bits, a mask one bit per value."""
    if not np.any(x.lora > 0):
        return np.zeros(1), np.zeros(1)
    half = 0.5 * tokens * adapter_width(x) / x.tp * b  # bytes of inputs; outputs are about as large

    def moved(passes: float, kernels: float) -> Array:
        return np.where(x.lora > 0, memory_bound(hw, passes * half, hw.elementwise.bandwidth, kernels), 0.0)

    ways = [x.op_fuser > 0, x.adapter_dropout == 0]
    forward = np.select(ways, [moved(2.8 + 2.0, 6), moved(1.0 + 4.0, 10)], moved(3.5 + 6.0, 12))
    backward = np.select(ways, [moved(5.1 + 2.0, 10), moved(5.0 + 2.0, 10)], moved(7.5 + 4.0, 12))
    if hub.on(x):
        theirs = [
            memory_bound(hw, size, hw.elementwise.bandwidth)
            for size in hub.adapters_moved(tokens, 0.5 * adapter_width(x))
        ]
        forward, backward = (
            np.where((x.hub > 0) & (x.lora > 0), *both) for both in zip(theirs, (forward, backward), strict=True)
        )
    return forward, backward


def _elementwise(hw: Hardware, x: Inputs, own: Array, b: int) -> tuple[Array, Array, Array, Array]:
    """((n,) seconds forward, (n,) backward, the activation's and the norms' parts of forward) of two norms, two
    residual additions (with bias and dropout), rotary embedding and the activation."""
    e = hw.elementwise
    stream = own * x.hidden * b
    mask = np.where(x.dropout > 0, own * x.hidden, 0.0)
    tokens, plain = x.mbs * x.seq_len / x.cp, x.dense_layers / x.layers
    dense = tokens * x.ffn / x.tp
    routed = (1 - plain) * (own * x.topk * x.expert_ffn + tokens * x.shared_ffn / x.tp) + plain * dense
    inner = np.where(x.experts > 0, routed, dense) * b
    eager, eager_norm = x.fused_activation == 0, x.fused_norm == 0
    activation = np.where(x.gated > 0, np.where(x.fused_gate == 0, 5.0, 3.0), 2.0) * inner
    # Unfused rotary embedding: multiply by cosine, swap halves (one negated, both copied), multiply by sine, add.
    rope = np.where(
        x.learned_positions > 0,
        0.0,
        np.where(eager, 10.0 * (1 + x.kv_heads / x.heads), 2.0)
        * x.mbs
        * x.seq_len
        / x.cp
        * x.heads
        * x.head_dim
        / x.tp
        * b,
    )
    rope = rope + x.qk_norm * 2 * tokens * (x.heads + x.kv_heads) * x.head_dim / x.tp * b  # norms of queries and keys
    rope = np.where(x.kv_lora_rank > 0, latent.moved(x, x.mbs * x.seq_len / x.cp, b), rope)
    # An unfused RMSNorm reads and writes per element: a copy in fp32 (6 bytes), square (8), mean (4), scale (8), cast
    # to 16 bits (6), multiplication by the weight (4). Backward: two gradients of that multiplication (12), cast to
    # fp32 (6), gradients of scale (8 + 16) and square (16), their sum (12), cast to 16 bits (6).
    norms = memory_bound(hw, 2 * 2 * stream, e.norm_bandwidth, 2)
    norms_backward = memory_bound(hw, 2 * 3 * stream, e.norm_bandwidth / 2, 2)
    if np.any(eager_norm):
        norms = np.where(eager_norm, memory_bound(hw, 2 * 36 * own * x.hidden, e.bandwidth, 16), norms)
        twice = memory_bound(hw, 2 * 76 * own * x.hidden, e.bandwidth, 26)
        norms_backward = np.where(eager_norm, twice, norms_backward)
    if np.any(x.norm_copy):
        # The fp32 copy adds 8 bytes per element forward (read 16 bits, write and read 32). Backward it adds 14: the
        # norm reads and writes 32 bits at half bandwidth (8), and the gradient is cast to 16 bits (6).
        copied = [memory_bound(hw, 2 * each * own * x.hidden, e.bandwidth, 2) for each in (8, 14)]
        norms = norms + np.where(x.norm_copy > 0, copied[0], 0.0)
        norms_backward = norms_backward + np.where(x.norm_copy > 0, copied[1], 0.0)
    residual = memory_bound(hw, 2 * (3 * stream + mask) + activation + rope, e.bandwidth, 3)
    residual_backward = memory_bound(hw, 2 * (2 * stream + mask) + 1.5 * activation + rope, e.bandwidth, 3)
    forward, backward = norms + residual, norms_backward + residual_backward
    if hub.on(x):
        cast = hub.cast_weights(x, weights_of_layer(x)[0])
        theirs = [
            memory_bound(hw, size + more, e.bandwidth) for size, more in zip(hub.moved(x, tokens), cast, strict=True)
        ]
        forward, backward = (np.where(x.hub > 0, *both) for both in zip(theirs, (forward, backward), strict=True))
    return forward, backward, memory_bound(hw, activation, e.bandwidth), norms


def _tensor_parallel(
    hw: Hardware, topology: Topology, x: Inputs, size: Array
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """((seconds forward, part that cannot overlap), (seconds backward, part that cannot overlap)), (n,) each. There is
    an all-reduce after attention and after feed-forward, or with sequence parallelism a reduce-scatter after and an
    all-gather before each, of the same volume. Routed experts need no such communication if etp < tp; shared experts
    always do."""
    one = np.ones(1)
    alone = (x.experts > 0) & (x.etp < x.tp) & (x.shared_ffn == 0)
    blocks = np.where(alone, 1.0 + x.dense_layers / x.layers, 2.0)
    reduced = topology.all_reduce(size, x.tp, one)
    gathered = topology.all_gather(GATHERED.get(x.dtype, 1.0) * size, x.tp, one)
    scattered = topology.reduce_scatter(size, x.tp, one)
    # The backward pass gathers inputs again for weight gradients, hidden by the GEMMs of input gradients.
    seconds = blocks * (np.where(x.sp > 0, gathered + scattered, reduced) + topology.late(x.tp))
    split = (x.lora > 0) & (x.sp > 0) & (x.tp > 1)
    if not np.any(split):
        return (seconds, np.zeros(1)), (seconds, np.zeros(1))

    # The first adapter's input is a norm's output, gathered in 16 bits without overlap. In the backward pass, no weight
    # gradients hide the scatter of this norm's gradients and (without tp_comm_dgrad) of the other norm's gradients.
    # The second adapter's output is exchanged (all2all_hp2sp of NeMo's parallel_adapters.py) and copied.
    whole, swapped = topology.all_gather(size, x.tp, one), topology.all_to_all(size / x.tp, x.tp, one)
    swapped = swapped + memory_bound(hw, 2 * size / x.tp, hw.elementwise.bandwidth)
    bare = whole + swapped, np.where(x.tp_comm_dgrad > 0, 1, 2) * scattered + swapped
    more = whole - gathered + swapped, swapped
    forward, backward = (
        (seconds + np.where(split, a, 0), np.where(split, c, 0)) for a, c in zip(more, bare, strict=True)
    )
    return forward, backward


def _context_parallel(hw: Hardware, topology: Topology, x: Inputs, tokens: Array, b: int) -> tuple[Array, Array]:
    """((n,) seconds forward, (n,) backward) of context parallel communication. In a ring (or all-gather), keys and
    values are sent once per layer, and twice as many bytes backward. With cp_comm = a2a, all-to-alls exchange heads for
    tokens, one each for queries, keys, values and output, and for their gradients (AttnFuncWithCPAndQKVOA2A of
    Transformer Engine 2.8; 2.2 sends the output once more)."""
    query, key = (tokens * n * x.head_dim / x.tp for n in (x.heads, x.kv_heads))
    ring = topology.all_gather(2 * key * x.cp * b, x.cp, x.tp, np.nan_to_num(x.cp_channels, nan=np.inf))
    if not np.any(x.cp_comm):
        return ring, 2 * ring

    query, key = (values * np.where(x.fp8_attention > 0, 1, b) for values in (query, key))
    sent = 2 * topology.all_to_all(query, x.cp, x.tp) + 2 * topology.all_to_all(key, x.cp, x.tp)
    # Reordering copies overlap with other communication, except three of the queries and one of the keys.
    copies = memory_bound(hw, 2 * (3 * query + key), hw.elementwise.bandwidth, 4)
    heads = np.where(x.cp > 1, sent + copies, 0.0)
    return np.where(x.cp_comm > 0, heads, ring), np.where(x.cp_comm > 0, heads, 2 * ring)
