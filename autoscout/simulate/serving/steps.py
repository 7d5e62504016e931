"""Seconds of the components of a serving engine's step, for many configurations at once. The event simulation and the
fluid model use the same step times, so that the two differ only in scheduling."""

import numpy as np

from autoscout.simulate.hardware.collectives import Topology
from autoscout.simulate.hardware.device import all_hardware
from autoscout.simulate.serving.all_reduce import all_reduce_us, hand_over_us
from autoscout.simulate.serving.engine_shapes import EngineShapes
from autoscout.simulate.serving.operators import (
    Array,
    decode_slope_us,
    decode_us,
    elementwise_us,
    experts_us,
    gemm_us,
    prefill_us,
)
from autoscout.simulate.serving.weight_formats import (
    blocks_us,
)

_KERNELS = 6.0  # elementwise kernels of a layer: two norms, rotary, activation, two residual additions
# steps with more tokens are assumed to contain prompts, so kernels run at their long-term speed (`lasting`)
_AT_ONCE = 1024
_OF_LATENTS = 3.0  # additional kernels of latent attention: two norms and a concatenation


def linear_s(e: EngineShapes, tokens: Array) -> np.ndarray:
    """Seconds of all layers' matrix products, elementwise kernels and experts for `tokens` new tokens."""
    c, q = e.device, e.heads * e.head_dim
    many = np.asarray(tokens) > _AT_ONCE
    most = e.weight_bytes, e.speed * np.where(many, e.lasting, 1.0), e.blocks

    def products(*shapes: tuple[Array, Array], of: tuple[Array, Array, Array] = most) -> np.ndarray:
        """Microseconds of several products (tokens, k) × (k, n), given (n, k) of each, in one call."""
        weight_bytes, speed, blocks = of
        n, k = (np.array(each) for each in zip(*shapes, strict=True))
        us = gemm_us(c.gemm, c.sms, tokens, n, k, weight_bytes, speed)
        return (us + np.where(blocks, blocks_us(c.elementwise, tokens, k), 0.0) if blocks.any() else us).sum(axis=0)

    speed = e.attention_speed * np.where(many, e.attention_lasting, 1.0)
    own = e.attention_bytes, speed, e.blocks & (e.attention_bytes == e.weight_bytes)

    qkv = q + 2 * e.kv_heads * e.head_dim
    plain = e.dense_layers / np.maximum(e.layers, 1)  # share of layers without experts
    inner = np.where(e.experts > 0, plain * e.ffn + (1 - plain) * e.shared_ffn, e.ffn)
    moved = 2 * tokens * (10 * e.hidden + 2 * qkv + 3 * inner)
    kernels, attention = _KERNELS, products((qkv, e.hidden), (e.hidden, q), of=own)
    if e.latents.on.any():
        with_latents = products(*((np.maximum(n, 1.0), np.maximum(k, 1.0)) for n, k in e.latents.products()), of=own)
        attention = np.where(e.latents.on, with_latents, attention)
        kernels = np.where(e.latents.on, _KERNELS + _OF_LATENTS, _KERNELS)
    us = attention + elementwise_us(c.elementwise, moved, kernels)
    if (e.dense_layers > 0).any():
        dense = products((e.up * e.ffn, e.hidden), (e.hidden, np.maximum(e.ffn, 1.0)))
        us = us + np.where(e.experts > 0, plain * dense, dense)
    if (e.experts > 0).any():
        number = np.maximum(e.experts, 1.0)
        fused = 1.0 * ((e.shared_ffn > 0) & e.shared_fused)
        routed = e.topk + fused, number + fused
        of_each = tokens * e.meeting, e.expert_hidden, e.expert_ffn, *routed, e.expert_bytes, e.spread
        mixed = experts_us(c.experts, *of_each, e.expert_speed) / e.expert_kernels + e.routing_us
        mixed = mixed + products((np.maximum(e.experts, 1.0), e.hidden))  # the router
        if (e.shared_ffn > 0).any():
            width = np.maximum(e.shared_ffn, 1.0)
            shared = products((e.up * width, e.hidden), (e.hidden, width))
            apart = np.where(e.shared_beside, np.maximum(shared - mixed, 0.0), shared)
            mixed = mixed + np.where((e.shared_ffn > 0) & ~e.shared_fused, apart, 0.0)
        us = us + np.where(e.experts > 0, (1 - plain) * mixed, 0.0)
    return np.where(np.asarray(tokens) > 0, us, 0.0) * e.layers * 1e-6


