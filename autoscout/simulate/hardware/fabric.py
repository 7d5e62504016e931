"""One dimension of a network: what a collective costs in it, by topology and algorithm.

A dimension joins `size` NPUs, each of which can send `bandwidth` bytes a second into it: over two links of half of that
in a ring, over size − 1 links in full connection, over one link to a switch (so the same money buys the same bytes,
as in COSMIC's derived bandwidths). A message costs `latency` a hop; a switch is two hops.

A phase is a reduce-scatter or an all-gather of a buffer of m bytes among `members` of the dimension, each `stride` places
apart (the places between belong to other groups, which do the same at the same time): hops × latency + share × m /
bandwidth. `share` is the load of the fullest link, so congestion is in it: messages that cross others' links.
Sources: Thakur, Rabenseifner, Gropp 2005 (ring, recursive halving and doubling); Sanders, Speck, Träff 2009 (two trees).
"""

import functools
import math

import numpy as np

Array = np.ndarray

TOPOLOGIES = ("ring", "fully_connected", "switch")
ALGORITHMS = ("ring", "direct", "halving_doubling", "double_tree")
RING, DIRECT, HALVING, TREE = range(4)


def cannot(topology: str, algorithm: str, members: int) -> str:
    """ "" or why a collective cannot run in a dimension."""
    if algorithm == "halving_doubling" and members & (members - 1):
        return f"halving and doubling needs a power of two, not {members} NPUs"
    if algorithm == "double_tree" and topology == "ring":
        return "the edges of a double binary tree would cross each other's links of a ring"
    return ""


@functools.cache
def phase(topology: str, algorithm: str, size: int, members: int, stride: int) -> tuple[float, float]:
    """(hops, share) of a reduce-scatter or all-gather; (inf, inf) where it cannot be."""
    if members <= 1:
        return 0.0, 0.0
    if cannot(topology, algorithm, members):
        return math.inf, math.inf
    if topology == "ring":
        return _in_ring(algorithm, size, members, stride)
    steps = {"ring": members - 1, "direct": 1}.get(algorithm, math.log2(members))
    if topology == "switch":
        return 2.0 * math.ceil(steps), 1.0 if algorithm == "double_tree" else (members - 1) / members
    links = size - 1
    if algorithm == "ring":  # chunks go round both ways
        return steps, (members - 1) / members * links / min(2, members - 1)
    if algorithm == "direct":
        return steps, links / members
    return math.ceil(steps), links * (0.5 if algorithm == "double_tree" else (members - 1) / members)


def _in_ring(algorithm: str, size: int, members: int, stride: int) -> tuple[float, float]:
    """All `stride` groups that lie between each other share the links; a group that is only an arc sends back along
    it what closes its ring."""
    closed = members * stride == size
    if algorithm == "ring":
        share = (members - 1) / members * stride * (1 if closed else 2)
        return (members - 1) * stride * (1 if closed else members - 1), share
    if algorithm == "direct":
        crossing = members // 2 * ((members + 1) // 2)  # pairs across the fullest link of an arc, or all hops of one NPU
        return members // 2 * stride * (1 if closed else 2), crossing / members * stride * (1 if closed else 2)
    return (members - 1) * stride, math.log2(members) * stride


class Table:
    """`phase` for columns: (n,) codes of topology and algorithm, sizes, members and strides → hops and shares."""

    def __init__(self, size: Array, members: Array, stride: Array) -> None:
        self._sizes, self._members, self._strides = (_values(a) for a in (size, members, stride))
        shape = (len(TOPOLOGIES), len(ALGORITHMS), len(self._sizes), len(self._members), len(self._strides))
        self._hops, self._share = np.zeros(shape), np.zeros(shape)
        for t, topology in enumerate(TOPOLOGIES):
            for a, algorithm in enumerate(ALGORITHMS):
                for i, n in enumerate(self._sizes.tolist()):
                    for j, k in enumerate(self._members.tolist()):
                        for l, s in enumerate(self._strides.tolist()):
                            found = phase(topology, algorithm, n, k, s) if k * s <= n else (0.0, 0.0)
                            self._hops[t, a, i, j, l], self._share[t, a, i, j, l] = found
        places = (_place(self._sizes, size), _place(self._members, members), _place(self._strides, stride))
        self._at = np.ravel_multi_index(np.broadcast_arrays(*places), shape[2:])
        self._block = shape[2] * shape[3] * shape[4]

    def __call__(self, topology: Array, algorithm: Array | int) -> tuple[Array, Array]:
        at = (topology * len(ALGORITHMS) + algorithm) * self._block + self._at
        return self._hops.reshape(-1)[at], self._share.reshape(-1)[at]


def _values(column: Array) -> Array:
    return np.flatnonzero(np.bincount(np.ravel(column)))


def _place(values: Array, column: Array) -> Array:
    places = np.zeros(int(values[-1]) + 1, dtype=np.int64)
    places[values] = np.arange(len(values))
    return places[column]
