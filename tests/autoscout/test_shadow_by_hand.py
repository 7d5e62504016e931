"""Prices of traces worked out by hand, on a device that computes 10¹² FLOP a second on two multiprocessors, moves 10⁹
bytes a second, and sends as many within a node of four, a tenth of that between nodes. So a kernel "copy" of 10⁹ bytes
takes a second."""

import math
from typing import Any

import msgspec
import pytest
from test_by_hand import about, device

from autoscout.simulate.shadow import pricing
from autoscout.simulate.shadow.overlap_replay import replayed, supposed
from autoscout.simulate.shadow.pipeline_replay import _replayed, ends, order
from autoscout.simulate.shadow.pricing import PricedTrace, Setting, _kernel, priced
from autoscout.simulate.shadow.traced import Chunk, Rank, Timed

change = msgspec.structs.replace
HW = change(device(tflops=1.0, memory=1.0, link=1.0, between=0.1), multiprocessors=2)
GB = 10**9


def rank(number: int = 0, forward: float = 1.0, backward: float = 2.0, **more: Any) -> Rank:
    kernels = [[1, "copy", "forward", forward * GB], [2, "copy", "backward", backward * GB / 2]]
    kernels.append([1, "copy", "step", GB / 2])
    usual: dict[str, Any] = {"verdict": "starts", "micro_batches": 4, "micro_batches_traced": 1, "kernels": kernels}
    return Rank(rank=number, **{**usual, **more})


def price(*ranks: Rank, timed: tuple[Timed, ...] = (), copies: int = 0, **knobs: Any) -> PricedTrace:
    found = priced(ranks, knobs, HW, "bf16", timed, copies)
    assert found is not None
    assert found.step_s == about(sum(found.parts.values()) + found.bubble_s)
    return found


def seconds(name: str, *shapes: Any, hw: Any = HW, dtype: str = "bf16") -> float:
    return _kernel(name, list(shapes), hw, dtype)[1]


def collective(operation: str, group: str, ranks: int, hw: Any = HW, copies: int = 0, **knobs: Any) -> float:
    return pricing._collective([9, operation, group, ranks, GB, "forward"], Setting(knobs, hw, "bf16", copies))


# ---- kernels and collectives --------------------------------------------------------------------------------------


def test_products_of_a_trace():
    """[m, k, n]: 64 × 32 results, 32 × 128 weights and 64 × 128 inputs are 14,336 values, 524,288 FLOP."""
    assert seconds("matmul", [64, 128, 32]) == about(28_672 / 1e9)
    assert seconds("matmul", [64, 128, 32], dtype="fp32") == about(57_344 / 1e9)
    assert seconds("matmul into gradient", [64, 128, 32]) == about((28_672 + 8 * 2048) / 1e9)
    assert seconds("matmul", [3, 64, 128, 32]) == about(3 * 28_672 / 1e9)
    assert seconds("matmul into gradient", [3, 64, 128, 32]) == about(3 * (28_672 + 8 * 2048) / 1e9)
    eight = change(device(tflops=1.0), multiprocessors=2, peak_tflops={"bf16": 1.0, "fp8": 2.0})
    assert seconds("matmul", [64, 128, 32], hw=eight) == about(524_288 / 1e12)
    assert seconds("matmul 8-bit", [64, 128, 32], hw=eight) == about(524_288 / 2e12)
    assert _kernel("matmul", [[64, 128, 32]], HW, "bf16")[0] == "matmul"


