"""The network of a design, and where the groups of a parallel layout lie in it.

NPUs are numbered with the first dimension fastest; tensor-parallel ranks are neighbours, then come the shares of a
sequence, the replicas, and the pipeline stages furthest apart.
"""

import functools
from collections.abc import Callable

import msgspec
import numpy as np

from autoscout.simulate.hardware.fabric import ALGORITHMS, TOPOLOGIES, TREE, Kinds, Table
from autoscout.simulate.member import Columns

Array = np.ndarray
MOST = 4  # dimensions
GB = 1e9


class Dimension(msgspec.Struct, frozen=True):
    """(n,) each: NPUs, code of the topology, bytes a second of one NPU into it, seconds a hop. `before`, `after`: NPUs
    joined by the dimensions below it, without and with it (floats: divisors). `tree`: double binary trees."""

    size: Array
    kinds: Kinds
    before: Array
    after: Array
    topology: Array
    tree: Array
    bandwidth: Array
    latency: Array


class Part(msgspec.Struct, frozen=True):
    """A group's share of one dimension. `hops`, `share`: of a phase by the dimension's algorithm; `direct()`: of
    direct messages between all members."""

    members: Array
    hops: Array
    share: Array
    direct: Callable[[], tuple[Array, Array]]
    shrinks: Array  # where hierarchical: factor by which a reduce-scatter shrinks the buffer for the next dimension
    bandwidth: Array
    latency: Array


def dimensions(columns: Columns, n: int) -> list[Dimension]:
    """From columns of knobs: `npus_1`, `topology_1` …; a knob without a number holds for all dimensions."""
    count = np.asarray(columns.get("dims", MOST))
    found = []
    before = np.ones(1)
    for i in range(1, MOST + 1):
        if f"npus_{i}" not in columns:
            break
        used = np.broadcast_to(count >= i, n)
        size = np.where(used, _numbers(columns, "npus", i, 1.0, n), 1).astype(np.int64)
        topology = _codes(columns, "topology", i, TOPOLOGIES, n)
        algorithm = _codes(columns, "algorithm", i, ALGORITHMS, n)
        after = before * size
        found.append(
            Dimension(
                size=size,
                kinds=Kinds(size, topology, algorithm),
                before=before,
                after=after,
                topology=topology,
                tree=algorithm == TREE,
                bandwidth=GB * _numbers(columns, "bandwidth", i, 1.0, n),
                latency=1e-9 * _numbers(columns, "latency", i, 700.0, n),
            )
        )
        before = after
    return found


def group(fabric: list[Dimension], members: Array, stride: Array) -> list[Part]:
    """The parts of a group of `members` ranks that are `stride` apart."""
    parts = []
    first = stride.astype(float)
    last = first * members
    for d in fabric:
        low = np.maximum(first, d.before)
        inside = np.maximum(np.minimum(last, d.after) / low, 1).astype(np.int64)
        step = np.minimum(low / d.before, d.size).astype(np.int64)
        table = Table(d.kinds, inside, step)
        hops, share = table.own()
        parts.append(
            Part(
                members=inside,
                hops=hops,
                share=share,
                direct=table.direct,
                shrinks=np.where(d.tree, 1, inside),
                bandwidth=d.bandwidth,
                latency=d.latency,
            )
        )
    return parts


def _numbers(columns: Columns, name: str, i: int, absent: float, n: int) -> Array:
    value = np.asarray(columns.get(f"{name}_{i}", columns.get(name, absent)))
    known = np.where(np.isnan(value), absent, value) if value.dtype.kind == "f" else value.astype(float)
    return np.broadcast_to(known, n)


def _codes(columns: Columns, name: str, i: int, words: tuple[str, ...], n: int) -> Array:
    value = np.asarray(columns.get(f"{name}_{i}", columns.get(name, words[0])))
    if value.ndim == 0:
        return np.full(n, words.index(str(value)) if str(value) in words else 0, dtype=np.int64)
    letters = np.ascontiguousarray(value).view(np.uint32).reshape(n, -1)
    if letters.shape[1] < 3:  # no word at all
        return np.zeros(n, dtype=np.int64)
    return _by_third_letter(words).take(letters[:, 2], mode="clip")


@functools.cache
def _by_third_letter(words: tuple[str, ...]) -> Array:
    """The codes of words by their third letters, which all differ: quicker than comparing words."""
    codes = np.zeros(128, dtype=np.int64)
    codes[[ord(word[2]) for word in words]] = range(len(words))
    return codes
