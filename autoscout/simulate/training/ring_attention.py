"""Overheads of causal attention on a ring of context parallel ranks, counted from Transformer Engine 1.10
(AttnFuncWithCPAndKVP2P): slices are copied to be contiguous, and outputs and gradients of the ring's steps are scaled
and summed. None of it overlaps with communication."""

import numpy as np

from autoscout.simulate.hardware.device import Hardware
from autoscout.simulate.hardware.roofline import memory_bound
from autoscout.simulate.training.inputs import Inputs

Array = np.ndarray
# Bytes moved per element, ((of queries forward, of keys forward), (of queries backward, of keys backward)): _ONCE per
# pass, _STEP in each ring step after the first. Forward, keys and values are concatenated, outputs zeroed and
# accumulated, and later steps copy half of the keys or queries. In the backward pass, later steps copy the same halves,
# the output and its gradient; the gradients of each step are concatenated and added.
_ONCE = ((8.0, 8.0), (4.0, 28.0))
_STEP = ((5.5, 2.0), (7.5, 17.0))
# Number of operators in addition to those of attention without a ring: ((per forward pass, per forward ring step after
# the first), (the same backward)).
_OPERATORS = ((6.0, 4.0), (4.0, 6.0))


def steps(x: Inputs) -> Array:
    """(n,) steps of the ring after the first; 0 where heads are exchanged instead."""
    return np.where(x.cp_comm > 0, 0.0, x.cp - 1)


def copies(hw: Hardware, x: Inputs) -> tuple[Array, Array]:
    """((n,) seconds forward, (n,) backward) per layer for the memory traffic of _ONCE and _STEP."""
    later = steps(x)
    if not np.any(later):
        return np.zeros(1), np.zeros(1)
    tokens = x.mbs * x.seq_len / x.cp
    query, key = (tokens * n * x.head_dim / x.tp for n in (x.heads, x.kv_heads))
    found = []
    for once, step, kernels in zip(_ONCE, _STEP, _OPERATORS, strict=True):
        moved = sum(((a + b * later) * n for a, b, n in zip(once, step, (query, key), strict=True)), np.zeros(1))
        seconds = memory_bound(hw, moved, hw.elementwise.bandwidth, kernels[0] + (kernels[1] - 1) * later)
        found.append(np.where(later > 0, seconds, 0.0))
    return found[0], found[1]


def operators(x: Inputs) -> tuple[Array, Array]:
    """((n,) operators forward, (n,) backward) per layer, in addition to those of attention without a ring."""
    later = steps(x)
    forward, backward = (np.where(later > 0, once + step * later, 0.0) for once, step in _OPERATORS)
    return forward, backward
