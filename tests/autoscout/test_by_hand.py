"""Values worked out by hand, on devices that make it possible: each has one bottleneck of a round size.

COMPUTE does 10¹² FLOP a second and everything else at once; MEMORY moves 10⁹ bytes a second, LINKS sends 10⁹ bytes a
second, four devices a node, 10⁸ between nodes. The layer is that of a small Llama: hidden 1024, 8 heads of 128, 2 of
them with keys and values, a gated feed-forward of 4096, 2 sequences of 2048: 4096 tokens.
"""

from typing import Any

import msgspec
import numpy as np
import pytest

from autoscout.simulate.hardware.collectives import Topology
from autoscout.simulate.hardware.device import Curve, Hardware, Tile, hardware
from autoscout.simulate.hardware.roofline import batched_gemm, flash, flash_backward, gemm, memory_bound
from autoscout.simulate.training.inputs import Inputs, complete
from autoscout.simulate.training.layer import head_times, layer_times
from autoscout.simulate.training.once import exchange, optimizer
from autoscout.simulate.training.rank_memory import of_stage
from autoscout.simulate.training.stage import embedding, stage
from autoscout.simulate.training.step import idle

AT_ONCE = 1e12  # GB/s
LLAMA = {
    "layers": 8, "hidden": 1024, "heads": 8, "kv_heads": 2, "head_dim": 128, "ffn": 4096, "gated": 1, "vocab": 32768,
    "seq_len": 2048, "mbs": 2, "global_batch": 16, "gpus": 1, "dtype": "bf16", "bias": 0,
}  # fmt: skip


def device(tflops: float = 1e9, memory: float = AT_ONCE, link: float = AT_ONCE, between: float = AT_ONCE) -> Hardware:
    """Without launches and latencies, at its full rates."""
    a100 = hardware("a100")
    assert a100 is not None
    change = msgspec.structs.replace
    curve = Curve(latency_us=[0.0], bus_gb_s=[link])
    curves = dict.fromkeys(("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"), curve)
    return change(
        a100,
        memory_gb_s=memory,
        multiprocessors=1,
        per_node=4,
        peak_tflops={"bf16": tflops},
        clocks=change(a100.clocks, sustained=1.0),
        gemm=change(a100.gemm, overhead_us=0.0, bandwidth=1.0, extra_k=0.0, tiles=[Tile(1, 1, 1.0)]),
        attention=change(
            a100.attention, overhead_us=0.0, efficiency=1.0, half_length=0.0, backward=1.0, flash1=0.5, flash2=0.8
        ),
        elementwise=change(a100.elementwise, overhead_us=0.0, bandwidth=1.0, norm_bandwidth=1.0),
        island=change(a100.island, ranks=[2], inside_us=[0.0], **curves),
        network=change(a100.network, latency_us=0.0, node_gb_s=between, efficiency=1.0),
        host=change(a100.host, forward_us=0.0, backward_us=0.0, collective_us=0.0, step_ms=0.0),
    )


COMPUTE, MEMORY, LINKS = device(tflops=1.0), device(memory=1.0), device(link=1.0, between=0.1)


def links(hw: Hardware, per_node: float = 4.0) -> Topology:
    return Topology(hw, np.array([per_node]), np.array([hw.network.node_gb_s]))


def inputs(**other: Any) -> Inputs:
    return complete({name: np.array([value]) for name, value in (LLAMA | other).items()})


def layer(hw: Hardware, **other: Any) -> dict[str, float]:
    found = layer_times(hw, links(hw), inputs(**other))._asdict()
    return {name: float(np.broadcast_to(value, 1)[0]) for name, value in found.items()}


def about(value: float) -> Any:
    return pytest.approx(value, rel=1e-6)


