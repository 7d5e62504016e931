"""Counts the parameters of a layer and of a rank, and how many of them are trained: all, only adapters (LoRA), or only
layers after frozen ones. Only trained parameters have gradients and optimizer state, and are exchanged between
replicas."""

import numpy as np

from autoscout.simulate.training import latent_attention as latent
from autoscout.simulate.training.inputs import Inputs

Array = np.ndarray


def weights_of_layer(x: Inputs) -> tuple[Array, Array]:
    """((n,) parameters split by tp, (n,) parameters of experts) of one layer, summed over all its ranks. In MoE models,
    the layer is one with experts."""
    h = x.hidden
    attention = np.where(x.kv_lora_rank > 0, latent.weights(x), h * x.head_dim * (2 * x.heads + 2 * x.kv_heads))
    matrices = np.where(x.gated > 0, 3.0, 2.0)
    moe = x.experts > 0
    norms = np.where(x.bias > 0, 4.0, 2.0) * h
    of_heads = np.where(x.kv_lora_rank > 0, 0.0, (x.heads + 2 * x.kv_heads) * x.head_dim)
    biases = np.where(x.bias > 0, of_heads + h + x.ffn + h, x.qkv_bias * of_heads)
    norms = norms + x.qk_norm * 2 * x.head_dim * x.tp  # norms are replicated on every tp rank
    dense = attention + norms + biases + np.where(moe, h * (x.experts + matrices * x.shared_ffn), matrices * h * x.ffn)
    return dense, np.where(moe, x.experts * matrices * h * x.expert_ffn, 0.0)


def weights_of_layers(x: Inputs, layers: Array, first: Array) -> tuple[Array, Array]:
    """Like `weights_of_layer`, for `layers` layers, of which `first` have no experts."""
    dense, expert = weights_of_layer(x)
    instead = x.hidden * (np.where(x.gated > 0, 3.0, 2.0) * (x.ffn - x.shared_ffn) - x.experts)
    return layers * dense + first * instead, (layers - first) * expert


def without_experts(x: Inputs, layers: Array, index: Array) -> Array:
    """(n,) how many of the `layers` of pipeline stage `index` have no experts. These are the model's first layers,
    which are assigned to stages chunk by chunk."""
    if not np.any(x.dense_layers):
        return np.zeros(1)
    chunk = layers / x.vpp
    rounds = np.floor(x.dense_layers / (x.pp * chunk))
    left = x.dense_layers - rounds * x.pp * chunk
    return rounds * chunk + np.clip(left - index * chunk, 0, chunk)


def layer_weights(x: Inputs) -> Array:
    """(n,) parameters of one layer on one rank, before sharding over replicas."""
    dense, expert = weights_of_layer(x)
    return dense / x.tp + expert / (x.ep * x.etp)


def rank_weights(x: Inputs, layers: Array | None = None, first: Array | None = None) -> tuple[Array, Array]:
    """((n,) dense parameters, (n,) parameters of experts) of the fullest rank, which has an embedding, before sharding
    over replicas. `layers`: layers of its stage, of which `first` have no experts."""
    deep: Array = np.ceil(x.layers / x.pp) if layers is None else layers
    plain: Array = np.where(x.pp == 1, x.dense_layers, 0.0) if first is None else first
    dense, expert = weights_of_layers(x, deep, plain)
    embedding = x.vocab * x.hidden / x.tp * np.where((x.pp == 1) & (x.tied == 0), 2, 1)
    positions = x.learned_positions * x.seq_len * x.hidden
    return dense / x.tp + embedding + positions, expert / (x.ep * x.etp)


def trained(x: Inputs, dense: Array, expert: Array) -> tuple[Array, Array]:
    """The numbers of trained parameters among a rank's `dense` and `expert` parameters (see `rank_weights`)."""
    frozen = frozen_layers(x)
    below, experts_below = weights_of_layers(x, frozen, np.minimum(frozen, x.dense_layers))
    # The embedding before frozen layers is also frozen, unless the output layer shares it.
    ends = np.where((frozen > 0) & (x.tied == 0), x.vocab * x.hidden / x.tp, 0.0)
    dense = dense - below / x.tp - ends
    expert = expert - experts_below / (x.ep * x.etp)
    return np.where(x.lora > 0, adapters(x) / x.pp, dense), np.where(x.lora > 0, 0.0, expert)


def adapters(x: Inputs) -> Array:
    return x.lora_rank * x.layers * adapter_width(x)


def adapter_width(x: Inputs) -> Array:
    """(n,) summed input and output widths of the linear layers with adapters in a transformer layer."""
    attended = x.heads * x.head_dim
    attention = (x.hidden + attended + 2 * x.kv_heads * x.head_dim) + (attended + x.hidden)
    feed_forward = np.where(x.gated > 0, 3.0, 2.0) * x.ffn + 2 * x.hidden
    every = attention + np.where(x.adapters > 0, feed_forward, 0.0)
    return np.where(np.isnan(x.adapter_width), every, x.adapter_width)


def frozen_layers(x: Inputs) -> Array:
    """(n,) frozen layers of a rank, which have no backward pass. 0 with a pipeline, where the stages without frozen
    layers determine time and memory."""
    return np.where(x.pp == 1, np.minimum(x.frozen_layers, x.layers), 0.0)