def test_attention_of_a_trace():
    """2 · batch · heads · queries · keys · size FLOP, whichever of the first two sizes is the batch; keys of all ranks
    that share the sequence; five products back instead of two."""
    once = 2 * 1 * 2 * 256 * 512 * 128 / 1e12
    assert seconds("attention", [1, 256, 2, 128], [1, 256], 2) == about(once)
    assert seconds("attention", [256, 1, 2, 128], [512, 1], 1) == about(once)
    assert seconds("attention backward", [1, 256, 2, 128], [1, 256], 2) == about(2.5 * once)
    assert _kernel("attention", [[1, 256, 2, 128], [1, 256], 2], HW, "bf16")[0] == "attention"


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("norm", 2 / 0.5), ("norm backward", 3 / 0.5), ("rotary", 2), ("rotary backward", 2), ("quantise", 2),
        ("moved", 1), ("cross entropy", 1.5), ("cross entropy backward", 1.5), ("softmax", 1.5),
        ("softmax backward", 3),
    ],
)  # fmt: skip
def test_what_kernels_move(name: str, values: float):
    """Values read and written, of 64 × 256; norms reach half of the bandwidth here, and a launch takes 2 µs."""
    hw = change(HW, elementwise=change(HW.elementwise, norm_bandwidth=0.5, overhead_us=2.0))
    assert seconds(name, [64, 256], hw=hw) == about(2e-6 + values * 2 * 16_384 / 1e9)
    assert seconds(name, [64, 256], hw=hw, dtype="fp32") == about(2e-6 + values * 4 * 16_384 / 1e9)
    assert _kernel(name, [[64, 256]], hw, "bf16")[0] == "elementwise"


def test_other_kernels_of_a_trace():
    assert seconds("adam", [5000]) == about(28 * 5000 / 1e9)  # of a parameter 28 bytes, whatever the products' type
    assert seconds("adam", [5000], dtype="fp32") == about(28 * 5000 / 1e9)
    assert seconds("copy", 4096) == about(4096 / 1e9)
    assert seconds("anything") == seconds("anything", [3]) == 0.0


def test_collectives_of_a_trace():
    """10⁹ bytes: a ring of two on a node passes them once for a sum, half for a gather; what leaves a node goes at
    10⁸ bytes a second, which all groups share whose ranks are on the same nodes."""
    assert collective("allreduce", "tp", 1, tp=2) == 0.0
    assert collective("allreduce", "tp", 2, tp=2) == about(1.0)
    assert collective("allgather_base", "tp", 2, tp=2) == about(0.5)
    assert collective("reduce_scatter_base", "tp", 4, tp=4) == about(0.75)
    assert collective("alltoall_base", "ep", 4) == about(0.75)
    assert collective("allreduce", "cp", 2, tp=2, cp=2) == about(1.0)  # two apart: on one node
    assert collective("allreduce", "cp", 2, tp=4, cp=2) == about(1.0 * 4 / 0.1)  # four apart: on two
    assert collective("allreduce", "dp+cp", 2, tp=2) == about(1.0)
    assert collective("allreduce", "dp+cp", 2, tp=4) == about(40.0)
    assert collective("allreduce", "dp+cp", 4, tp=2) == about(1.5 * 2 / 0.1)  # two on each of two nodes, two groups
    assert collective("send", "pp", 2, dp=3) == about(1.0)
    assert collective("send", "pp", 2, dp=2, tp=2) == collective("send", "pp", 2, cp=4) == about(40.0)
    # Experts are laid out by themselves: neighbours of their groups are etp apart, where etp is not tp.
    assert collective("allgather", "etp", 2, tp=8) == about(0.5)
    assert collective("alltoall", "ep", 2, tp=4) == about(0.5 * 4 / 0.1)
    assert collective("alltoall", "ep", 2, tp=4, etp=1) == about(0.5)
    assert collective("alltoall", "tp+ep", 4, tp=4) == about(0.75)
    assert collective("allreduce", "expert dp", 2, tp=4, etp=1, ep=2) == about(1.0)
    assert collective("allreduce", "expert dp", 2, tp=4, etp=2, ep=2) == about(40.0)


def test_a_token_that_goes_to_several_experts_crosses_once_a_node():
    """8 ranks on two nodes, 4 copies of 0.25 GB: half of the gigabyte crosses, or a copy to the other node unless
    all four stay: 0.25 · (1 − 2⁻⁴) GB; four ranks share the network card."""
    assert collective("alltoall", "ep", 8, etp=1) == about(0.5 * 4 / 0.1)
    assert collective("alltoall", "ep", 8, etp=1, copies=4) == about(0.25 * 15 / 16 * 4 / 0.1)


