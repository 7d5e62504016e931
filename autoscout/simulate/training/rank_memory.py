"""Predicts the bytes on one rank of a training job, by component.

Weights, gradients and optimizer state are sharded by tp, pp, ep, the distributed optimizer and ZeRO. Activations follow
Korthikanti et al. 2022 ("Reducing Activation Recomputation in Large Transformer Models", section 4), counted from the
tensors that Megatron-core's layers keep for the backward pass, times the micro batches in flight in the pipeline
schedule. Logits, loss and communication buffers are added."""

import numpy as np

from autoscout.simulate.training import hub_layers as hub
from autoscout.simulate.training import latent_attention as latent
from autoscout.simulate.training.inputs import Inputs
from autoscout.simulate.training.rank_parameters import (
    frozen_layers,
    layer_weights,
    rank_weights,
    trained,
    without_experts,
)
from autoscout.simulate.training.stage import recomputed

Array = np.ndarray
GIB = 2.0**30  # bytes
PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "buffers", "process", "engine")
PRODUCTS = {"fp8": 1.0, "fp4": 0.5625}  # bytes kept per input of a linear layer; in 4 bits with a scale per 16 values
UNFUSED_NORM = 4.0  # additional bytes per element that an unfused norm keeps: an fp32 copy
LOGITS = 8.0  # bytes per logit at the peak: fp32 logits and their softmax
# Bytes per logit with Transformer Engine's fused loss, from 11 measured peaks on an H100
# (docs/lab/simulators-training.md). According to its code, the loss keeps only 2 to 4.
FUSED_LOGITS = 6.0
# Bytes per logit of PyTorch's loss under autocast on whole rows: 16-bit logits, fp32 logits, log-softmax, and the
# gradients of fp32 logits and log-softmax.
WHOLE_LOGITS = 18.0
# Bytes kept per element by layers with adapters in plain PyTorch, counted from litgpt's code. NORM: input of a norm
# (RMSNorm keeps an fp32 copy, LayerNorm the input); HEADS: a head's queries, keys, values and outputs; INNER:
# feed-forward tensors with and without a gate; ADAPTED: input of a linear layer with an adapter (a copy after dropout,
# and its mask).
NORM, HEADS, INNER, ADAPTED = (4.0, 2.0), 8.0, (6.0, 2.0), 3.0
# Constants of such layers that litgpt's code does not determine. EAGER_LOGITS: bytes per logit; EAGER_STREAM:
# additional bytes per element of the residual stream; QUANTISED_INPUT: bytes per input of a 4-bit linear layer;
# QUANTISED: bytes per 4-bit parameter. Fitted to litgpt's 38 LoRA and QLoRA rows (tests/tools/fit_adapters.py), with an
# error of 1.9 % on left-out models.
EAGER_LOGITS, EAGER_STREAM, QUANTISED_INPUT, QUANTISED = 10.7, 2.62, 2.87, 0.74


def rank_bytes(parts: dict[str, Array]) -> Array:
    return sum(parts.values(), np.zeros(1))


def peak(x: Inputs) -> dict[str, Array]:
    """(n,) GiB of each component on the fullest stage: first, last, or the first whose layers all have experts."""
    first, last = of_stage(x, np.zeros(1)), of_stage(x, x.pp - 1)
    if np.any(x.dense_layers):
        second = of_stage(x, all_with_experts(x))
        fuller = rank_bytes(second) > rank_bytes(first)
        first = {name: np.where(fuller, second[name], first[name]) for name in PARTS}
    fuller = rank_bytes(first) >= rank_bytes(last)
    return {name: np.broadcast_to(np.where(fuller, first[name], last[name]), x.n) / GIB for name in PARTS}


def all_with_experts(x: Inputs) -> Array:
    """(n,) index of the first stage whose layers all have experts, or else of the last stage."""
    return np.minimum(np.ceil(x.dense_layers / (np.ceil(x.layers / x.pp) / x.vpp)), x.pp - 1)