def test_groups_have_the_links_of_most_machines_not_of_the_recorded_one():
    """Eight L40S exchanged as one recorded machine, 13 times as slow as serving's rings over the same PCIe."""
    ranks, stride = np.array([2.0]), np.array([1.0])
    # over 1 GB/s as recorded, faster elsewhere, slower elsewhere, and through the host's memory
    for ring_gb_s, peers, seconds in ((0.0, True, 1.0), (4.0, True, 0.25), (0.5, True, 1.0), (0.5, False, 2.0)):
        island = msgspec.structs.replace(LINKS.island, ring_gb_s=ring_gb_s, peers=peers)
        hw = msgspec.structs.replace(LINKS, island=island)
        assert links(hw).all_reduce(np.array([1e9]), ranks, stride) == about(seconds)


# ---- operators ----------------------------------------------------------------------------------------------------


def row(size: float) -> np.ndarray:
    return np.array([float(size)])


def attended(hw: Hardware, head_dim: float) -> np.ndarray:
    """2 · 8 heads, 2048 queries and keys."""
    return flash(hw, row(2), row(8), row(2048), row(2048), row(head_dim), "bf16")


def test_products():
    m, n, k = row(4096), row(1536), row(1024)
    assert gemm(COMPUTE, m, n, k, "bf16")[0] == about(12_884_901_888 / 1e12)  # 2 · 4096 · 1536 · 1024
    # 2 bytes of 4096 · 1536 results, 1536 · 1024 weights and 4096 · 1024 inputs: 12,058,624 values
    assert gemm(MEMORY, m, n, k, "bf16")[0] == about(24_117_248 / 1e9)
    assert gemm(MEMORY, m, n, k, "fp32")[0] == about(48_234_496 / 1e9)
    assert gemm(MEMORY, m, n, k, "bf16", 1e6)[0] == about(25_117_248 / 1e9)
    assert batched_gemm(COMPUTE, np.array([16.0]), m, n, k, "bf16")[0] == about(16 * 12_884_901_888 / 1e12)
    assert batched_gemm(MEMORY, np.array([16.0]), m, n, k, "bf16")[0] == about(16 * 24_117_248 / 1e9)


@pytest.mark.parametrize(("n", "speed"), [(1001, 1 / 3), (1002, 2 / 3), (1004, 0.85), (1008, 1.0)])
def test_rows_that_are_not_aligned_starve_the_matrix_units(n, speed):
    for sizes in ((n, 1024), (1024, n)):
        found = gemm(COMPUTE, row(512), row(sizes[0]), row(sizes[1]), "bf16")
        assert found[0] == about(2 * 512 * n * 1024 / 1e12 / speed)


def test_the_last_wave_of_tiles_costs_as_much_as_a_full_one():
    tiled = msgspec.structs.replace(COMPUTE.gemm, tiles=[Tile(128, 256, 0.5)], extra_k=64.0, overhead_us=3.0)
    hw = msgspec.structs.replace(COMPUTE, gemm=tiled, multiprocessors=10)
    # 3 · 4 tiles upright, 2 · 8 lying: 12 tiles are 2 waves of 10, each 2 · 128 · 256 · (1024 + 64) FLOP of a tenth of
    # the peak at half of its speed
    found = gemm(hw, np.array([384.0]), np.array([1024.0]), np.array([1024.0]), "bf16")
    assert found[0] == about(3e-6 + 2 * 2 * 128 * 256 * 1088 / (0.1e12 * 0.5))


def test_attention():
    forward = attended(COMPUTE, 128)
    assert forward[0] == about(17_179_869_184 / 1e12)  # 2 · 2 · 8 · 2048² · 128: half of two products
    assert flash_backward(COMPUTE, forward)[0] == about(42_949_672_960 / 1e12)  # five products instead of two
    small = attended(COMPUTE, 96)
    assert small[0] == about(12_884_901_888 / 1e12 / (96 / 128 * 1.25))  # efficiency d / (d + 32), 1 at 128
    padded = attended(COMPUTE, 90)
    assert padded[0] == small[0]  # 90 is padded to 96
    late = msgspec.structs.replace(COMPUTE.attention, half_length=2048.0, overhead_us=5.0)
    hw = msgspec.structs.replace(COMPUTE, attention=late)
    assert attended(hw, 128)[0] == about(5e-6 + 2 * 17_179_869_184 / 1e12)


