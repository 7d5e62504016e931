"""Seconds of collectives over several dimensions: in closed form, or chunk by chunk.

A buffer is cut into `chunks` that follow each other through the dimensions: reduce-scatter in the first, the second …,
then all-gather back. With `hierarchical` each reduce-scatter leaves the next dimension less to do (ASTRA-sim's
localBWAware); without, each dimension reduces the whole buffer (its baseline).
"""

import numpy as np

from autoscout.simulate.stack.dimensions import Array, Part

ALL_REDUCE, GATHER = "all_reduce", "gather"  # a gather costs what a reduce-scatter does


def closed(parts: list[Part], size: Array, chunks: Array, hierarchical: Array, kind: str = ALL_REDUCE) -> Array:
    """(n,) `size` bytes on every rank (before it is scattered, after it is gathered). One chunk through all
    dimensions, and the others behind it at the pace of the slowest dimension."""
    passes = 2.0 if kind == ALL_REDUCE else 1.0  # there, and back over the same dimensions
    total: Array = np.zeros(1)
    slowest: Array = np.zeros(1)
    for seconds in _stages(parts, size, chunks, hierarchical):
        total = total + seconds
        slowest = np.maximum(slowest, seconds)
    return passes * (total + (chunks - 1) * slowest)


def scheduled(parts: list[Part], size: Array, chunks: Array, hierarchical: Array, kind: str = ALL_REDUCE) -> Array:
    """The same, chunk by chunk: a dimension works on one chunk at a time, the furthest along first."""
    stages = list(_stages(parts, size, chunks, hierarchical))
    there = [d for d, seconds in enumerate(stages) if seconds.any()]
    order = [*there, *reversed(there)] if kind == ALL_REDUCE else there
    most = int(np.max(chunks, initial=1))
    free: dict[int, Array] = {d: np.zeros(1) for d in there}
    ended: list[Array] = [np.zeros(1)] * most
    for wave in range(most + len(order) - 1):
        for step in range(min(wave, len(order) - 1), -1, -1):
            if (chunk := wave - step) < most:
                d = order[step]
                end = np.maximum(ended[chunk], free[d]) + np.where(chunk < chunks, stages[d], 0.0)
                ended[chunk], free[d] = end, end
    return np.max(np.broadcast_arrays(*ended), axis=0)


def all_to_all(parts: list[Part], size: Array, chunks: Array) -> Array:
    """`size` bytes leave every rank in equal pieces, always sent direct, dimension by dimension."""
    total: Array = np.zeros(1)
    for part in parts:
        hops, share = part.direct()
        total = total + np.where(part.members > 1, hops * part.latency + share * size / part.bandwidth, 0.0)
    return total


def send(parts: list[Part], size: Array) -> Array:
    """To the neighbour in the group, over the nearest dimension that it spans; all ranks at once."""
    seconds: Array = np.zeros(1)
    for part in reversed(parts):
        one = part.latency + size / part.bandwidth * 2
        seconds = np.where(part.members > 1, one, seconds)
    return seconds


def _stages(parts: list[Part], size: Array, chunks: Array, hierarchical: Array):
    left = size / chunks
    for part in parts:  # hops and share are 0 where the group has one member here
        yield part.hops * part.latency + part.share * left / part.bandwidth
        if part is not parts[-1]:
            left = left / np.where(hierarchical, part.shrinks, 1)
