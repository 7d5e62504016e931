"""Seconds of one micro batch on a stage that is cut between operators (stage_operators.py): of each operator, as often
as the stage runs and repeats it. And steps of plans from those of their stages."""

import numpy as np

from autoscout.simulate.hardware.collectives import Topology
from autoscout.simulate.hardware.device import Hardware
from autoscout.simulate.training.inputs import Inputs
from autoscout.simulate.training.layer import Times
from autoscout.simulate.training.stage import IN_STAGE, Parts, embedding, gradients_apart, sends, waiting
from autoscout.simulate.training.stage_operators import (
    LAYER,
    OPERATORS,
    of_one_stage,
    runs,
    tensor_sizes,
    weights,
)

Array = np.ndarray
# Of LAYER: where an all-reduce follows with tensor parallelism, forward and, of its gradient, backward.
_REDUCED, _REDUCED_BACK = (6, 11), (1, 9)
_MICRO_BATCH = ("compute", "recompute", "tp", "cp", "ep", "pp", "host")


def layers_of(x: Inputs, otherwise: Array) -> Array:
    """Layers' worth of weights of the stage that a row describes; `otherwise` where it describes none."""
    told = np.broadcast_arrays(x.stage_from, x.stage_operators, x.layers)
    found = np.array([weights(*row) if row[1] > 0 else np.nan for row in zip(*told, strict=True)])
    return np.where(of_one_stage(x), found, otherwise)


def stage_of_plan(hw: Hardware, links: Topology, x: Inputs, layer: Times, head: Times) -> Parts:
    """(n,) each; 0 where a row describes no stage. The last stage has the head, the first the embedding."""
    once, again = runs_of(x)
    ends = x.stage_from + x.stage_operators > OPERATORS * x.layers + 1
    forward, share = _operators(layer)
    first = (once * forward).sum(axis=0)
    back = (once * share).sum(axis=0)
    reduced, repeated = once[list(_REDUCED)].sum(axis=0), again[list(_REDUCED)].sum(axis=0)
    backward = once[list(_REDUCED_BACK)].sum(axis=0)
    length = once.sum(axis=0) / OPERATORS
    parts = {
        "compute": first
        + back * layer.backward
        + np.where(ends, head.forward + head.backward, 0.0)
        + np.where(x.stage_from == 0, embedding(hw, x), 0.0)
        + gradients_apart(hw, x, layers_of(x, np.zeros(1))),
        "recompute": (again * forward).sum(axis=0),
        "tp": ((reduced + repeated) * layer.tp_forward + backward * layer.tp_backward) / 2
        + np.where(ends, head.tp_forward + head.tp_backward, 0.0),
        "pp": sends(links, x),
        "host": waiting(hw, length * layer.host_forward, first)
        + waiting(hw, length * layer.host_backward, back * layer.backward),
    }
    return {name: np.where(of_one_stage(x), parts.get(name, 0.0), 0.0) for name in IN_STAGE}


def steps_of_plans(parts: Parts, error: Array, of: Array, micro_batches: Array) -> tuple[Parts, Array]:
    """Of rows that describe one stage each, and the plan `of` each: the slowest stage sets the pace, and the first
    micro batch passes through the others."""
    busy = sum((parts[name] for name in parts if name != "bubble"), np.zeros(1))
    paced = np.lexsort((-busy, of))[np.unique(np.sort(of), return_index=True)[1]]
    alone = sum((parts[name] for name in _MICRO_BATCH), np.zeros(1)) / micro_batches
    others = np.bincount(of, alone) - alone[paced]
    found = {name: part[paced] for name, part in parts.items()}
    found["bubble"] = found["bubble"] + others
    return found, error[paced]


def _operators(layer: Times) -> tuple[Array, Array]:
    """(13, n) seconds of each operator of a layer, forward, and shares of its backward pass, which are taken to be the
    same. Products by their weights, the core in four, the norms in two, the rest to both residual additions."""
    products = 1.5 * (layer.block - layer.activation)  # a block without gate has two thirds of a layer's weights
    rest = layer.forward - products - layer.core - layer.norms - layer.activation
    share = np.array([operator.share for operator in LAYER])[:, None]
    seconds = share * products
    for places, part in (((0, 8), layer.norms), ((2, 3, 4, 5), layer.core), ((7, 12), rest), ((10,), layer.activation)):
        seconds[list(places)] = part / len(places)
    return seconds, seconds / layer.forward


def runs_of(x: Inputs) -> tuple[Array, Array]:
    """(13, n) how often the stages run each operator, and how often again."""
    b = 4.0 if x.dtype == "fp32" else 2.0
    tokens = x.mbs * x.seq_len / x.cp
    size = tensor_sizes(x, b, tokens, tokens / np.where(x.sp > 0, x.tp, 1))
    told = np.broadcast_arrays(x.stage_from, x.stage_operators, x.layers, x.stage_recomputed, np.zeros(x.n))
    found = np.zeros((2, OPERATORS, x.n))
    for i in np.flatnonzero(np.broadcast_to(of_one_stage(x), x.n)):
        first, number, layers, share = (float(v[i]) for v in told[:4])
        found[..., i] = runs(first, number, layers, share, {name: float(v[i]) for name, v in size.items()})
    return found[0], found[1]
