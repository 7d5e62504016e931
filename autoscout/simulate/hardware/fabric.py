"""One dimension of a network: what a collective costs in it, by topology and algorithm.

A dimension joins `size` NPUs, each of which can send `bandwidth` bytes a second into it: over two links of half of that
in a ring, over size − 1 links in full connection, over one link to a switch (so the same money buys the same bytes, as
in COSMIC's derived bandwidths). A message costs `latency` a hop; a switch is two hops.

A phase is a reduce-scatter or an all-gather of a buffer of m bytes among `members` of the dimension, `stride` places
apart (the places between belong to other groups, which do the same at the same time): hops × latency + share × m /
bandwidth. `share` is the load of the fullest link, which includes congestion: messages that cross others' links.
Sources: Thakur, Rabenseifner, Gropp 2005 (ring, recursive halving and doubling); Sanders, Speck, Träff 2009 (trees).
"""

import functools
import itertools
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
    """(hops, share) of a reduce-scatter or all-gather; (inf, inf) where it cannot run."""
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
    """All `stride` interleaved groups share the links; a group that spans only an arc closes its ring back along the
    arc."""
    closed = members * stride == size
    if algorithm == "ring":
        share = (members - 1) / members * stride * (1 if closed else 2)
        return (members - 1) * stride * (1 if closed else members - 1), share
    if algorithm == "direct":
        crossing = (
            members // 2 * ((members + 1) // 2)
        )  # pairs across the fullest link of an arc, or all hops of one NPU
        return members // 2 * stride * (1 if closed else 2), crossing / members * stride * (1 if closed else 2)
    return (members - 1) * stride, math.log2(members) * stride


class Kinds:
    """(n,) sizes of a dimension with codes of topology and algorithm: the distinct sizes, and each design's place in a
    table of topology × algorithm × size."""

    def __init__(self, size: Array, topology: Array, algorithm: Array) -> None:
        self.values, self._places = _placed(size)
        self._topology = topology
        self.own = self._of(algorithm)

    @functools.cached_property
    def direct(self) -> Array:
        """The same with direct messages, whatever the algorithm is."""
        return self._of(DIRECT)

    def _of(self, algorithm: Array | int) -> Array:
        return (self._topology * len(ALGORITHMS) + algorithm) * len(self.values) + self._places


class Table:
    """`phase` for columns: (n,) kinds, members and strides → hops and shares, by the dimension's own algorithm or by
    direct messages."""

    def __init__(self, kinds: Kinds, members: Array, stride: Array) -> None:
        (inside, which), (apart, how_far) = _placed(members), _placed(stride)
        self._hops, self._share = _tabled(kinds.values, inside, apart)
        self._kinds = kinds
        self._at = which * len(apart) + how_far
        self._block = len(inside) * len(apart)

    def own(self) -> tuple[Array, Array]:
        return self._of(self._kinds.own)

    def direct(self) -> tuple[Array, Array]:
        return self._of(self._kinds.direct)

    def _of(self, kinds: Array) -> tuple[Array, Array]:
        at = kinds * self._block + self._at
        return self._hops.take(at), self._share.take(at)


@functools.lru_cache(4096)
def _tabled(sizes: tuple[int, ...], members: tuple[int, ...], strides: tuple[int, ...]) -> tuple[Array, Array]:
    """One entry for each topology, algorithm, size, members and stride, in that order; zeros where a group is larger
    than its dimension."""
    found = [
        phase(t, a, n, k, s) if k * s <= n else (0.0, 0.0)
        for t, a, n, k, s in itertools.product(TOPOLOGIES, ALGORITHMS, sizes, members, strides)
    ]
    hops, share = np.array(found).T
    return np.ascontiguousarray(hops), np.ascontiguousarray(share)


def _placed(column: Array) -> tuple[tuple[int, ...], Array]:
    """The values of a column, ascending, and each entry's place among them; (1,) where all are the same."""
    column = np.ravel(column)
    values = np.bincount(column).nonzero()[0]
    if len(values) == 1:
        return (int(values[0]),), np.zeros(1, dtype=np.int64)
    places = np.empty(values[-1] + 1, dtype=np.int64)
    places[values] = np.arange(len(values))
    return tuple(values.tolist()), places.take(column)