def test_kernels_bound_by_memory():
    hw = msgspec.structs.replace(MEMORY, elementwise=msgspec.structs.replace(MEMORY.elementwise, overhead_us=2.0))
    assert memory_bound(hw, np.array([1e6]), 0.5, 3)[0] == about(3 * 2e-6 + 2e-3)


# ---- a layer ------------------------------------------------------------------------------------------------------

# QKV 12,884,901,888; projection 8,589,934,592; up and gate 68,719,476,736; down 34,359,738,368
PRODUCTS = 124_554_051_584
ATTENTION = 17_179_869_184


def test_a_layer_computes_the_products_and_half_of_the_scores():
    found = layer(COMPUTE)
    assert found["forward"] == about((PRODUCTS + ATTENTION) / 1e12)
    assert found["backward"] == about((2 * PRODUCTS + 2.5 * ATTENTION) / 1e12)
    assert found["core"] == about(ATTENTION / 1e12)
    assert found["block"] == about(103_079_215_104 / 1e12)  # the feed-forward's three


def test_tensor_and_context_parallel_ranks_share_it():
    for split in ({"tp": 2, "gpus": 2}, {"tp": 2, "sp": 1, "gpus": 2}, {"cp": 2, "gpus": 2}):
        found = layer(COMPUTE, **split)
        assert found["forward"] == about((PRODUCTS + ATTENTION) / 2e12)
        assert found["backward"] == about((2 * PRODUCTS + 2.5 * ATTENTION) / 2e12)


def test_older_kernels_of_attention_are_slower():
    products = PRODUCTS / 1e12
    assert layer(COMPUTE, attention="flash1")["forward"] == about(products + 2 * ATTENTION / 1e12)
    assert layer(COMPUTE, attention="flash2")["forward"] == about(products + ATTENTION / 0.8 / 1e12)


def test_attention_that_is_not_fused_computes_all_scores_and_moves_them():
    """Two products of 2 · 16 · 2048² · 128 FLOP, twice as much backward; of 67,108,864 scores the softmax moves 3 bytes
    forward (1.5 · 2) and 6 backward, dropout 5 each way."""
    assert layer(COMPUTE, attention="unfused")["core"] == about(2 * 17_179_869_184 / 1e12)
    plain, dropped = (layer(MEMORY, attention="unfused", dropout=d) for d in (0.0, 0.1))
    # inputs, keys and results of the two products: 2 bytes · 16 · (2048² + 2 · 2048 · 128), twice
    assert plain["core"] == about((2 * 2 * 16 * (2048**2 + 2 * 2048 * 128) + 3 * 67_108_864) / 1e9)
    assert dropped["core"] - plain["core"] == about(5 * 67_108_864 / 1e9)


def test_experts_compute_what_is_routed_to_them():
    """8 experts of 1024, 2 a token: 8192 routed tokens, the busiest of several ranks 1.1 times its share; 2 · 1024 ·
    (2 · 1024 + 1024) FLOP each, and the router's 2 · 4096 · 1024 · 8."""
    moe = {"experts": 8, "topk": 2, "expert_ffn": 1024}
    others = 12_884_901_888 + 8_589_934_592 + ATTENTION
    routed, router = 8192 * 6_291_456, 67_108_864
    for split, busiest in (({}, 1.0), ({"ep": 4, "gpus": 4}, 1.1)):  # ranks of experts take tokens of each other
        assert layer(COMPUTE, **moe, **split)["forward"] == pytest.approx(
            (others + busiest * routed + router) / 1e12, rel=2e-3
        )  # tokens of an expert are no whole tile