def of_stage(x: Inputs, index: Array, of_kind: Array | None = None) -> dict[str, Array]:
    """(n,) bytes of each component on a rank of pipeline stage `index`. `of_kind`: the stage's number of layers, if it
    depends on the kind of device."""
    b = 4.0 if x.dtype == "fp32" else 2.0
    first = index == 0
    layers = np.ceil(x.layers / x.pp) if of_kind is None else of_kind
    dense, expert = rank_weights(x, layers, without_experts(x, layers, index))
    inner = ~first & (index < x.pp - 1)
    positions = np.where(first | (x.pp == 1), 0.0, x.learned_positions * x.seq_len * x.hidden)
    dense = dense - positions - np.where(inner, x.vocab * x.hidden / x.tp, 0.0)
    parts = _states(x, dense, expert, b)
    parts["activations"], parts["logits"] = _activations(x, b, layers, index)
    if hub.on(x):
        beside = hub.gradients_at_peak(x, parts["gradients"], parts["activations"] + parts["logits"])
        parts["gradients"] = np.where(x.hub > 0, beside, parts["gradients"])
    if x.dtype == "fp16":  # the update makes fp32 copies of gradients, after activations are freed
        owned = parts["optimizer"] / 12
        # Bytes of fp16 gradients that are freed; none if all gradients share one buffer.
        freed = np.where((x.distopt > 0) | (x.zero > 0), 0.0, 2.0)
        copies = owned * (4 - freed) * (x.grad_bytes == 2)
        parts["gradients"] = parts["gradients"] + np.maximum(copies - parts["activations"] - parts["logits"], 0)
    parts["buffers"] = _buffers(x, b)
    parts["process"] = np.zeros(1)
    return _beside_engine(x, parts, dense + expert)


def _beside_engine(x: Inputs, parts: dict[str, Array], weights: Array) -> dict[str, Array]:
    """Adds the memory of an RL rollout engine and of the reference model's weights. The result is for the phase that
    needs more memory: the update, or the rollout (without gradients and activations)."""
    parts["engine"] = x.resident_gib * GIB
    if not (np.any(x.engine_gib) or np.any(x.reference_bytes)):
        return parts
    group = np.where(x.zero == 3, x.dp * x.cp, 1.0)
    reference = x.reference_bytes * weights / group
    parts["weights"] = parts["weights"] + reference
    away = ("gradients", "activations", "logits", "buffers")
    kept = {
        "weights": (parts["weights"] - reference) * x.kept_weights + reference,
        "optimizer": parts["optimizer"] * x.kept_state,
    }
    rollout = {**parts, **dict.fromkeys(away, np.zeros(1)), **kept, "engine": x.engine_gib * GIB}
    fuller = (x.engine_gib > 0) & (rank_bytes(rollout) > rank_bytes(parts))
    return {name: np.where(fuller, rollout[name], parts[name]) for name in parts}


def _states(x: Inputs, dense: Array, expert: Array, b: float) -> dict[str, Array]:
    """(n,) bytes of weights, gradients and optimizer state: 2 + 4 + 12 per parameter in mixed precision, 4 + 4 + 8 in
    fp32."""
    replicas = x.dp * x.cp
    group = np.where(np.isnan(x.zero_group), replicas, x.zero_group)
    expert_group = np.maximum(replicas * x.tp / (x.ep * x.etp), 1)
    moments = 8.0 if b == 4 else 4.0 + 2 * x.moments
    own, own_expert = trained(x, dense, expert)

    def over(sharded: Array, bytes_each: Array | float, dense: Array = own, expert: Array = own_expert) -> Array:
        return bytes_each * (dense / np.where(sharded, group, 1) + expert / np.where(sharded, expert_group, 1))

    # FSDP shards fp32 weights, which serve as master weights. Gathered weights count as buffers.
    alone = (x.zero == 3) & (x.masters_apart == 0)
    weights = over(x.zero == 3, np.where(alone, 4.0, b), dense, expert) * (1 - x.offload_weights)
    moments = np.where(alone, 8.0, moments)
    # With ZeRO-Offload, sharded gradients are moved to the host as soon as they are computed.
    away = np.where(x.zero >= 2, x.cpu_adam, 0.0)
    # QLoRA does not quantize the embedding and the output layer.
    embeddings = np.minimum(x.vocab * x.hidden * np.where(x.tied > 0, 1, 2), dense)
    quantised = QUANTISED * (dense - embeddings) + b * embeddings
    gradients = over(x.zero >= 2, x.grad_bytes) * (1 - away)
    state = over((x.distopt > 0) | (x.zero > 0), moments * (1 - x.offload))
    if hub.on(x):
        of_hub = hub.states(x, dense + expert, dense - x.vocab * x.hidden * (x.tied == 0), own + own_expert)
        weights, gradients, state = (
            np.where(x.hub > 0, *both) for both in zip(of_hub, (weights, gradients, state), strict=True)
        )
    return {"weights": np.where(x.lora == 2, quantised, weights), "gradients": gradients, "optimizer": state}