def test_collectives_inside_layers_come_late():
    hw = change(HW, island=change(HW.island, inside_us=[3e6]))
    assert collective("allreduce", "tp", 2, hw=hw, tp=2) == about(1.0 + 3)
    assert collective("alltoall", "ep", 2, hw=hw) == about(0.5 + 3)
    assert collective("allgather", "etp", 2, hw=hw) == collective("allgather", "tp+ep", 2, hw=hw) == about(0.5 + 3)
    assert collective("allreduce", "cp", 2, hw=hw) == collective("allreduce", "dp+cp", 2, hw=hw) == about(1.0)


# ---- orders -------------------------------------------------------------------------------------------------------


def said(program: list[tuple[bool, int, int]]) -> str:
    return " ".join(f"{'FB'[not there]}{chunk}{batch}" for there, chunk, batch in program)


def test_orders_of_passes():
    """1F1B: so many passes ahead as stages come after; chunks: in rounds of as many micro batches as stages, twice as
    far ahead and a round for each chunk more."""
    assert said(order(2, 0, 1, 3)) == "F00 F01 B00 F02 B01 B02"
    assert said(order(2, 1, 1, 3)) == "F00 B00 F01 B01 F02 B02"
    assert said(order(4, 0, 1, 2)) == "F00 F01 B00 B01"
    assert said(order(2, 0, 2, 2)) == "F00 F01 F10 F11 B10 B11 B00 B01"
    assert said(order(2, 1, 2, 3)) == "F00 F01 F10 B10 F11 B11 F02 B00 F12 B01 B12 B02"


def test_when_stages_are_done():
    """The second stage gets its input at 1.5, ends at 2.5 and 4.5, and the first gets its gradients at 5."""
    forward, backward = [[1.0], [1.0]], [[2.0], [2.0]]
    assert ends(forward, backward, 0.5, 1, [0.0, 0.0], False) == [7.0, 5.0]
    assert ends(forward, backward, 0.5, 1, [0.0, 0.0], True) == [7.0, 4.5]
    assert ends(forward, backward, 0.5, 1, [0.25, 3.0], True) == [8.5, 6.0]
    # Chunks 0 and 2 are the first stage's, 1 and 3 the second's: 1 + 10 + 100 + 1000, back with 2 each.
    chunks = [[1.0, 100.0], [10.0, 1000.0]]
    assert ends(chunks, [[2.0, 2.0]] * 2, 0.0, 1, [0.0, 0.0], False) == [1119.0, 1117.0]
    assert ends(chunks, [[2.0, 2.0]] * 2, 0.5, 1, [0.0, 0.0], True) == [1122.0, 1119.5]


@pytest.mark.parametrize("micro", [8, 9, 10, 11, 40])
def test_more_micro_batches_than_are_replayed(micro: int):
    forward, backward = [[1.0], [1.5]], [[2.0], [2.5]]
    found = ends(forward, backward, 0.1, micro, [0.3, 0.0], False)
    assert found == pytest.approx(_replayed(forward, backward, 0.1, micro, [0.3, 0.0], False))


def sent(phase: str, operation: str, group: str = "dp+cp") -> list[Any]:
    return ["collective", phase, operation, group, 8, 1]


def replay(*events: list[Any]) -> tuple[float, ...]:
    """Kernels of 1 s, exchanges of 3 s."""
    found = replayed(events, lambda *_: 1.0, lambda c: {"dp+cp": 3.0, "expert dp": 3.0}.get(c[2], 0.5))
    return found.before, found.between, found.after, found.hidden


