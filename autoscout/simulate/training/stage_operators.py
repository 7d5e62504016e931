"""Stages cut between operators, as Aceso plans them: what each holds, and what is left when some of its operators are
recomputed.

A model is its embedding, 13 operators a layer, and the norm and loss at its end. A column `stages` describes every
stage as "first operator:operators:tp:share recomputed:1 if its memory was recorded:dp", joined by "|"; dp may be left
out.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from autoscout.simulate.encode import take
from autoscout.simulate.member import Columns
from autoscout.simulate.training.inputs import Inputs

Array = np.ndarray
NAMES = ("stage_from", "stage_operators", "stage_tp", "stage_recomputed", "stage_recorded", "stage_dp")


class Operator(NamedTuple):
    """`reads`: tensors that pass into it, with those that only pass by; `saves`: those that its backward pass needs;
    `share` of a GPT layer's weights; `output`: those that Aceso's profile counts for it."""

    reads: str
    saves: str
    output: str
    share: float = 0.0


# Tensors: x residual stream, a its norm, q queries, keys and values, s scores, p their softmax, m and r after dropout
# (mask, result), c context, d output projection, n a dropout mask of the stream, y the stream after attention, e its
# norm, f and g before and after the activation, h second product, o another mask of the stream.
LAYER = (
    Operator("x", "x", "a"),  # norm
    Operator("ax", "a", "q", 3 / 12),  # queries, keys and values
    Operator("qx", "q", "s"),  # scores
    Operator("sqx", "p", "p"),  # softmax
    Operator("pqx", "m", "mr"),  # dropout
    Operator("rqx", "rq", "c"),  # context
    Operator("cx", "c", "d", 1 / 12),  # output projection
    Operator("dx", "n", "nd"),  # dropout, residual
    Operator("y", "y", "e"),  # norm
    Operator("ey", "e", "f", 4 / 12),  # first product
    Operator("fy", "f", "g"),  # activation
    Operator("gy", "g", "h", 4 / 12),  # second product
    Operator("hy", "o", "oh"),  # dropout, residual
)
OPERATORS = len(LAYER)


def described(
    operators: Sequence[float], devices: Sequence[float], tp: Sequence[float], shares: Sequence[float], ranks: float
) -> str:
    """The text of a plan of which the first `ranks` ranks were recorded."""
    first = np.concatenate([[0.0], np.cumsum(operators)[:-1]])
    before = np.concatenate([[0.0], np.cumsum(devices)[:-1]])
    dp = np.maximum(np.asarray(devices) / tp, 1)
    parts = zip(first, operators, tp, shares, before < ranks, dp, strict=True)
    return "|".join(f"{a:g}:{n:g}:{t:g}:{share:g}:{seen:d}:{d:g}" for a, n, t, share, seen, d in parts)


def by_stage(columns: Columns) -> tuple[Columns, Array | None]:
    """Rows with a column `stages`, repeated once per stage, and the row that each came from; None where there are no
    such rows."""
    stages = np.atleast_1d(np.asarray(columns.get("stages", ""), dtype=str))
    if not any(stages):
        return columns, None
    cut = [text.split("|") if text else [""] for text in stages.tolist()]
    of = np.repeat(np.arange(len(cut)), [len(parts) for parts in cut])
    told = [[float(v) for v in part.split(":")] if part else [] for parts in cut for part in parts]
    each = take(columns, of)
    at = np.concatenate([np.arange(len(parts)) for parts in cut]).astype(float)
    for i, name in enumerate(NAMES):
        each[name] = np.array([v[i] if i < len(v) else np.nan for v in told])
    return {**{k: v for k, v in each.items() if k != "stages"}, "stage_at": at}, of


def of_one_stage(x: Inputs) -> Array:
    """Whether a row describes one stage, cut between operators."""
    return ~np.isnan(x.stage_operators)


def as_stage(x: Inputs) -> Inputs:
    """The rows with the degrees of the stage that they describe, whose replicas share its micro batches."""
    cut = of_one_stage(x)
    if not np.any(cut):
        return x
    dp = np.where(np.isnan(x.stage_dp), 1.0, x.stage_dp)
    own = {"tp": x.stage_tp, "dp": dp, "mbs": x.mbs / dp}
    return Inputs(**{**vars(x), **{name: np.where(cut, value, getattr(x, name)) for name, value in own.items()}})


def tensor_sizes(x: Inputs, b: float, tokens: Array, own: Array) -> dict[str, Array]:
    """Bytes of every tensor of a layer, (n,) each."""
    stream, score = own * x.hidden, tokens * x.heads * x.seq_len / x.tp
    inner, context = tokens * x.ffn / x.tp, tokens * x.heads * x.head_dim / x.tp
    bytes_of = {
        **{"xadyeh": b * stream, "no": x.dropout * stream, "spr": b * score, "m": x.dropout * score},
        **{"c": b * context, "fg": b * inner, "q": b * context * (1 + 2 * x.kv_heads / x.heads)},
    }
    return {name: np.broadcast_to(each, x.n) for names, each in bytes_of.items() for name in names}


def weights(first: float, number: float, layers: float) -> float:
    """Layers' worth of weights among `number` operators from the `first`; 0 is the embedding."""
    return sum(LAYER[place].share for place in places_of(first, number, layers))