def _activations(x: Inputs, b: float, layers: Array, index: Array) -> tuple[Array, Array]:
    """((n,) bytes of activations at the peak, (n,) bytes of logits and loss)."""
    tokens = x.mbs * x.seq_len / x.cp
    own = tokens / np.where(x.sp > 0, x.tp, 1)
    dense = without_experts(x, layers, index) / np.where(layers > 0, layers, 1)
    plain, scores, selective = _layer_bytes(x, b, tokens, own, dense)
    if hub.on(x):
        plain, scores = (
            np.where(x.hub > 0, *both) for both in zip(hub.kept_of_hub(x, tokens), (plain, scores), strict=True)
        )
    inputs = np.maximum(b, x.hub) * own * x.hidden  # a layer's input: all that a recomputed layer keeps
    whole = recomputed(x)
    group = np.where((x.ar == 2) & (x.ar_method == 0) & np.isnan(x.recomputed), x.ar_layers, 1)
    kept = (1 - whole) * (plain + scores) + whole * inputs / group
    working = np.where(whole > 0, (plain + scores) * group, selective)
    stage = np.ceil((layers - frozen_layers(x)) / x.vpp) * kept
    interleaved = (x.pp - index - 1) * 2 + (x.vpp - 1) * x.pp + 1
    chunks = np.where(x.vpp > 1, np.fmin(interleaved, x.micro_batches * x.vpp), np.fmin(x.pp - index, x.micro_batches))
    ends = index == x.pp - 1
    logits = np.where(x.ce_fusion > 0, FUSED_LOGITS, LOGITS)
    split = tokens * x.vocab / x.tp * np.where(_eager(x) | (x.fused_activation == 0), EAGER_LOGITS, logits)
    if np.any(x.split_loss == 0):
        # DeepSpeed's 16-bit models run without autocast. (With autocast, the published GPT-2 runs of its autotuner
        # would not fit into memory.)
        whole = (x.split_loss == 0) & ((x.tp > 1) | (x.masters_apart == 0))
        split = np.where(whole, WHOLE_LOGITS * tokens * x.vocab, split)
    split = np.where(x.hub > 0, hub.LOGITS * tokens * x.vocab, split)
    head = np.where(ends, split + 2 * inputs, 0.0)
    masks = np.where(index == 0, x.dropout * own * x.hidden, 0.0)
    # In the backward pass, after the loss is freed, unfused attention holds the gradients of its scores before and
    # after the softmax. With plain operators it also holds scaled, masked and fp32 scores with their gradients.
    each = 2 * b + np.where(x.fused_activation == 0, 20.0, 0.0)
    gradients = np.where(x.attention == 0, each * tokens * x.heads * x.seq_len / x.tp, 0.0)
    back = np.where(x.attention == 0, np.maximum(working + gradients - head, 0), working)
    # The first stage computes the embedding's gradient last, when the micro batch's activations are already freed.
    embeds = (index == 0) & (x.lora == 0) & (frozen_layers(x) == 0)
    embedding = np.where(embeds, b * x.vocab * x.hidden / x.tp, 0.0)
    back = np.maximum(back, embedding - stage - head)
    if np.any(x.overlap_experts):
        back = back + _other_micro_batch(x, b, tokens, own, embedding)
    return chunks * (stage + masks) + back, head


def _other_micro_batch(x: Inputs, b: float, tokens: Array, own: Array, embedding: Array) -> Array:
    """(n,) additional bytes with overlap_experts, which runs the forward pass of one micro batch concurrently with the
    backward pass of another (Megatron-core's combined 1F1B, model_chunk_schedule_plan.py). The backward pass frees a
    layer whenever the forward pass keeps one, except that one layer overlaps: its attention is kept and its sorted
    tokens are exchanged before the other layer is freed. With delay_wgrad, inputs for its experts' weight gradients are
    also kept. The gradient of the `embedding` is computed after the other micro batch's loss."""
    matrices = np.where(x.gated > 0, 3.0, 2.0)
    waiting = np.where(x.delay_wgrad > 0, x.hidden + (matrices - 1) * x.expert_ffn, 0.0)
    copies = b * own * x.topk * (2 * x.hidden + waiting)
    layer = _attention_bytes(x, b, tokens, own) + copies
    meets = (x.overlap_experts > 0) & ~(x.micro_batches * x.vpp <= 1)
    return np.where(meets, np.maximum(layer, embedding), 0.0)


def _eager(x: Inputs) -> Array:
    """(n,) whether a row has adapters in plain PyTorch, without Transformer Engine."""
    return (x.lora > 0) & (x.te == 0)


