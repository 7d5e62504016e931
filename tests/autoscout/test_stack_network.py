"""What collectives cost in a network of several dimensions: against closed forms, and against counting each link."""

import itertools
import math

import numpy as np
import pytest
from autoscout_stack import chunked
from autoscout_stack.buckets import exposed, exposed_closed
from autoscout_stack.dimensions import dimensions, group
from autoscout_stack.fabric import ALGORITHMS, TOPOLOGIES, cannot, phase

MIB, GB_S, HOP = 2.0**20, 100e9, 700e-9


def network(*dims: tuple[str, int, str], bandwidth: float = 100.0) -> dict:
    columns: dict = {"dims": len(dims)}
    for i, (topology, size, algorithm) in enumerate(dims, start=1):
        columns |= {f"topology_{i}": np.array([topology]), f"npus_{i}": np.array([size])}
        columns |= {f"algorithm_{i}": np.array([algorithm]), f"bandwidth_{i}": np.array([bandwidth])}
    return columns


def all_reduce(
    columns: dict, members: int, size: float, chunks: int = 1, hierarchical: bool = True, whole=False
) -> float:
    parts = group(dimensions(columns, 1), np.array([members]), np.array([1]))
    how = chunked.scheduled if whole else chunked.closed
    return float(how(parts, np.array([size]), np.array([chunks]), np.array([hierarchical])).max())


def test_all_reduces_of_one_dimension_cost_what_the_textbook_says():
    n, share = 8, 7 / 8
    for topology, algorithm, hops in [
        ("ring", "ring", 2 * 7),
        ("switch", "ring", 2 * 2 * 7),
        ("switch", "halving_doubling", 2 * 2 * 3),
        ("switch", "direct", 2 * 2),
        ("fully_connected", "direct", 2),
    ]:
        found = all_reduce(network((topology, n, algorithm)), n, MIB)
        assert found == pytest.approx(hops * HOP + 2 * share * MIB / GB_S), (topology, algorithm)


def test_a_direct_exchange_on_a_ring_and_a_ring_on_full_connection_are_congested():
    apart = all_reduce(network(("ring", 8, "direct")), 8, 1024 * MIB) / all_reduce(
        network(("ring", 8, "ring")), 8, 1024 * MIB
    )
    assert apart == pytest.approx(16 / 7, rel=1e-3)  # hops of all messages, over those of neighbours
    few = all_reduce(network(("fully_connected", 8, "ring")), 8, 1024 * MIB)
    assert few / all_reduce(network(("fully_connected", 8, "direct")), 8, 1024 * MIB) == pytest.approx(3.5, rel=1e-3)


def loads(size: int, members: int, stride: int, steps: list[list[tuple[int, int, float]]]) -> float:
    """Sum over the steps of the fullest link's bytes, with all groups of a ring of NPUs at once; links of half the
    bandwidth. Messages are (from, to, share of the buffer) by place in the group."""
    closed, total = members * stride == size, 0.0
    for step in steps:
        links: dict[tuple[int, int], float] = {}
        for first in range(stride):
            for a, b, share in step:
                x, y = first + a * stride, first + b * stride
                right = (y - x) % size if closed else max(y - x, 0)
                left = (x - y) % size if closed else max(x - y, 0)
                ways = [(right, 1)] if not left or (right and right < left) else [(left, -1)]
                if closed and right == left:
                    ways = [(right, 1), (left, -1)]
                for hops, direction in ways:
                    for h in range(hops):
                        link = ((x + direction * h) % size, direction)
                        links[link] = links.get(link, 0.0) + share / len(ways)
        total += max(links.values())
    return 2 * total