def runs(first: float, number: float, layers: float, recomputed: float, size: dict[str, float]) -> tuple[Array, Array]:
    """How often a stage runs each operator of a layer for one micro batch, forward, and how often once more: (13,)."""
    places = places_of(first, number, layers)
    again = recomputed_of(places, round(recomputed * number), size)
    return np.bincount(places, minlength=OPERATORS), np.bincount(places, again, OPERATORS)


def kept_of_stage(
    first: float, number: float, layers: float, recomputed: float, size: dict[str, float]
) -> tuple[float, float]:
    """Bytes that a stage keeps of a micro batch, and the most that its backward pass holds again at once. `size`:
    bytes of every tensor. An operator keeps what it needs, a run of recomputed ones only what passes into the first."""
    places = places_of(first, number, layers)
    again = recomputed_of(places, round(recomputed * number), size)
    saved: set[tuple[int, str]] = set()
    most = 0.0
    layer = np.cumsum([place == 0 for place in places])
    rows = zip(places, again, layer.tolist(), strict=True)
    for (of, repeats), group in groupby(rows, key=lambda row: (row[2], row[1])):
        run = [place for place, _, _ in group]
        if repeats:
            saved |= {(of, tensor) for tensor in LAYER[run[0]].reads}
            most = max(most, _bytes({t for place in run for t in LAYER[place].saves}, size))
        else:
            saved |= {(of, tensor) for place in run for tensor in LAYER[place].saves}
    return _bytes((tensor for _, tensor in saved), size), most


def recomputed_of(places: list[int], many: int, size: dict[str, float]) -> list[bool]:
    """Which of the operators Aceso recomputes (get_next_recompute_op_group of microsoft/SuperScaler): all of the kind
    with the largest outputs in the stage, each with its successor, then all of the next kind."""
    again = [many >= len(places)] * len(places)
    chosen: set[int] = {0}  # never the norm that begins a layer, except as a successor
    while sum(again) < many:
        total = {p: places.count(p) * _bytes(LAYER[p].output, size) for p in dict.fromkeys(places) if p not in chosen}
        if not total:
            break
        largest = max(total, key=lambda place: total[place])
        chosen |= {largest, (largest + 1) % OPERATORS}
        for i, place in enumerate(places):
            if place == largest and sum(again) < many:
                again[i : i + 2] = [True] * len(again[i : i + 2])
    return again


def _bytes(tensors: Iterable[str], size: dict[str, float]) -> float:
    return sum(size[tensor] for tensor in tensors)


def places_of(first: float, number: float, layers: float) -> list[int]:
    """The operators' places in their layers."""
    last = min(first + number - 1, OPERATORS * layers)
    return [(i - 1) % OPERATORS for i in range(max(int(first), 1), int(last) + 1)]