def communication_s(e: EngineShapes, tokens: Array) -> np.ndarray:
    """Seconds of two all-reduces per layer over the tensor parallel devices, and of the transfers between pipeline
    stages. If data parallel engines share experts, their tokens are gathered before and scattered after the experts,
    which moves as many bytes as an all-reduce over all devices (vLLM's default, `allgather_reducescatter`)."""
    message = np.asarray(tokens, dtype=float) * e.hidden * 2
    nodes = Topology(all_hardware()[e.device.name], e.per_node, e.node_gb_s)
    own = all_reduce_us(e.device, e.tp, message, nodes)
    met = all_reduce_us(e.device, e.tp * e.meeting, message * e.meeting, nodes) if (e.meeting > 1).any() else own
    us = e.layers * own + (e.layers - e.dense_layers) * met + e.dense_layers * own
    us = us + hand_over_us(e.device, e.tp, e.pp, message, nodes)
    return np.where(np.asarray(tokens) > 0, us, 0.0) * 1e-6


def logits_s(e: EngineShapes, outputs: Array) -> np.ndarray:
    """Seconds of the output layer's product with the vocabulary for `outputs` sampled tokens."""
    us = gemm_us(e.device.gemm, e.device.sms, outputs, e.vocab, e.hidden, np.maximum(e.weight_bytes, 2.0), e.clock)
    return np.where(np.asarray(outputs) > 0, us, 0.0) * 1e-6


def decode_attention_s(e: EngineShapes, seqs: Array, context: Array) -> np.ndarray:
    group = e.group * (1 + e.guesses)  # queries per key-value head
    context = context - e.windowed * np.maximum(context - seqs * e.window, 0)
    us = decode_us(e.device.decode, seqs, context, e.read_bytes, group)
    if (e.serial_us > 0).any():
        us = us + context * np.maximum(_one_block_us(e, seqs) - _slope_us(e), 0.0)
    if e.latents.on.any():
        fixed = decode_us(e.device.decode, seqs, 0.0, 0.0, group) + np.minimum(seqs, 1) * e.latent_token_us
        us = np.where(e.latents.on, fixed + context * _of_latents_us(e), us)
    return e.layers * us * 1e-6


def decode_context_s(e: EngineShapes, seqs: Array) -> np.ndarray:
    """Seconds that one more token of context adds to a decode step with `seqs` sequences, beyond any sliding window."""
    us = np.maximum(_slope_us(e), _one_block_us(e, seqs))
    return (1 - e.windowed) * e.layers * np.where(e.latents.on, _of_latents_us(e), us) * 1e-6


def _slope_us(e: EngineShapes) -> np.ndarray:
    """Microseconds of decode attention per token of context and layer."""
    return decode_slope_us(e.device.decode, e.read_bytes, e.group * (1 + e.guesses))


def _one_block_us(e: EngineShapes, seqs: Array) -> np.ndarray:
    """Like `_slope_us`, for kernels in which one block of threads reads all keys of a query head (`serial_us`)."""
    seqs, sms = np.maximum(seqs, 1), e.device.sms
    together = (e.group >= 8) & (seqs * e.kv_heads * 4 >= sms)
    return np.where(together, 0.0, e.serial_us * np.ceil(seqs * e.heads / sms) / seqs)


def _of_latents_us(e: EngineShapes) -> np.ndarray:
    """Like `_slope_us`, for latent attention."""
    c = e.device
    return e.latents.decode_slope_us(e.kv_bytes, 1 + e.guesses, c.decode.gb_s, c.prefill.tflops * e.clock)


def raise_us(e: EngineShapes) -> np.ndarray:
    """Microseconds per layer to expand a token's latent to keys and values; 0 without latent attention."""
    return e.latents.raise_us(e.device.gemm.tflops * e.attention_speed)


def prefill_attention_s(e: EngineShapes, seqs: Array, tokens: Array, pairs: Array) -> np.ndarray:
    c, shape = e.device, (e.heads, e.head_dim, e.prompt_bytes)
    pairs = pairs - e.windowed * np.maximum(pairs - tokens * e.window, 0)
    return e.layers * prefill_us(c.prefill, c.sms, seqs, tokens, pairs, *shape, e.prompt_speed, raise_us(e)) * 1e-6


def host_s(e: EngineShapes, seqs: Array) -> np.ndarray:
    h = e.device.host
    return (h.step_ms * e.step + h.sequence_ms * e.persistent * seqs) * 1e-3