def test_what_a_layer_moves_beside_products():
    """With 1 GB/s: 4096 · 1024 values of 2 bytes are 8,388,608. Norms read and write them twice, two residuals read two
    and write one, the gated activation reads two and writes one of 4096 · 4096 values, rotary reads and writes the
    queries."""
    products = {k: v for k, v in layer(MEMORY).items() if k in ("norms", "activation")}
    assert products["norms"] == about(4 * 8_388_608 / 1e9)
    assert products["activation"] == about(3 * 33_554_432 / 1e9)
    assert layer(MEMORY, gated=0)["activation"] == about(2 * 33_554_432 / 1e9)
    assert layer(MEMORY, fused_norm=0)["norms"] == about(2 * 36 * 4_194_304 / 1e9)
    assert layer(MEMORY, tp=4, sp=1, gpus=4)["norms"] == about(8_388_608 / 1e9)


def test_the_output_layer():
    """2 · 4096 · 1024 · 32768 FLOP; the loss moves 12 bytes of 134,217,728 logits forward, 8 backward."""
    found = head_times(COMPUTE, links(COMPUTE), inputs())
    assert found.forward[0] == about(274_877_906_944 / 1e12)
    assert found.backward[0] == about(2 * 274_877_906_944 / 1e12)
    moved = head_times(MEMORY, links(MEMORY), inputs())
    product = 2 * (4096 * 32768 + 32768 * 1024 + 4096 * 1024)
    assert moved.forward[0] == about((product + 12 * 134_217_728) / 1e9)
    unfused = head_times(MEMORY, links(MEMORY), inputs(attention="unfused"))
    assert unfused.forward[0] == about((product + 35 * 134_217_728) / 1e9)
    assert embedding(MEMORY, inputs())[0] == about(8 * 8_388_608 / 1e9)


# ---- links --------------------------------------------------------------------------------------------------------


def test_collectives_on_a_node():
    size, one = np.array([1e9]), np.ones(1)
    for ranks in (2.0, 4.0):
        group = np.array([ranks])
        assert links(LINKS).all_reduce(size, group, one)[0] == about(2 * (ranks - 1) / ranks)
        assert links(LINKS).all_gather(size, group, one)[0] == about((ranks - 1) / ranks)
        assert links(LINKS).reduce_scatter(size, group, one)[0] == about((ranks - 1) / ranks)
        assert links(LINKS).all_to_all(size, group, one)[0] == about((ranks - 1) / ranks)
    assert links(LINKS).all_reduce(size, one, one)[0] == 0.0
    assert links(LINKS).send(size, one)[0] == about(1.0)


def test_collectives_between_nodes_share_the_network():
    """8 ranks side by side on two nodes: one ring leaves a node, 2 · 7/8 GB at 0.1 GB/s. Every fourth rank of 16: four
    such groups share it, 2 · 3/4 GB each. From a rank to the same one of the next node four send at once."""
    size = np.array([1e9])
    assert links(LINKS).all_reduce(size, np.array([8.0]), np.ones(1))[0] == about(17.5)
    assert links(LINKS).all_reduce(size, np.array([4.0]), np.array([4.0]))[0] == about(1.5 * 4 / 0.1)
    assert links(LINKS).all_to_all(size, np.array([8.0]), np.ones(1))[0] == about(0.5 * 4 / 0.1)
    assert links(LINKS).send(size, np.array([4.0]))[0] == about(4 / 0.1)


def test_tensor_parallel_layers_reduce_twice_and_sequence_parallel_ones_send_as_much():
    """8,388,608 bytes of a micro batch; two all-reduces of 2 · 3/4 of them."""
    for sp in (0, 1):
        found = layer(LINKS, tp=4, sp=sp, gpus=4)
        assert found["tp_forward"] == about(2 * 1.5 * 8_388_608 / 1e9)
        assert found["tp_backward"] == about(2 * 1.5 * 8_388_608 / 1e9)


def test_keys_and_values_go_round_the_ring():
    """2 · 4096 tokens · 2 heads · 128 · 2 bytes = 4,194,304, of which 3/4 come from others."""
    assert layer(LINKS, cp=4, gpus=4)["cp"] == about(0.75 * 4_194_304 / 1e9)