def test_exchanges_beside_kernels():
    kernel, gather, reduce = ["k", "forward"], sent("forward", "allgather"), sent("backward", "reduce_scatter")
    assert replay(kernel, kernel) == (0, 0, 0, 0)
    assert replay(reduce, kernel, kernel) == (0, 0, 1, 2)
    assert replay(kernel, reduce, reduce) == (0, 0, 6, 0)  # one after the other
    assert replay(kernel, reduce, *[kernel] * 4, reduce) == (0, 0, 3, 3)
    assert replay(gather, kernel) == (3, 0, 0, 0)  # nothing runs before the first weights
    assert replay(gather, gather, kernel, gather, kernel) == (3, 2, 2, 2)
    assert replay(gather, gather, *[kernel] * 5, gather, *[kernel] * 4) == (3, 0, 0, 6)
    # Sums between ranks that share layers take their time among kernels, sends to neighbours none, the optimizer's
    # collectives and the marks of passes belong to no pass.
    assert replay(reduce, sent("backward", "allreduce", "tp"), kernel) == (0, 0, 1.5, 1.5)
    assert replay(reduce, sent("backward", "send", "pp"), kernel) == (0, 0, 2, 1)
    assert replay(reduce, ["pass", "backward"], ["k", "step"], sent("step", "allgather")) == (0, 0, 3, 0)
    assert replay(sent("backward", "reduce_scatter", "expert dp"), kernel) == (0, 0, 2, 1)


def test_exchanges_that_are_supposed():
    """4 s of weights and 8 s of gradients in 4 buckets: the last bucket is seen, and what 5 s of backward passes do not
    cover; half as much of a forward pass covers weights."""

    def parts(cover: float, first: bool = True, buckets: float = 4.0, **knobs: bool) -> tuple[float, ...]:
        found = supposed(4.0, 8.0, knobs, buckets, cover, first)
        assert found.before + found.between + found.after + found.hidden == about(12.0)
        return found.before, found.between, found.after

    assert parts(5.0) == (4, 0, 8)
    assert parts(5.0, overlap_grad=True) == (4, 0, 3)
    assert parts(7.0, overlap_grad=True) == (4, 0, 2)
    assert parts(7.0, overlap_grad=True, first=False) == (4, 0, 8)
    assert parts(5.0, overlap_param=True) == (1, 0.5, 8)
    assert parts(6.0, overlap_param=True) == (1, 0, 8)
    assert parts(5.0, buckets=0.5, overlap_grad=True, overlap_param=True) == (4, 0, 8)


# ---- steps --------------------------------------------------------------------------------------------------------


def test_a_step_of_one_device():
    found = price(rank())
    assert found.parts == {"elementwise": about(12.0), "optimizer": about(0.5)}
    assert found.bubble_s == 0.0
    assert price(rank(micro_batches_traced=2)).parts["elementwise"] == about(6.0)
    assert price(rank(micro_batches_traced=0)).parts["elementwise"] == about(12.0)
    assert priced([], {}, HW, "bf16") is None
    assert priced([rank(), rank(1, verdict="refused")], {}, HW, "bf16") is None


def test_the_slowest_of_many_devices_is_waited_for():
    """The largest of n normal deviations is about √(2 log n): of 1 % of what they compute."""
    four: list[dict[str, Any]] = [{"tp": 4}, {"cp": 4}, {"dp": 4}, {"tp": 2, "dp": 2}]
    for knobs in four:
        assert price(rank(), **knobs).parts["dp"] == about(0.01 * math.sqrt(2 * math.log(4)) * 12)
    assert price(rank(0), rank(1), pp=2).parts["dp"] == about(0.01 * math.sqrt(2 * math.log(2)) * 12)


def waits(*ranks: Rank, **knobs: Any) -> tuple[float, float]:
    """Seconds of kernels of the stage that sets the pace, and how long it waits."""
    found = price(*ranks, **knobs)
    return found.parts["elementwise"], found.bubble_s


