"""What the models of whole clusters say of seeded designs: phases of every topology and algorithm, collectives in
closed form and chunk by chunk, gradients bucket by bucket, and every metric. `UPDATE_FROZEN=1` writes them anew."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from autoscout_stack import bill, chunked, offers
from autoscout_stack.buckets import exposed, exposed_closed
from autoscout_stack.designs import METRICS, evaluate
from autoscout_stack.dimensions import dimensions, group
from autoscout_stack.fabric import ALGORITHMS, TOPOLOGIES, cannot, phase
from autoscout_stack.stack_member import ClosedForm
from autoscout_stack.workloads import workloads
from frozen_values import Values, drawn, hold, kept
from msgspec.structs import replace

from autoscout.job.objective import within_limits
from autoscout.targets.jobs import load_job
from kb.records import Objective

JOBS = Path(__file__).parents[2] / "fixtures" / "jobs"
NAN = float("nan")
Columns = dict[str, Any]
NETWORK: dict[str, list[Any]] = {
    "dims": [1, 2, 2], "npus_1": [4, 8], "npus_2": [2, 4], "topology_1": list(TOPOLOGIES),
    "topology_2": list(TOPOLOGIES), "algorithm_1": list(ALGORITHMS[:3]), "algorithm_2": list(ALGORITHMS[:3]),
    "bandwidth_1": [100.0, 400.0], "bandwidth_2": [25.0, NAN], "latency_1": [NAN, 300.0], "chunks": [1, 2, 5],
    "collectives": ["hierarchical", "baseline"], "scheduling": ["fifo", "lifo"], "device": ["h100", "a100"],
}  # fmt: skip
LAYOUT: dict[str, list[Any]] = {
    "tp": [1, 2, 4], "sp": [1, 2], "pp": [1, 2, 4], "dp": [1, 2, 4], "ep": [1, 2], "mbs": [1, 2, 4],
    "zero": [0.0, 1.0, 3.0, NAN], "recompute": [False, True],
}  # fmt: skip
DENSE: Columns = {
    "layers": 10, "hidden": 1024, "heads": 16, "kv_heads": 4, "head_dim": 64, "ffn": 4096, "vocab": 32000,
    "experts": 0, "expert_ffn": 0, "topk": 0, "gated": 1, "serving": 0, "length": 512, "batch": 16, "output": 0,
    "longest": 512, "tokens": 8192,
}  # fmt: skip
SPARSE = DENSE | {"experts": 8, "expert_ffn": 2048, "topk": 2, "gated": 0}
SERVED = DENSE | {"serving": 1, "output": 20, "longest": 532, "tokens": 20, "batch": 30}
KINDS = {
    "h100": bill.PricedDevice(tflops=1000, gb_s=3350, gib=80, reached=0.6, watts=700, usd=30000),
    "a100": bill.PricedDevice(tflops=312, gb_s=2000, gib=40, reached=0.7, watts=400, usd=12000),
}


@pytest.mark.parametrize("whole", [False, True])
def test_designs(whole: bool):
    columns = drawn(NETWORK | LAYOUT, 20, 1)
    found: Values = {}
    for name, model in {
        "dense": DENSE,
        "sparse": SPARSE,
        "served": SERVED,
        "moe": SERVED | SPARSE | {"serving": 1},
    }.items():
        told = evaluate(columns, [(1.0, model)], whole, KINDS)
        wanted = [*METRICS[:3], *METRICS[6:]] if name == "dense" else METRICS[:3]
        found |= {f"{name} {n}": kept(v[:12]) for n, v in told.items() if n in wanted or n.startswith("part_")}
    mix = evaluate(columns, [(1.0, DENSE), (3.0, SERVED)], whole, KINDS)
    alone = [evaluate(columns, [(1.0, m)], whole, KINDS) for m in (DENSE, SERVED)]
    for metric in ("latency_s", "tokens_per_s"):  # means by weight
        assert mix[metric] == pytest.approx((alone[0][metric] + 3 * alone[1][metric]) / 4)
    assert (mix["peak_memory_gib"] == np.maximum(*(each["peak_memory_gib"] for each in alone))).all()
    assert mix["joules"] == pytest.approx(mix["latency_s"] * mix["cluster_watts"])
    hold(f"stack/designs_{whole}", found)


def test_the_bill():
    """By hand: what a device, its links and cards cost, times how many there are."""
    columns = {
        "npus_1": np.array([4, 4]),
        "npus_2": np.array([2, 1]),
        "dims": 2,
        "topology": "switch",
        "device": "h100",
    }
    columns |= {"bandwidth_1": 100.0, "bandwidth_2": 25.0, "tp": 1, "sp": 1, "pp": 1, "dp": 8, "mbs": 1}
    found = evaluate(columns, [(1.0, DENSE)], devices=KINDS)
    network = bill.parts().network
    inside = np.searchsorted(network.reach, 4)
    outside = np.searchsorted(network.reach, 8)

    def of(tier: Any, values: list[float]) -> float:
        return values[int(tier)]

    each = [of(t, network.link_usd) + of(t, network.nic_usd) + of(t, network.switch_usd) for t in (inside, outside)]
    usd = np.array([8 * (100 * each[0] + 25 * each[1]), 4 * 100 * each[0]])
    watts = np.array(
        [8 * (100 * of(inside, network.watts) + 25 * of(outside, network.watts)), 400 * of(inside, network.watts)]
    )
    assert found["network_usd"] == pytest.approx(usd)
    assert found["bandwidth_gb_s"] == pytest.approx([125.0, 100.0])
    assert found["cluster_usd"] == pytest.approx(usd + np.array([8, 4]) * 30000)
    assert found["cluster_watts"] == pytest.approx(watts + np.array([8, 4]) * 700)
    assert found["latency_usd"] == pytest.approx(found["latency_s"] * found["cluster_usd"])
    assert found["latency_network_usd"] == pytest.approx(found["latency_s"] * usd)
    assert found["latency_bandwidth"] == pytest.approx(found["latency_s"] * [125.0, 100.0])


def test_phases():
    """Every topology and algorithm: groups that fill a dimension, arcs of it, and groups that lie apart."""
    found: Values = {}
    groups = [
        (8, 1, 1),
        (8, 8, 1),
        (8, 4, 1),
        (8, 4, 2),
        (8, 2, 4),
        (6, 6, 1),
        (6, 3, 2),
        (5, 5, 1),
        (2, 2, 1),
        (9, 3, 1),
    ]
    for topology, algorithm in product(TOPOLOGIES, ALGORITHMS):
        found[f"{topology} {algorithm}"] = kept([phase(topology, algorithm, *of) for of in groups])
    hold("stack/phases", found)
    assert cannot("switch", "halving_doubling", 6) == "halving and doubling needs a power of two, not 6 NPUs"
    assert cannot("switch", "halving_doubling", 4) == cannot("switch", "double_tree", 6) == ""
    assert cannot("ring", "double_tree", 4).startswith("the edges of a double binary tree")


def test_collectives():
    columns = drawn(NETWORK | {"topology_1": ["switch"], "algorithm_2": list(ALGORITHMS)}, 12, 3)
    fabric = dimensions(columns, 12)
    chunks, hierarchical = columns["chunks"], columns["collectives"] == "hierarchical"
    size = np.linspace(1e6, 5e8, 12)
    found: Values = {}
    for name, parts in {
        "neighbours": group(fabric, np.array([4] * 12), np.ones(1)),
        "apart": group(fabric, np.array([2] * 12), np.full(1, 2)),
        "all": group(fabric, np.array([8] * 12), np.ones(1)), "alone": group(fabric, np.array([1] * 12), np.ones(1)),
    }.items():  # fmt: skip
        for kind in (chunked.ALL_REDUCE, chunked.GATHER):
            found[f"{name} {kind} closed"] = kept(
                np.broadcast_to(chunked.closed(parts, size, chunks, hierarchical, kind), 12)
            )
            told = chunked.scheduled(parts, size, chunks, hierarchical, kind)
            found[f"{name} {kind} scheduled"] = kept(np.broadcast_to(told, 12))
        found[f"{name} exchange"] = kept(chunked.all_to_all(parts, size, chunks))
        found[f"{name} send"] = kept(chunked.send(parts, size))
    hold("stack/collectives", found)


def test_buckets():
    """By hand: 4 layers' gradients take 4 s, the backward pass 4 s: each bucket is reduced while the next is computed,
    and the last one is left."""
    layers = np.array([4])
    for lifo in (False, True):
        for left in (exposed, exposed_closed):
            assert left(np.array([4.0]), np.array([4.0]), np.array([0.0]), layers, np.array([lifo])) == pytest.approx(
                [1.0]
            )
    rows = drawn(
        {"reduced": [0.0, 1.0, 8.0, 30.0], "backward": [1.0, 4.0], "forward": [0.5, 4.0], "layers": [1, 3, 8, 12]},
        40,
        4,
    )
    found: Values = {}
    for lifo in (False, True):
        given = (rows["reduced"], rows["backward"], rows["forward"], rows["layers"], np.full(40, lifo))
        found |= {f"{lifo} closed": kept(exposed_closed(*given)), f"{lifo} each": kept(exposed(*given))}
    hold("stack/buckets", found)


def test_limits_and_the_closed_form_as_a_member():
    goal = Objective(minimize="latency_s", constraints=["peak_memory_gib <= 5", "tokens_per_s >= 9"])
    said = within_limits(
        goal, {"peak_memory_gib": np.array([5.0, 5.1, 4.0, 4.0]), "tokens_per_s": np.array([9.0, 9, 8.9, 10])}
    )
    assert said.tolist() == [True, False, False, True]
    member = ClosedForm(goal, [(1.0, DENSE)])
    assert member.applies({"npus_1": 4}) == ""
    assert member.applies({}) == "the configuration describes no network"
    columns = drawn(NETWORK | LAYOUT, 20, 1) | {"device": "h100"}
    middle = float(np.median(evaluate(columns, [(1.0, DENSE)])["tokens_per_s"]))
    goal = Objective(minimize="latency_s", constraints=["peak_memory_gib <= 5", f"tokens_per_s >= {middle}"])
    parts = ClosedForm(goal, [(1.0, DENSE)]).predict(columns)
    assert set(parts.parts) == {"compute", "tensor", "sequence", "experts", "pipeline", "replicas"}
    told = evaluate(columns, [(1.0, DENSE)])
    fits = (told["peak_memory_gib"] <= 5) & (told["tokens_per_s"] >= middle)
    assert 0 < fits.sum() < 20
    assert (parts.value == np.where(fits, told["latency_s"], np.inf)).all()
    rate = ClosedForm(Objective(maximize="tokens_per_s", constraints=goal.constraints), [(1.0, DENSE)])
    most = rate.predict(columns)
    assert (most.value == np.where(fits, told["tokens_per_s"], 0.0)).all()
    assert most.parts == {}


def test_workloads_and_offers():
    job = load_job(JOBS / "gpt3-175b-stack.toml")
    assert workloads(job)[0][0] == 1.0
    some = offers.clusters(job)
    assert all(c["npus_2"] == int(c["npus"]) // int(c["npus_1"]) > 1 for c in some)
    cluster = {"device": "h100", "npus": 16, "npus_1": 8, "npus_2": 2, "bandwidth_1": 400, "bandwidth_2": 50}
    [(usd, watts)] = offers._bills([cluster], DENSE)
    offer = offers._offer(cluster, [(1.0, DENSE), (3.0, SPARSE)], usd, watts)
    each = [fit.seconds for fit in offer.fits]
    assert offer.seconds == pytest.approx((each[0] + 3 * each[1]) / 4)
    found: Values = {"seconds": kept(each), "bill": kept([usd, watts])}
    for i, fit in enumerate(offer.fits):
        found[f"layout {i}"] = kept([float(v) for v in fit.layout.values()])
    better = offers.doubled(offer, [(1.0, DENSE), (3.0, SPARSE)])
    found["doubled"] = [v for d in better for v in kept([d.seconds, d.gain, NAN if d.usd is None else d.usd])]
    served = offers._fastest(cluster, SERVED | {"batch": 16}, KINDS["h100"], None)
    found["served"] = kept([served.seconds, *(float(v) for v in served.layout.values())])
    none = offers._fastest(cluster, DENSE | {"heads": 16, "batch": 7}, replace(KINDS["h100"], gib=1e-6), None)
    assert none.seconds == np.inf
    hold("stack/offers", found)
