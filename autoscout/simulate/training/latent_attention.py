"""Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1) as in Megatron-core: each tensor parallel
rank projects all tokens down to latents, and up to its own heads.

A head's queries and keys are wider than its values; `head_dim` is their mean, with which scores, keys, values and the
output cost as much as in other models. This file has the differences. (n,) each; `x.kv_lora_rank` is 0 for rows without
latents.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from autoscout.simulate.training.inputs import Inputs

Array = np.ndarray


def weights(x: Inputs) -> Array:
    """Parameters of a layer's attention over all its ranks. The down projections and the norms of the latents are on
    every tensor parallel rank and counted once for each."""
    replicated = x.hidden * (x.q_lora_rank + _down(x)) + x.q_lora_rank + x.kv_lora_rank
    up = _from_queries(x) * _query(x) + x.kv_lora_rank * (x.qk_nope_head_dim + x.v_head_dim)
    return x.tp * replicated + x.heads * (up + x.v_head_dim * x.hidden)


def kept_of_latents(x: Inputs, own: Array, b: float, product: float) -> Array:
    """Bytes of the latents that a layer keeps: inputs of their norms (keys' and values' together with the positions,
    which come from one product) and of the products after them. `own`: tokens of a rank."""
    return own * (b * (x.q_lora_rank + _down(x)) + product * (x.q_lora_rank + x.kv_lora_rank))


def again(x: Inputs, tokens: Array, own: Array, b: float, product: float) -> Array:
    """Bytes that a layer saves by projecting up again: queries, keys and values, and the norms' outputs."""
    heads = b * (2 * _query(x) + x.v_head_dim) * x.heads / x.tp
    return tokens * heads + own * product * (x.q_lora_rank + x.kv_lora_rank)


def moved(x: Inputs, tokens: Array, b: int) -> Array:
    """Bytes that plain operators read and write between the projections and the scores: rotary positions (unfused),
    queries and keys joined from their two parts, values copied."""
    each = 10 * x.qk_rope_head_dim + 4 * _query(x) + 2 * x.v_head_dim
    return each * tokens * x.heads / x.tp * b


def projections(x: Inputs, tokens: Array, own: Array, linear: Callable[[Array, Array, Array], Any]) -> tuple[Any, Any]:
    """(Down, up and output projections; up alone). `linear`: a product's times by (tokens, outputs, inputs)."""
    heads = x.heads / x.tp
    down = linear(own, np.maximum(x.q_lora_rank + _down(x), 1), x.hidden)
    up = linear(tokens, np.maximum(heads * _query(x), 1), _from_queries(x))
    up = up + linear(tokens, np.maximum(heads * (x.qk_nope_head_dim + x.v_head_dim), 1), np.maximum(x.kv_lora_rank, 1))
    return down + up + linear(tokens, x.hidden, np.maximum(heads * x.v_head_dim, 1)), up


def _down(x: Inputs) -> Array:
    """The width that keys and values are projected down to, with the positions of keys."""
    return x.kv_lora_rank + x.qk_rope_head_dim


def _query(x: Inputs) -> Array:
    return x.qk_nope_head_dim + x.qk_rope_head_dim


def _from_queries(x: Inputs) -> Array:
    """Inputs of the projection to queries: their latent, or the layer's input."""
    return np.where(x.q_lora_rank > 0, x.q_lora_rank, x.hidden)