def test_tokens_travel_to_their_experts_and_back():
    """4096 tokens · 2 experts · 2048 bytes, 1.1 times as many at the busiest, 3/4 to others, there and back."""
    moe = {"experts": 8, "topk": 2, "expert_ffn": 1024, "ep": 4, "gpus": 4}
    assert layer(LINKS, **moe)["ep"] == about(2 * 0.75 * 1.1 * 16_777_216 / 1e9)
    # gathered and scattered: 4 ranks' tokens, 3/4 of them from others, twice
    assert layer(LINKS, **moe, dispatcher="allgather")["ep"] == about(2 * 0.75 * 4 * 8_388_608 / 1e9)


# ---- a stage, a step ----------------------------------------------------------------------------------------------

# weights of a layer: 1024 · 1536 + 1024² + 3 · 1024 · 4096 and two norms
LAYER = 15_206_400


def test_a_stage_is_its_layers_forward_and_backward():
    x = inputs(ar="none")
    times = layer_times(COMPUTE, links(COMPUTE), x)
    found = stage(COMPUTE, links(COMPUTE), x, np.array([8.0]), times, None)
    assert found["compute"][0] == about(8 * (3 * PRODUCTS + 3.5 * ATTENTION) / 1e12)
    assert found["recompute"][0] == 0.0
    full = inputs(ar="full")
    again = stage(COMPUTE, links(COMPUTE), full, np.array([8.0]), times, None)
    assert again["recompute"][0] == about(8 * (PRODUCTS + ATTENTION) / 1e12)
    half = inputs(ar="full", ar_method="block", ar_layers=4)
    some = stage(COMPUTE, links(COMPUTE), half, np.array([8.0]), times, None)
    assert some["recompute"][0] == about(4 * (PRODUCTS + ATTENTION) / 1e12)
    core = inputs(ar="selective", attention="unfused")
    unfused = layer_times(COMPUTE, links(COMPUTE), core)
    kept = stage(COMPUTE, links(COMPUTE), core, np.array([8.0]), unfused, None)
    assert kept["recompute"][0] == about(8 * 2 * ATTENTION / 1e12)


def test_stages_send_activations_on_and_gradients_back():
    """8,388,608 bytes each way, to the next device of the node; a chunk at a time with interleaving, of which four
    fifths hide."""
    for more, factor in (({}, 1.0), ({"vpp": 2}, 2.0), ({"vpp": 2, "overlap_p2p": 1}, 0.4)):
        x = inputs(pp=2, gpus=2, **more)
        times = layer_times(LINKS, links(LINKS), x)
        found = stage(LINKS, links(LINKS), x, np.array([4.0]), times, None)
        assert found["pp"][0] == about(factor * 2 * 8_388_608 / 1e9)


def test_the_pipeline_is_idle_while_it_fills_and_drains():
    """Four stages of 3 s: (p − 1) t = 9 s; two chunks halve it; with a slow one of 5 s the others' 9 s are waited."""
    assert idle(np.array([3.0]), np.array([12.0]), np.array([1.0]))[0] == 9.0
    assert idle(np.array([3.0]), np.array([12.0]), np.array([2.0]))[0] == 4.5
    assert idle(np.array([5.0]), np.array([14.0]), np.array([1.0]))[0] == 9.0


def test_gradients_are_exchanged_between_replicas():
    """4 bytes a gradient, four replicas: 2 · 3/4 of it reduced, or 3/4 scattered and 3/4 of 2 bytes a weight
    gathered."""
    weights = _weights(2.0)
    other = {"layers": 2, "gpus": 4, "dp": 4}
    whole = exchange(LINKS, links(LINKS), inputs(**other), np.array([2.0])).exposed(np.zeros(1), np.zeros(1))
    assert whole[0] == about(1.5 * 4 * weights / 1e9)
    shared = exchange(LINKS, links(LINKS), inputs(**other, distopt=1), np.array([2.0])).exposed(
        np.zeros(1), np.zeros(1)
    )
    assert shared[0] == about(0.75 * (4 + 2) * weights / 1e9)