def test_a_pipeline_of_traced_stages():
    """First, inner and last stage of a trace stand for all: a pass of the others is waited for once at both ends."""
    assert waits(rank(0), rank(1), pp=2) == (about(12.0), about(3.0))
    first, inner, last = rank(0, 1.0, 2.0), rank(1, 2.0, 4.0), rank(3, 1.0, 1.0)
    for pp, ranks in ((2, (last, first)), (3, (last, first, inner)), (5, (last, first, inner))):
        stages = [first, *[inner] * (pp - 2), last]
        forward = [[stage.kernels[0][3] / GB] for stage in stages]
        backward = [[2 * stage.kernels[1][3] / GB] for stage in stages]
        whole = max(ends(forward, backward, 0.0, 4, [0.0] * pp, False))
        pace = 12.0 if pp == 2 else 24.0
        assert waits(*ranks, pp=pp) == (about(pace), about(whole - pace))
    two = waits(first, last, pp=4)  # without an inner one, the first stands for it
    assert two == (about(12.0), about(max(ends([[1.0]] * 4, [[2.0]] * 3 + [[1.0]], 0.0, 4, [0.0] * 4, False)) - 12))


def test_sends_to_neighbours():
    """A gigabyte a second: the ends of a pipeline send one way, stages between both, chunks as often as there are;
    beside kernels nobody waits for them."""
    sends = [[4, "send", "pp", 2, GB, "forward"], [4, "recv", "pp", 2, GB, "backward"]]
    both = [rank(i, collectives=sends) for i in range(3)]
    assert price(*both[:2], pp=2).parts["pp"] == about(4.0)
    assert price(both[0], rank(1, 3.0, collectives=sends), both[2], pp=3).parts["pp"] == about(8.0)
    assert price(rank(0, 3.0, collectives=sends), both[1], pp=2).parts["pp"] == about(4.0)
    assert "pp" not in price(*both[:2], pp=2, overlap_p2p=True, vpp=2).parts
    assert price(*both[:2], pp=2, overlap_p2p=True).parts["pp"] == about(4.0)
    assert price(*both[:2], pp=2, vpp=2).parts["pp"] == about(12.0)
    assert "pp" not in price(rank(0), rank(1), pp=2).parts
    assert "pp" not in price(rank(0, collectives=sends)).parts


def test_chunks_of_a_stage():
    """Traced chunk by chunk, or all together and taken to be alike: a stage of two chunks waits half as long."""
    halves = [Chunk([[1, "copy", "forward", GB / 2], [1, "copy", "backward", GB]], [])] * 2
    for chunks in (halves, []):
        found = price(rank(0, chunks=chunks), rank(1, chunks=chunks), pp=2, vpp=2, overlap_p2p=True)
        assert found.parts["elementwise"] == about(12.0)
        assert found.bubble_s == about(1.5)


def test_what_is_sent_within_layers():
    def parts(*collectives: list[Any], kernels: list[Any] | None = None, **knobs: Any) -> dict[str, float]:
        more: dict[str, Any] = {} if kernels is None else {"kernels": kernels}
        return price(rank(collectives=list(collectives), micro_batches=1, **more), **knobs).parts

    both = parts(
        [2, "allreduce", "tp", 2, GB, "forward"], [1, "allgather", "tp", 2, GB, "backward"],
        [1, "alltoall", "ep", 2, GB, "forward"], [1, "allgather", "etp", 2, GB, "forward"],
        [1, "alltoall", "tp+ep", 2, GB, "backward"], [5, "allreduce", "tp", 2, GB, "step"],
        [5, "recv", "tp", 2, GB, "forward"], [5, "allreduce", "odd", 2, GB, "forward"],
    )  # fmt: skip
    assert (both["tp"], both["ep"]) == (about(2.5), about(1.5))
    # The next block of keys travels beside attention over the one before: half of it with two ranks, not gathered.
    attention = [1000, "attention", "forward", [1, 256, 2, 128], [1, 256], 2]
    busy = 1000 * 2 * 1 * 2 * 256 * 512 * 128 / 1e12
    ring = [1, "allgather", "cp", 2, GB, "forward"]
    assert parts(ring, kernels=[attention], cp=2)["cp"] == about(0.5 - busy / 2)
    assert parts(ring, kernels=[attention], cp=4)["cp"] == about(0.5 - busy * 3 / 4)
    assert parts(ring, kernels=[attention], cp=2, cp_comm="all_gather")["cp"] == about(0.5)
    assert parts(ring, kernels=[[100, *attention[1:]]], cp=2, cp_comm="p2p")["cp"] == about(0.5 - busy / 20)
    assert parts(ring, kernels=[[20_000, *attention[1:]]], cp=2)["cp"] == 0.0


