"""One NPU's share of a transformer under a parallel layout: products, bytes of memory, bytes sent, bytes kept.

Layout: `dp` replicas × `tp` (each layer's products) × `sp` (the sequence; keys and values are gathered) × `pp` stages;
`ep` of the replicas share the experts. `zero`: 0 nothing, 1 the optimizer's state, 3 the weights too are sharded over
the replicas (and the shares of a sequence). All sizes in bytes, of bf16 with Adam's 12 bytes of state a weight.
Sources: Narayanan et al. 2021 (FLOPs, pipeline); Korthikanti et al. 2022 (activations); Rajbhandari et al. 2020 (ZeRO).
"""

from typing import Any

import msgspec
import numpy as np

from autoscout.simulate.member import Columns

Array = np.ndarray
BYTES, STATE = 2.0, 12.0


class Layout(msgspec.Struct, frozen=True):
    """(n,) each. `micro`: micro batches of a step of one replica; `stage`: layers of the fullest stage; `tokens`: of a
    micro batch on one NPU."""

    dp: Array
    tp: Array
    sp: Array
    pp: Array
    ep: Array
    mbs: Array
    zero: Array
    recomputed: Array
    micro: Array
    stage: Array
    tokens: Array


class Share(msgspec.Struct, frozen=True):
    """Weights of one NPU, (n,) each: `dense` and `expert` ones of one layer, its share of the `head`, and `weights` of
    its whole stage with the head."""

    dense: Array
    expert: Array
    head: Array
    weights: Array


def layout(columns: Columns, m: Columns) -> Layout:
    """`m`: the model and its traffic."""
    dp, tp, sp, pp = (_whole(columns, name) for name in ("dp", "tp", "sp", "pp"))
    mbs = _whole(columns, "mbs")
    batch = np.maximum(m["batch"] // dp, 1)
    return Layout(
        dp=dp,
        tp=tp,
        sp=sp,
        pp=pp,
        ep=_whole(columns, "ep"),
        mbs=np.minimum(mbs, batch),
        zero=_whole(columns, "zero", 0),
        recomputed=np.asarray(columns.get("recompute", False), dtype=bool),
        micro=np.maximum(batch // mbs, 1),
        stage=-(-m["layers"] // pp),
        tokens=np.minimum(mbs, batch) * m["length"] / sp,
    )


def share(m: Columns, at: Layout) -> Share:
    h, width = m["hidden"], m["heads"] * m["head_dim"]
    attention = 2 * h * width + 2 * h * m["kv_heads"] * m["head_dim"]
    mlp = (3 if m["gated"] else 2) * h
    dense = (attention + (0 if m["experts"] else mlp * m["ffn"])) / at.tp
    expert = mlp * m["expert_ffn"] * m["experts"] / at.ep / at.tp if m["experts"] else 0.0 * at.tp
    head = m["vocab"] * h / at.tp
    return Share(dense=dense, expert=expert, head=head, weights=at.stage * (dense + expert) + head)


def forward_flops(m: Columns, at: Layout, tokens: Any, context: Any) -> Array:
    """Of one layer and micro batch on one NPU; `context`: tokens that each attends to."""
    h, width = m["hidden"], m["heads"] * m["head_dim"]
    attention = 2 * h * width + 2 * h * m["kv_heads"] * m["head_dim"]
    mlp = (3 if m["gated"] else 2) * h * (m["expert_ffn"] * m["topk"] if m["experts"] else m["ffn"])
    return 2 * tokens * (attention + mlp + 2 * width * context) / at.tp


def activation_bytes(m: Columns, at: Layout) -> Array:
    """Bytes that one layer keeps of one micro batch until its backward pass, with fused attention (34 bytes per token
    and channel, no scores); a recomputed layer keeps only its input."""
    wide = (m["expert_ffn"] * m["topk"] if m["experts"] else m["ffn"]) / (4 * m["hidden"])
    kept = m["hidden"] * at.tokens * (10 + (8 + 16 * wide) / at.tp)
    return np.where(at.recomputed, BYTES * m["hidden"] * at.tokens, kept)


def memory_gib(m: Columns, at: Layout) -> Array:
    """GiB of the fullest NPU: of the first stage, which keeps the activations of pp micro batches."""
    s = share(m, at)
    if m["serving"]:
        cache = 2 * BYTES * m["kv_heads"] * m["head_dim"] * m["longest"] * at.stage / (at.tp * at.sp)
        return (BYTES * s.weights + cache * at.mbs * at.micro) / 2**30
    replicas = at.dp * at.sp
    sharded = s.weights / replicas
    states = np.where(at.zero >= 1, STATE * sharded, STATE * s.weights)
    whole = np.where(at.zero >= 3, 2 * BYTES * (sharded + s.dense + s.expert), 2 * BYTES * s.weights)
    kept = activation_bytes(m, at) * at.stage * np.minimum(at.pp, at.micro)
    logits = 2 * BYTES * at.tokens * m["vocab"] / at.tp
    return (states + whole + kept + logits) / 2**30


def _whole(columns: Columns, name: str, absent: int = 1) -> Array:
    value = np.asarray(columns.get(name, absent))
    return np.where(np.isnan(value), absent, value).astype(np.int64) if value.dtype.kind == "f" else value