@pytest.mark.parametrize(
    ("members", "stride", "size"), [(4, 1, 4), (8, 1, 8), (4, 2, 8), (4, 1, 8), (8, 2, 16), (4, 4, 16)]
)
def test_shares_on_a_ring_are_the_loads_of_its_fullest_link(members, stride, size):
    pairs = [(a, b, 1 / members) for a, b in itertools.permutations(range(members), 2)]
    assert phase("ring", "direct", size, members, stride)[1] == pytest.approx(
        loads(size, members, stride, [pairs]), rel=0.01
    )
    halving = [[(a, a ^ 2**i, 0.5 ** (i + 1)) for a in range(members)] for i in range(int(math.log2(members)))]
    if members * stride < size or (members == 4 and stride == 1):  # within an arc there is one way
        assert (
            phase("ring", "halving_doubling", size, members, stride)[1] >= loads(size, members, stride, halving) - 1e-9
        )
    around = [
        [(a, (a + 1) % members, 0.5 / members) for a in range(members)]
        + [((a + 1) % members, a, 0.5 / members) for a in range(members)]
    ] * (members - 1)
    assert phase("ring", "ring", size, members, stride)[1] == pytest.approx(
        loads(size, members, stride, around), rel=0.01
    )


def test_what_cannot_be_costs_infinitely_and_says_why():
    assert "power of two" in cannot("switch", "halving_doubling", 6)
    assert "double binary tree" in cannot("ring", "double_tree", 8)
    assert math.isinf(phase("ring", "double_tree", 8, 8, 1)[1])
    for topology, algorithm in itertools.product(TOPOLOGIES, ALGORITHMS):
        assert phase(topology, algorithm, 8, 1, 1) == (0.0, 0.0)


def test_a_hierarchy_sends_less_into_the_outer_dimension():
    columns = network(("switch", 8, "direct"), ("switch", 16, "direct"))
    flat, deep = (all_reduce(columns, 128, 1024 * MIB, hierarchical=h) for h in (False, True))
    assert deep == pytest.approx(2 * (2 * 2 * HOP + (7 / 8 + 15 / 16 / 8) * 1024 * MIB / GB_S))
    assert flat == pytest.approx(2 * (2 * 2 * HOP + (7 / 8 + 15 / 16) * 1024 * MIB / GB_S))


def test_chunks_hide_dimensions_behind_each_other_and_schedules_stay_near_the_closed_form():
    columns = network(("switch", 8, "direct"), ("switch", 8, "direct"), ("ring", 4, "ring"))
    for hierarchical, chunks in itertools.product((False, True), (1, 2, 4, 16)):
        closed = all_reduce(columns, 256, 1024 * MIB, chunks, hierarchical)
        whole = all_reduce(columns, 256, 1024 * MIB, chunks, hierarchical, whole=True)
        assert 0.75 < whole / closed < 1.1, (hierarchical, chunks)
        if chunks == 1:
            assert whole == pytest.approx(closed)
    assert all_reduce(columns, 256, 1024 * MIB, 16, False) < 0.6 * all_reduce(columns, 256, 1024 * MIB, 1, False)


def test_a_group_of_one_sends_nothing_and_inner_groups_stay_inside():
    columns = network(("switch", 8, "direct"), ("switch", 4, "direct"))
    assert all_reduce(columns, 1, MIB) == 0
    inner = group(dimensions(columns, 1), np.array([4]), np.array([2]))
    assert [int(p.members[0]) for p in inner] == [4, 1]
    across = group(dimensions(columns, 1), np.array([8]), np.array([4]))
    assert [int(p.members[0]) for p in across] == [2, 4]


def test_last_in_first_out_never_waits_longer_and_buckets_agree_with_the_closed_form():
    rng = np.random.default_rng(0)
    reduced, backward, forward = rng.random((3, 400)) * 3
    layers = rng.integers(1, 96, 400)
    lifo, fifo = (exposed(reduced, backward, forward, layers, np.full(400, order)) for order in (True, False))
    assert (lifo <= fifo + 1e-9).all()
    assert (lifo >= -1e-9).all()
    for order, found in ((True, lifo), (False, fifo)):
        closed = exposed_closed(reduced, backward, forward, layers, np.full(400, order))
        total = backward + forward
        assert np.abs((total + closed) / (total + found) - 1).mean() < 0.05
