"""Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1) as Megatron-core builds it: tokens are
projected down to latents on every tensor parallel rank alike, and up to the heads of each.

A head's queries and keys are wider than its values; `head_dim` is the mean of both, with which scores, keys, values and
the output cost and keep what those of other models do. Here is what differs from them. (n,) each; `x.kv_lora_rank` is 0
where a row has none.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from autoscout.simulate.training.inputs import Inputs

Array = np.ndarray


def weights(x: Inputs) -> Array:
    """Parameters of a layer's attention over all its ranks. What every tensor parallel rank has counts for each: the
    projections down, and the norms of the latents."""
    replicated = x.hidden * (x.q_lora_rank + _down(x)) + x.q_lora_rank + x.kv_lora_rank
    up = _from_queries(x) * _query(x) + x.kv_lora_rank * (x.qk_nope_head_dim + x.v_head_dim)
    return x.tp * replicated + x.heads * (up + x.v_head_dim * x.hidden)


def kept_of_latents(x: Inputs, own: Array, b: float, product: float) -> Array:
    """Bytes of the latents that a layer keeps, as inputs of their norms (of keys and values with the positions, which
    one product makes) and of the products after those. `own`: tokens of a rank."""
    return own * (b * (x.q_lora_rank + _down(x)) + product * (x.q_lora_rank + x.kv_lora_rank))


def again(x: Inputs, tokens: Array, own: Array, b: float, product: float) -> Array:
    """Bytes that a layer need not keep if it projects up again: queries, keys and values, and the norms' outputs."""
    heads = b * (2 * _query(x) + x.v_head_dim) * x.heads / x.tp
    return tokens * heads + own * product * (x.q_lora_rank + x.kv_lora_rank)


def moved(x: Inputs, tokens: Array, b: int) -> Array:
    """Bytes read and written between the projections and the scores by plain operators: positions turned (as without
    fusion), queries and keys joined from their two parts, values copied."""
    each = 10 * x.qk_rope_head_dim + 4 * _query(x) + 2 * x.v_head_dim
    return each * tokens * x.heads / x.tp * b


def projections(x: Inputs, tokens: Array, own: Array, linear: Callable[[Array, Array, Array], Any]) -> tuple[Any, Any]:
    """(Down, up and the output; up alone). `linear`: a product's times by (tokens, outputs, inputs)."""
    heads = x.heads / x.tp
    down = linear(own, np.maximum(x.q_lora_rank + _down(x), 1), x.hidden)
    up = linear(tokens, np.maximum(heads * _query(x), 1), _from_queries(x))
    up = up + linear(tokens, np.maximum(heads * (x.qk_nope_head_dim + x.v_head_dim), 1), np.maximum(x.kv_lora_rank, 1))
    return down + up + linear(tokens, x.hidden, np.maximum(heads * x.v_head_dim, 1)), up


def _down(x: Inputs) -> Array:
    """Keys and values, and the positions of keys."""
    return x.kv_lora_rank + x.qk_rope_head_dim


def _query(x: Inputs) -> Array:
    return x.qk_nope_head_dim + x.qk_rope_head_dim


def _from_queries(x: Inputs) -> Array:
    """Inputs of the projection to queries: their latent, or the layer's whole input."""
    return np.where(x.q_lora_rank > 0, x.q_lora_rank, x.hidden)