def test_products_that_hide_what_tensor_parallel_ranks_send():
    """With as many multiprocessors as NCCL takes, 0.8 of it is hidden while these are missing to the products; half
    as many move it half as fast, twice as many no more than a quarter faster."""

    def both(tp_comm: float | None, products: float = 100.0) -> tuple[float, float]:
        knobs = {"tp": 2, "tp_comm_overlap": True} | ({} if tp_comm is None else {"tp_comm": tp_comm})
        return pricing._beside_products(products, 10.0, Setting(knobs, HW, "bf16", 0))

    assert both(None) == both(16) == (about(100 + 8 * 16 / 2), about(2.0))
    assert both(8) == (about(100 + 16 * 8 / 2), about(4.0))
    assert both(32) == (about(100 + 6.4 * 32 / 2), about(1.6))
    assert both(16, 5.0) == (about(5 + 5 * 16 / 2), about(5.0))
    assert both(0)[1] == about(160 - 100)
    sums = [[1, "allreduce", "tp", 2, GB, "forward"]]
    made = rank(collectives=sums, kernels=[[1, "matmul", "forward", [64, 128, 32]]], micro_batches=1)
    small = 28_672 / 1e9
    hidden = price(made, tp=2, tp_comm_overlap=True).parts
    assert (hidden["matmul"], hidden["tp"]) == (about(small * 9), about(1 - small))
    assert price(made, tp=2).parts["tp"] == about(1.0)


def dp_of(rank: Rank, **knobs: Any) -> float:
    """Seconds of the exchange between replicas, without what is waited for."""
    return price(rank, **knobs).parts.get("dp", 0.0)


def test_exchanges_between_replicas():
    """Of a trace without an order: 2 s of gradients; those sent beside kernels take multiprocessors from them."""
    reduce, gather = [4, "reduce_scatter", "dp+cp", 2, GB, "backward"], [2, "allgather", "dp+cp", 2, GB, "forward"]
    assert dp_of(rank(collectives=[reduce])) == about(2.0)
    assert dp_of(rank(collectives=[reduce, gather])) == about(3.0)
    mib = 2.0**20
    # In four buckets: 2 s of backward passes cover all but the last, half a second; 20 of 2 multiprocessors are taken.
    bucket = 4 * GB / 4 / mib
    assert dp_of(rank(collectives=[reduce]), overlap_grad=True, ddp_bucket=bucket) == about(0.5 + 10 * 1.5)
    assert dp_of(rank(collectives=[reduce]), overlap_grad=True) == about(2 / (4 * GB / (160 * mib)) * (1 - 10) + 20)
    assert dp_of(rank(0, collectives=[reduce]), overlap_grad=True, ddp_bucket=bucket, vpp=2) < 20
    late = [[1, "allgather", "dp+cp", 2, GB, "step"], [2, "allreduce", "embedding", 2, GB, "backward"]]
    late += [[1, "allreduce", "model", 2, GB, "forward"], [7, "allreduce", "dp+cp", 2, GB, "step"]]
    late += [[9, "allreduce", "embedding", 1, GB, "backward"]]
    assert dp_of(rank(collectives=late)) == about(0.5 + 2 + 1)
    whole = [["copy", "forward", GB], ["copy", "backward", GB], ["collective", "backward", *reduce[1:5]]]
    assert dp_of(rank(collectives=[reduce], order=whole, ordered=3)) == about(0.5)
    beside = [whole[2], whole[1]]
    assert dp_of(rank(collectives=[reduce], order=beside, ordered=2)) == about(10 * 0.5)
    assert dp_of(rank(collectives=[reduce], order=beside, ordered=3)) == about(2.0)  # cut off: not all was recorded