def test_the_optimizer_moves_48_bytes_of_each_weight_that_is_its_own():
    weights = _weights(2.0)
    alone = optimizer(MEMORY, inputs(layers=2, gpus=4, dp=4), np.array([2.0]))
    assert alone[0] == about(48 * weights / 1e9)
    shared = optimizer(MEMORY, inputs(layers=2, gpus=4, dp=4, distopt=1), np.array([2.0]))
    assert shared[0] == about(48 * weights / 4e9)


def _weights(layers: float) -> float:
    """Of the whole model: its layers and two tables of 32768 · 1024; the last norm's 1024 are left out."""
    return layers * LAYER + 2 * 33_554_432


def test_grouped_products_are_launched_at_once_for_all_experts_and_others_one_by_one():
    slow = msgspec.structs.replace(COMPUTE, host=msgspec.structs.replace(COMPUTE.host, forward_us=1e6))
    given = {"experts": 16, "topk": 2, "expert_ffn": 1024}

    def launched(**more: int) -> float:
        return layer(slow, **given, **more)["host_forward"]

    assert launched(te=1, ep=1) == launched(te=1, ep=8) > 3 * layer(slow, te=1)["host_forward"]
    assert launched(te=0, ep=1) - launched(te=0, ep=8) == about(3 * (16 - 2))


def test_biases_and_clamped_gates_of_experts_are_operators_of_their_own():
    """Of two layers of 1,024 by 512 with a gate: 8 and 10 bytes an element of the first one's output, 28 and 40 of the
    second one's."""

    def more(topk: int) -> list[float]:
        given = {"experts": 16, "topk": topk, "expert_ffn": 512, "gated": 1}
        plain, biased = layer(MEMORY, **given), layer(MEMORY, **given, expert_bias=1)
        return [biased[way] - plain[way] for way in ("forward", "backward")]

    forward, backward = more(2)
    assert forward == about(1e-9 * 2 * 4096 * (8 * 2 * 512 + 28 * 1024))  # of 4,096 tokens
    assert backward / forward == about((10 * 2 * 512 + 40 * 1024) / (8 * 2 * 512 + 28 * 1024))
    assert more(4) == [about(2 * forward), about(2 * backward)]


def test_a_device_waits_for_a_slow_host():
    """10 operators a layer forward, 14 backward; what they compute meanwhile does not wait."""
    slow = msgspec.structs.replace(COMPUTE, host=msgspec.structs.replace(COMPUTE.host, forward_us=1e5, backward_us=1e5))
    x = inputs()
    times = layer_times(slow, links(slow), x)
    found = stage(slow, links(slow), x, np.array([1.0]), times, None)
    forward, backward = (PRODUCTS + ATTENTION) / 1e12, (2 * PRODUCTS + 2.5 * ATTENTION) / 1e12
    assert found["host"][0] == about((1.0 - forward) + (1.4 - backward))


# ---- memory -------------------------------------------------------------------------------------------------------

GPT = {
    "layers": 8, "heads": 16, "kv_heads": 16, "head_dim": 64, "gated": 0, "seq_len": 1024, "mbs": 1, "dropout": 1,
    "learned_positions": 1,
}  # fmt: skip
SBH = 1_048_576  # one sequence of 1024 by a hidden size of 1024


def stage_bytes(index: int = 0, **other: Any) -> dict[str, float]:
    found = of_stage(inputs(**(GPT | other)), np.array([float(index)]))
    return {name: float(np.broadcast_to(value, 1)[0]) for name, value in found.items()}