def _layer_bytes(x: Inputs, b: float, tokens: Array, own: Array, share: Array) -> tuple[Array, Array, Array]:
    """((n,) bytes that a layer keeps per micro batch without unfused scores, (n,) bytes of unfused scores, (n,) bytes
    that selective recomputation saves), averaged over layers with experts and the `share` without. Split by tp:
    queries, keys, values, attention output, inner tensors of the feed-forward block. Split only by sp: inputs and
    outputs of both norms, dropout masks. With FP8, GEMMs keep 8-bit inputs. Adapters in plain PyTorch: see NORM."""
    h, gated, eager = x.hidden, x.gated > 0, _eager(x)
    product = PRODUCTS.get(x.dtype, b)
    matrices = np.where(gated, 3.0, 2.0)
    activated = np.where(gated & (x.fused_gate == 0), b, 0.0)  # input of the multiplication by the gate
    inner = (matrices - 1) * b + product + activated
    dense = tokens * x.ffn / x.tp * np.where(eager, np.where(gated, *INNER), inner)
    inside = x.expert_ffn * inner
    sparse = own * x.topk * ((b + product) * h + inside) + own * x.experts * 4 + tokens * x.shared_ffn / x.tp * inner
    sparse = sparse * (1 - share)  # the experts' part of a mean over all layers
    others = x.heads * x.head_dim + (matrices - 1) * h + x.ffn  # input widths of the other linear layers
    copies = np.where(x.lora > 0, ADAPTED * tokens * (h + np.where(x.adapters > 0, others, 0.0)), 0.0)
    copies = copies + np.where(x.lora == 2, QUANTISED_INPUT * tokens * (h + others), 0.0)
    softmax = np.where(x.fused_activation == 0, 4.0, 0.0)  # fp32 copy of the softmax
    scores = tokens * x.heads * x.seq_len / x.tp * (b + softmax + (b + 1) * x.dropout)
    unfused = np.where((x.attention == 0) & (x.again_core == 0), scores, 0.0)
    block = np.where(x.experts > 0, sparse + share * dense, dense)
    output = np.where(x.experts > 0, own * x.topk * x.expert_ffn * (1 - share), tokens * x.ffn / x.tp) * product
    repeated = np.where(x.experts > 0, sparse + (1 - share) * product * own * h, dense + product * own * h)
    again = np.where(x.again_block > 0, repeated, x.again_activation * output)
    again = again + x.again_norms * product * own * h + x.again_up * latent.again(x, tokens, own, b, product)
    # If the attention core is recomputed, its output is kept twice.
    twice = x.again_core * (x.attention > 0) * b * tokens * x.heads * x.head_dim / x.tp
    return _attention_bytes(x, b, tokens, own) + block + copies + twice - again, unfused, again


def _attention_bytes(x: Inputs, b: float, tokens: Array, own: Array) -> Array:
    """(n,) bytes that a layer keeps outside of the feed-forward block: norms, queries, keys, values, attention
    output."""
    gated, eager = x.gated > 0, _eager(x)
    eight = x.dtype in PRODUCTS
    product = PRODUCTS.get(x.dtype, b)
    plain = 2 * b + 2 * product + 2 * x.dropout
    plain = plain + np.where(x.fused_norm == 0, 2 * UNFUSED_NORM, 0.0)
    stream = own * x.hidden * np.where(eager, x.norms * np.where(gated, *NORM) + EAGER_STREAM, plain)
    rotated = np.where((x.fused_activation == 0) & (x.learned_positions == 0), b * (x.heads + x.kv_heads), 0.0)
    qkv = tokens * x.head_dim * (x.heads * (2 * b + eight) + 2 * x.kv_heads * b + rotated) / x.tp
    # The norms of heads keep their inputs. Values are views of the same projection output, so all of it is kept. Each
    # head also has an fp32 scale.
    made = b * x.head_dim * (x.heads + 2 * x.kv_heads) + 4 * (x.heads + x.kv_heads)
    qkv = qkv + x.qk_norm * tokens * made / x.tp
    attended = np.where(eager, HEADS * tokens * x.head_dim * x.heads / x.tp, qkv)  # keys and values repeated per head
    attended = attended + np.where(x.kv_lora_rank > 0, latent.kept_of_latents(x, own, b, product), 0.0)
    return stream + attended


def _buffers(x: Inputs, b: float) -> Array:
    """(n,) bytes of communication buffers: ZeRO-3's two gathered layers (the running and the next one), kept weights
    and second copy (hpZ); copies of gradients to reduce; gathered inputs of sequence parallelism."""
    gathered = np.where(x.zero == 3, 2 * b * layer_weights(x) + x.grad_bytes * layer_weights(x), 0.0)
    inputs = np.where((x.sp > 0) & (x.tp > 1), 2 * b * x.mbs * x.seq_len / x.cp * x.hidden, 0.0)
    whole = sum(rank_weights(x), np.zeros(1))
    kept = np.where(x.zero == 3, b * np.minimum(x.kept_elements, whole), 0.0)
    near = np.where((x.zero == 3) & (x.near_group > 0), b * whole / np.maximum(x.near_group, 1), 0.0)
    return gathered + inputs + kept + near + b * x.copied_elements
