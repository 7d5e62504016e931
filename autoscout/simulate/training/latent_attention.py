"""Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1) as Megatron-core trains it: each tensor
parallel rank projects all tokens down to latents, and the latents up to its own heads.

A head's queries and keys are wider than its values. With their mean as `head_dim`, the models of ordinary attention
give the right cost of scores, keys, values and output; this file has the remaining differences. Arrays are (n,);
`x.kv_lora_rank` is 0 for rows with ordinary attention."""

from collections.abc import Callable
from typing import Any

import numpy as np

from autoscout.simulate.training.inputs import Inputs

Array = np.ndarray


def weights(x: Inputs) -> Array:
    """Number of a layer's attention parameters over all tensor parallel ranks. The down projections and the latents'
    norms are replicated, so they count once per rank."""
    replicated = x.hidden * (x.q_lora_rank + _down(x)) + x.q_lora_rank + x.kv_lora_rank
    up = _from_queries(x) * _query(x) + x.kv_lora_rank * (x.qk_nope_head_dim + x.v_head_dim)
    return x.tp * replicated + x.heads * (up + x.v_head_dim * x.hidden)


def kept_of_latents(x: Inputs, own: Array, b: float, product: float) -> Array:
    """Bytes that a layer keeps for latents: the outputs of the down projections (latents and positional key), and the
    normalised latents, which are the inputs of the up projections. `own`: tokens of a rank; `b`, `product`: bytes per
    value and per input of a linear layer."""
    return own * (b * (x.q_lora_rank + _down(x)) + product * (x.q_lora_rank + x.kv_lora_rank))


def again(x: Inputs, tokens: Array, own: Array, b: float, product: float) -> Array:
    """Bytes that a layer saves by recomputing the up projections: queries, keys and values, and the norms' outputs."""
    heads = b * (2 * _query(x) + x.v_head_dim) * x.heads / x.tp
    return tokens * heads + own * product * (x.q_lora_rank + x.kv_lora_rank)


def moved(x: Inputs, tokens: Array, b: int) -> Array:
    """Bytes that memory-bound operators move between projections and scores: unfused rotary embedding, concatenation of
    the two parts of queries and keys, copies of values."""
    each = 10 * x.qk_rope_head_dim + 4 * _query(x) + 2 * x.v_head_dim
    return each * tokens * x.heads / x.tp * b


def projections(x: Inputs, tokens: Array, own: Array, linear: Callable[[Array, Array, Array], Any]) -> tuple[Any, Any]:
    """(times of all projections, times of the up projections). `linear`: a function from (tokens, outputs, inputs) to a
    linear layer's times."""
    heads = x.heads / x.tp
    down = linear(own, np.maximum(x.q_lora_rank + _down(x), 1), x.hidden)
    up = linear(tokens, np.maximum(heads * _query(x), 1), _from_queries(x))
    up = up + linear(tokens, np.maximum(heads * (x.qk_nope_head_dim + x.v_head_dim), 1), np.maximum(x.kv_lora_rank, 1))
    return down + up + linear(tokens, x.hidden, np.maximum(heads * x.v_head_dim, 1)), up


def _down(x: Inputs) -> Array:
    """The width of the down projection of keys and values, including the positional key."""
    return x.kv_lora_rank + x.qk_rope_head_dim


def _query(x: Inputs) -> Array:
    return x.qk_nope_head_dim + x.qk_rope_head_dim


def _from_queries(x: Inputs) -> Array:
    """The input width of the projection to queries: the width of the queries' latent, or the hidden size without such a
    latent."""
    return np.where(x.q_lora_rank > 0, x.q_lora_rank, x.hidden)