@pytest.mark.parametrize(
    ("told", "layer_sbh"),
    [
        ({"attention": "unfused"}, 34 + 5 * 16),  # 34 + 5 a s / h
        ({"attention": "unfused", "tp": 4, "gpus": 4}, 10 + 24 / 4 + 5 * 16 / 4),
        ({"attention": "unfused", "tp": 4, "sp": 1, "gpus": 4}, (34 + 5 * 16) / 4),
        ({"attention": "unfused", "ar": "selective"}, 34),
        ({"attention": "unfused", "cp": 2, "gpus": 2}, 17 + 5 * 16 / 2),
        ({"attention": "flash"}, 34),
    ],
)
def test_activations_of_a_layer_are_the_papers(told, layer_sbh):
    """Korthikanti et al. 2022, equations 1 to 5, and the mask of the embedding's dropout. What the last layer needs on
    its way back is less than the logits that are gone by then; a fused core has nothing to repeat."""
    share = 4 if told.get("sp") else told.get("cp", 1)
    assert stage_bytes(**told)["activations"] == about((8 * layer_sbh + 1 / share) * SBH)


def test_a_layer_that_is_recomputed_keeps_its_input():
    """2 bytes a value, and one layer's 34 while it is computed again; four layers a group keep one input, and need four
    layers' while they are."""
    whole = stage_bytes(attention="flash", ar="full")
    assert whole["activations"] == about((8 * 2 + 34 + 1) * SBH)
    groups = stage_bytes(attention="flash", ar="full", ar_layers=4)
    assert groups["activations"] == about((8 / 4 * 2 + 4 * 34 + 1) * SBH)


def test_stages_hold_as_many_micro_batches_as_are_in_flight():
    """1F1B: p − i of 2 layers each; interleaved in two chunks of one layer: 2 (p − i − 1) + (v − 1) p + 1. On the first
    stage the embedding's gradient comes when one of these is gone, which here is less."""
    pipeline = {"attention": "flash", "pp": 4, "gpus": 4}
    assert stage_bytes(0, **pipeline)["activations"] == about(4 * (2 * 34 + 1) * SBH)
    assert stage_bytes(2, **pipeline)["activations"] == about(2 * 2 * 34 * SBH)
    assert stage_bytes(3, **pipeline)["activations"] == about(2 * 34 * SBH)
    embedding = 2 * 32768 * 1024
    assert stage_bytes(0, **pipeline, vpp=2)["activations"] == about((11 * 35 - 34) * SBH + embedding)
    assert stage_bytes(0, **pipeline, vpp=2, vocab=8192)["activations"] == about(11 * 35 * SBH)
    assert stage_bytes(3, **pipeline, vpp=2)["activations"] == about(5 * 34 * SBH)
    few = stage_bytes(0, **(pipeline | {"global_batch": 2}))
    assert few["activations"] == about(2 * (2 * 34 + 1) * SBH)


def test_the_last_stage_has_the_logits():
    """8 bytes of 1024 · 32768, and the head's input in 16 bits, twice."""
    pipeline = {"attention": "flash", "pp": 4, "gpus": 4}
    assert stage_bytes(3, **pipeline)["logits"] == about(8 * 1024 * 32768 + 4 * SBH)
    assert stage_bytes(0, **pipeline)["logits"] == 0.0
    assert stage_bytes(0, attention="flash", tp=4, gpus=4)["logits"] == about(8 * 1024 * 8192 + 4 * SBH)


@pytest.mark.parametrize(
    ("told", "weights", "gradients", "optimizer"),
    [
        ({}, 2, 4, 12),
        ({"distopt": 1}, 2, 4, 3),
        ({"zero": 1}, 2, 4, 3),
        ({"zero": 2}, 2, 1, 3),
        ({"zero": 3}, 1, 1, 2),
        ({"dtype": "fp32"}, 4, 4, 8),
    ],
)
def test_bytes_of_a_parameter_on_four_replicas(told, weights, gradients, optimizer):
    """Of a layer of 1024: 4 · 1024² and 2 · 1024 · 4096 and two norms; two tables of 32768, 1024 positions."""
    parameters = 8 * 12_584_960 + 2 * 33_554_432 + SBH
    found = stage_bytes(gpus=4, dp=4, **told)
    assert found["weights"] == about(weights * parameters)
    assert found["gradients"] == about(gradients * parameters)
    assert found["optimizer"] == about(optimizer * parameters)