def launches_s(e: EngineShapes) -> np.ndarray:
    """CPU seconds to launch a step's kernels without a CUDA graph."""
    kernels = e.layers * (e.launches + np.where(e.tp > 1, 2, 0))
    return e.python_host * kernels * e.launching * e.device.host.launch_us * 1e-6


def together_s(e: EngineShapes, on_device: Array, on_host: Array, one_by_one: Array) -> np.ndarray:
    """Seconds of a step, given its seconds on device and host. `one_by_one`: whether it runs without a CUDA graph."""
    on_device = np.where(one_by_one, np.maximum(on_device, launches_s(e)), on_device)
    return np.where(e.overlap, np.maximum(on_device, on_host), on_device + on_host)


def micro_batches(e: EngineShapes, seqs: Array) -> np.ndarray:
    """Number of micro batches of a step with `seqs` sequences: one per pipeline stage, but no more than sequences."""
    return np.minimum(np.maximum(seqs, 1.0), e.pp)


def under_way_s(e: EngineShapes, tokens: Array, keys: Array, step_s: Array, budget: Array) -> np.ndarray:
    """Seconds that the last `tokens` tokens of a prompt of `keys` tokens remain in the pipeline after their step of
    `step_s` seconds ends. They enter in pieces of `budget` tokens, and the last piece must pass all stages."""
    if np.all(e.pp == 1):
        return np.zeros_like(e.pp)
    parts = np.clip(np.ceil(tokens / budget), 1.0, e.pp)
    alone = prefill_step_s(e, 1.0, tokens / parts, tokens / parts * (keys - (tokens / parts - 1) / 2))
    return np.where(e.pp > 1, np.maximum(alone - (1 - (parts - 1) / e.pp) * step_s, 0.0), 0.0)


def decode_step_s(e: EngineShapes, seqs: Array, context: Array) -> np.ndarray:
    """Seconds from one token to the next while `seqs` sequences decode, with `context` tokens in total."""
    on_device = sum(decode_parts_s(e, seqs, context).values())
    return together_s(e, on_device, host_s(e, seqs), beyond_graphs(e, seqs)) / e.per_step


def beyond_graphs(e: EngineShapes, seqs: Array) -> np.ndarray:
    """Whether a decode step of this size runs without a CUDA graph."""
    return e.eager | (seqs / micro_batches(e, seqs) * (1 + e.guesses) > e.graph_decodes)


def guessing_s(e: EngineShapes, seqs: Array) -> np.ndarray:
    """Seconds to compute a step's draft tokens one after another. Attention in the few draft layers is neglected."""
    layer = (linear_s(e, seqs) + communication_s(e, seqs)) / e.layers
    return e.guesses * (e.guess_layers * layer + e.guess_heads * logits_s(e, seqs))


def decode_parts_s(e: EngineShapes, seqs: Array, context: Array) -> dict[str, np.ndarray]:
    """Device seconds of a decode step by component. With pp stages, pp micro batches of n/pp sequences alternate."""
    m = micro_batches(e, seqs)
    each = seqs / m
    tokens = each * (1 + e.guesses)
    parts = {
        "weights": linear_s(e, tokens) + logits_s(e, tokens),
        "attention": decode_attention_s(e, each, context / m),
        "communication": communication_s(e, tokens),
    }
    return parts | ({"guesses": guessing_s(e, each)} if (e.guesses > 0).any() else {})


def prefill_step_s(
    e: EngineShapes,
    seqs: Array,
    tokens: Array,
    pairs: Array,
    decodes: Array = 0.0,
    context: Array = 0.0,
    budget: Array = np.inf,
) -> np.ndarray:
    """Seconds of a step with `tokens` tokens of `seqs` prompts and with `decodes` decoding sequences (arguments as for
    StepTimes.prompts). Pipeline stages are assumed to be always busy, so a step takes as long as one of its micro
    batches of at most `budget` tokens."""
    m = micro_batches(e, np.maximum(seqs + decodes, tokens / budget))
    checked = decodes * (1 + e.guesses)
    all_tokens = tokens + checked
    once = linear_s(e, all_tokens / m) + communication_s(e, all_tokens / m) + logits_s(e, (seqs + checked) / m)
    if (e.guesses > 0).any():
        once = once + guessing_s(e, decodes / m)
    once = once + decode_attention_s(e, decodes / m, context / m)
    once = once + prefill_attention_s(e, seqs / m, tokens / m, pairs / m)
    one_by_one = e.eager | e.eager_prompts | (all_tokens > e.graph_tokens)
    return together_s(e, once, host_s(e, seqs + decodes), one_by_one)