def test_gradients_of_later_stages_are_not_sent_bucket_by_bucket():
    reduce = [4, "reduce_scatter", "dp+cp", 2, GB, "backward"]
    bucket, on = 4 * GB / 4 / 2.0**20, {"overlap_grad": True}

    def after(number: int, **knobs: Any) -> float:
        setting = Setting({**on, "ddp_bucket": bucket, **knobs}, HW, "bf16", 0)
        return pricing._exchange(rank(number, collectives=[reduce]), setting, 2.0).after

    assert after(0, pp=2) == after(1, pp=2, vpp=2) == after(1) == about(0.5)
    assert after(1, pp=2) == about(2.0)


def test_the_busiest_experts_are_waited_for():
    """A rank with half as much again computes 1 s more forward and 2 s more backward: a fifth of that for a tenth
    more."""
    even, tilted = rank(), rank(0, 2.0, 4.0, imbalance=1.5)
    assert price(even).parts["elementwise"] == about(12.0)
    assert price(even, tilted).parts["elementwise"] == about(12.0 + 4 * (1 + 2) / 5)
    assert price(even, rank(7, 2.0, 4.0, imbalance=1.5)).parts["elementwise"] == about(12.0)
    assert price(even, change(tilted, verdict="timeout")).parts["elementwise"] == about(12.0)
    sums = [[1, "alltoall", "ep", 2, GB, "forward"]]
    assert price(even, change(tilted, collectives=sums)).parts["ep"] == about(4 * 0.5 / 5)


def test_seconds_of_a_device_take_the_place_of_prices():
    """Shared out as the kernels are priced: a third forward, and so where nothing has a price."""
    timed = Timed(rank=0, verdict="starts", micro_batch_s=9.0, once_s=0.25, optimizer_s=0.75)
    found = price(rank(), timed=(timed,))
    assert found.parts == {"kernels": about(36.0), "once": 0.25, "optimizer": 0.75}
    assert price(rank(), timed=(change(timed, verdict="refused"),)).parts == price(rank()).parts
    assert price(rank(), timed=(change(timed, rank=1),)).parts == price(rank()).parts
    free, on = rank(kernels=[]), Setting({}, HW, "bf16", 0)
    for of, expected in ((free, (3.0, 6.0)), (rank(0, 2.0, 1.0), (6.0, 3.0))):
        made = pricing._stage(of, on, timed)
        assert (made.forward, made.backward) == ([{"kernels": expected[0]}], [{"kernels": expected[1]}])
    chunks = [Chunk([], [])] * 2
    halves = pricing._stage(rank(kernels=[], chunks=chunks), on, timed)
    assert halves.forward == [{"kernels": about(1.5)}] * 2
    assert halves.backward == [{"kernels": about(3.0)}] * 2
    sums = [[1, "allreduce", "tp", 2, GB, "forward"]]
    assert price(rank(collectives=sums), timed=(timed,)).parts["tp"] == about(4.0)


def test_tokens_of_one_micro_batch_travel_beside_the_kernels_of_another():
    """All but the first one's and the last one's; a tenth of the multiprocessors moves them meanwhile."""
    sent = [[1, "alltoall_base", "ep", 2, GB, phase] for phase in ("forward", "backward")]
    hw = change(HW, multiprocessors=200)
    found = {on: priced([rank(collectives=sent)], {"overlap_experts": on}, hw, "bf16") for on in (False, True)}
    alone, beside = (price.parts["ep"] for price in found.values() if price)
    assert beside == about(alone / 4 + 0.1 * alone * 3 / 4)
    assert alone < 4 * 3.0  # than the kernels take


def test_stages_without_experts_are_priced_as_the_second_and_those_behind_as_their_own():
    """Of five stages the first two that are inner take 3 seconds a micro batch, the third takes 6."""
    ranks = [rank(0), rank(1), rank(3, 2.0, 4.0), rank(4)]
    slow = [1.0, 1.0, 1.0, 2.0, 1.0]
    whole = max(ends([[s] for s in slow], [[2 * s] for s in slow], 0.0, 4, [0.0] * 5, False))
    assert waits(*ranks, pp=5) == (about(24.0), about(whole - 24.0))
