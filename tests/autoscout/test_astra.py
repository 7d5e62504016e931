"""The event model of ASTRA-sim's network and trace: against its own tests' times, and against logged rows of COSMIC."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from astra_links import Links
from astra_trace import Trace
from stack_cosmic import Row

MIB = 2**20


def network(topology: str, npus: int = 16) -> Links:
    return Links([topology], [npus], [50], [500])


# astra-network-analytical, test/test_congestion_aware
@pytest.mark.parametrize(("topology", "ns"), [("Ring", 60_093), ("FullyConnected", 20_031), ("Switch", 40_062)])
def test_one_message_takes_what_their_tests_expect(topology, ns):
    assert network(topology).send([(1, 4)], MIB) == ns


def test_all_pairs_at_once_queue_for_the_links_of_a_ring_as_their_test_expects():
    pairs = [(a, b) for a in range(16) for b in range(16) if a != b]
    assert network("Ring").send(pairs, MIB) == 704_116


def test_dimensions_are_crossed_in_order_by_the_shorter_way():
    links = Links(["Ring", "Switch"], [4, 2], [50, 100], [500, 700])
    assert len(links.path(0, 3)) == 1  # round the ring's end
    assert len(links.path(0, 2)) == 2
    assert len(links.path(3, 4)) == 1 + 2  # to the ring's first place, then up to the switch and down
    there = [links.send([(3, 4)], size) for size in (MIB, 2 * MIB)]
    assert there[1] > 1.9 * there[0]


def test_a_ring_of_neighbours_takes_its_steps_one_after_another():
    npus, message = 8, MIB
    once = int(500 + message / (50 * 2**30 / 1e9))
    ring = [list(range(npus))]
    assert network("Ring", npus).ring(ring, message, npus - 1, 0, 0) == (npus - 1) * (once + 10) + 10
    reduced = network("Ring", npus).ring(ring, message, npus - 1, npus - 1, 1000)
    assert reduced == (npus - 1) * (once + 10 + 1000) + 10


def test_an_all_reduce_takes_what_astra_sim_expects_of_it():
    """tests/rt_template/refs/stdout.txt @ 518bd51: 1 MiB in four pieces on a ring of 8; memory of 50 bytes a ns."""
    message = MIB // 4 // 8
    assert 4 * network("Ring", 8).ring([list(range(8))], message, 14, 7, 3 * (message // 50)) == 117_780


LOGGED = {
    # sims/AstraSim/5-27/exp3d_vit_large.txt: (first, last) rank done
    "ViT-Large, 1,024 NPUs": (
        {"dp": 64, "pp": 4, "sp": 2, "tp": 2, "weight_sharded": 1, "din": 1024, "dout": 1024, "dff": 4096}
        | {"dmodel": 1024, "batch": 2048, "seq": 256, "head": 16, "num_stacks": 4},
        ("[4, 8, 4, 8]", '["Ring", "Ring", "Ring", "Ring"]', "[50, 50, 50, 50]", "[700.0, 700.0, 700.0, 700.0]"),
        (25_071_511, 35_389_878),
    ),
    # sims/AstraSim/11-17-2024-new_experiment-logs/exp8a_11-19-1205am-256npu-noMemConstraint.txt
    "GPT-3 175B, four layers, 256 NPUs": (
        {"dp": 2, "pp": 4, "sp": 4, "tp": 8, "weight_sharded": 1, "din": 12288, "dout": 12288, "dff": 49152}
        | {"dmodel": 12288, "batch": 2048, "seq": 2048, "head": 96, "num_stacks": 4},
        ("[4, 4, 4, 4]", '["Ring", "Ring", "Switch", "Ring"]', "[50, 50, 100, 50]", "[700.0, 700.0, 700.0, 700.0]"),
        (29_211_827_642, 41_669_060_947),
    ),
}


def logged(name: str) -> tuple[dict[str, str], tuple[int, int]]:
    workload, (npus, topology, gb_s, latency), ended = LOGGED[name]
    row = {f"w_{key}": str(value) for key, value in workload.items()}
    row |= {"n_npus_count": npus, "n_topology": topology, "n_bandwidth": gb_s, "n_latency": latency}
    return row | {"s_preferred-dataset-splits": "4", "s_local-mem-bw": "50"}, ended


@pytest.mark.parametrize("name", LOGGED)
def test_a_logged_step_is_met_without_a_constant_of_its_own(name):
    row, ended = logged(name)
    assert Row(row).step() == pytest.approx(ended, rel=0.02)


def test_a_trace_sends_what_the_next_stage_takes():
    stages = Trace(logged("ViT-Large, 1,024 NPUs")[0]).stages
    assert [len(stage) for stage in stages] == [103, 102, 90, 90]
    for s, stage in enumerate(stages):
        for number, node in enumerate(stage):
            if node.peer:
                other = stages[node.peer[0]][node.peer[1]]
                assert (other.peer, other.size) == ((s, number), node.size)
                assert {node.what, other.what} == {"send", "receive"}
