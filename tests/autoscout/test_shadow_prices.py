"""A step's price from its traces: passes in Megatron-core's own order, streams beside kernels, products in 8 bits."""

import importlib.util
import sys
from typing import Any

import msgspec
import pytest

from autoscout.simulate.hardware.device import hardware
from autoscout.simulate.shadow import overlap_replay, pipeline_replay
from autoscout.simulate.shadow.pricing import priced
from autoscout.simulate.shadow.traced import Rank
from autoscout.targets.megatron.shadow import ask, question_of
from kb.records import Cluster, Configuration, Job, LaunchSettings, Model, Node, Objective, Traffic

engine = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("megatron") is None, reason="needs the megatron extra"),
]


def job(experts: int = 0) -> Job:
    shape: dict[str, Any] = {
        "layers": 8,
        "hidden": 256,
        "heads": 4,
        "kv_heads": 2,
        "ffn": 512,
        "vocab": 1536,
        "bias": False,
    }
    more: dict[str, Any] = {"experts": experts, "topk": 2, "expert_ffn": 128} if experts else {}
    return Job(
        name="small",
        target="megatron",
        model=Model(**shape, **more, gated=True, norm="rmsnorm", position="rope"),
        traffic=Traffic(seq_len=128, global_batch=32),
        cluster=Cluster(nodes=[Node(device="h100", count=8)]),
        objective=Objective(minimize="step_time_s"),
        launch=LaunchSettings(transformer_engine=True),
    )


def asked(experts: int = 0, **knobs: Any) -> dict[str, Any]:
    known = {"tp": 1, "pp": 1, "dp": 8, "mbs": 1, "distopt": True, "overlap_grad": True, "overlap_param": True}
    return question_of(job(experts), Configuration({**known, "ddp_bucket": 1, **knobs}))


_EXPERTS: dict[str, Any] = {"ep": 4, "etp": 1, "dispatcher": "alltoall", "permute_fusion": True}
_CHUNKS: dict[str, Any] = {"pp": 2, "dp": 4, "vpp": 2, "overlap_p2p": True}
QUESTIONS: dict[str, dict[str, Any]] = {
    "stages": {**asked(pp=4, dp=2), "rank": 2},
    "chunks": {**asked(**_CHUNKS), "rank": 4},
    "last chunks": {**asked(**_CHUNKS), "rank": 7},
    "gathered beside": {**asked(), "rank": 0},
    "gathered after": {**asked(overlap_param=False), "rank": 0},
    "8 bits": {**asked(fp8="tensorwise"), "rank": 0},
    "experts in 8 bits": {**asked(4, fp8="tensorwise", **_EXPERTS), "rank": 0},
    "experts": {**asked(4, **_EXPERTS), "rank": 0},
    "tilted experts": {**asked(4, **_EXPERTS), "rank": 0, "imbalance": 1.5},
}


@pytest.fixture(scope="module")
def traced() -> dict[str, Rank]:
    """All asked of one process."""
    found = dict(zip(QUESTIONS, ask(list(QUESTIONS.values()), [sys.executable], 300.0), strict=True))
    assert all(rank.verdict == "starts" for rank in found.values()), [r.message for r in found.values()]
    return found


def slow_at(place: int) -> list[float]:
    forward = [[2.0 if stage == place else 1.0] for stage in range(4)]
    backward = [[2 * s for s in stage] for stage in forward]
    return pipeline_replay.ends(forward, backward, 0.0, 40, [0.0] * 4, False)


def _balanced(rank: Rank) -> Rank:
    return msgspec.structs.replace(rank, imbalance=1.0)


class TestThePipeline:
    def test_equal_stages_take_what_the_closed_form_says(self):
        forward, backward = [[1.0]] * 4, [[2.0]] * 4
        for micro in (4, 16, 64, 1000):
            assert max(pipeline_replay.ends(forward, backward, 0.0, micro, [0.0] * 4, False)) == 3.0 * (micro + 3)

    def test_chunks_divide_the_wait(self):
        forward, backward = [[0.25] * 4] * 4, [[0.5] * 4] * 4
        assert max(pipeline_replay.ends(forward, backward, 0.0, 64, [0.0] * 4, True)) == 64 * 3 + 3 * 3 / 4

    def test_a_slow_last_stage_sets_the_pace(self):
        """As a flow shop's equal jobs: the first passes all stages, each of the others takes what the slowest does."""
        assert max(slow_at(3)) == 3 * (3 + 2 * 40)

    def test_earlier_stages_run_ahead_of_what_they_wait_for(self):
        """With more micro batches in flight a slow stage waits less than its place in the flow shop says."""
        assert max(slow_at(0)) < max(slow_at(1)) < max(slow_at(2)) < max(slow_at(3))
        assert max(slow_at(0)) > 3 * 2 * 40

    def test_many_micro_batches_go_on_as_the_last_round_did(self):
        forward, backward = [[1.0], [1.5], [0.5]], [[2.0], [2.5], [1.5]]
        shortened = pipeline_replay.ends(forward, backward, 0.1, 50, [0.3, 0.0, 0.0], False)
        assert shortened == pytest.approx(pipeline_replay._replayed(forward, backward, 0.1, 50, [0.3, 0.0, 0.0], False))

    def test_sending_beside_kernels_costs_less(self):
        forward, backward = [[0.5] * 2] * 2, [[1.0] * 2] * 2
        beside = max(pipeline_replay.ends(forward, backward, 0.1, 16, [0.0] * 2, True))
        blocking = max(pipeline_replay.ends(forward, backward, 0.1, 16, [0.0] * 2, False))
        assert beside < blocking < beside + 16 * 2 * 2 * 0.1 + 1


class TestStreams:
    def test_a_gradient_that_is_complete_early_travels_beside_kernels(self):
        kernel, sent = ["k", "backward"], ["collective", "backward", "reduce_scatter", "dp+cp", 8, 2**20]
        early = overlap_replay.replayed([sent, kernel, kernel], lambda *_: 1.0, lambda _: 1.5)
        late = overlap_replay.replayed([kernel, kernel, sent], lambda *_: 1.0, lambda _: 1.5)
        assert (early.after, early.hidden) == (0.0, 1.5)
        assert (late.after, late.hidden) == (1.5, 0.0)

    def test_weights_are_waited_for_one_bucket_ahead(self):
        gather, kernel = ["collective", "forward", "allgather", "dp+cp", 8, 2**20], ["k", "forward"]
        found = overlap_replay.replayed([gather, gather, kernel, gather, kernel], lambda *_: 1.0, lambda _: 3.0)
        assert found.before == 3.0
        assert found.between == 2.0


def test_neighbours_of_an_expert_group_are_on_one_node_whatever_tp_is():
    """Megatron-core lays experts out by themselves: 8 ranks of a group fill a node, also where tp is 2."""
    hw = hardware("h100")
    assert hw
    sent = [[10, "alltoall_base", "ep", 8, 2**26, "forward"]]
    rank = Rank(rank=0, verdict="starts", collectives=sent, micro_batches=1, micro_batches_traced=1)
    prices = [priced([rank], {"tp": tp, "dp": 8 // tp, "ep": 8, "etp": 1}, hw, "bf16") for tp in (1, 2)]
    assert len({price.parts["ep"] for price in prices if price}) == 1


def test_a_replica_groups_neighbours_are_tp_apart_whatever_cp_is():
    """Ranks are laid out tp first, then cp, then dp; gradients are summed over cp and dp together: of one node of 8,
    with tp 4, the two of a group are on it, whether they share a sequence or not."""
    hw = hardware("h100")
    assert hw
    summed = [[10, "reduce_scatter_tensor", "dp+cp", 2, 2**26, "backward"]]
    rank = Rank(rank=0, verdict="starts", collectives=summed, micro_batches=1, micro_batches_traced=1)
    prices = [priced([rank], {"tp": 4, "cp": cp, "dp": 2 // cp}, hw, "bf16") for cp in (1, 2)]
    assert len({price.step_s for price in prices if price}) == 1


class TestTraces:
    pytestmark = engine

    @pytest.mark.parametrize(("name", "pp", "vpp"), [("stages", 4, 1), ("chunks", 2, 2)])
    def test_passes_come_in_megatrons_order(self, traced, name, pp, vpp):
        found = traced[name]
        passes = [(phase == "forward", chunk) for name, phase, chunk, *_ in found.order if name == "pass"]
        said = pipeline_replay.order(pp, 1, vpp, found.micro_batches_traced)
        assert passes == [(there, chunk) for there, chunk, _ in said]

    def test_chunks_share_the_kernels_of_a_stage(self, traced):
        found = traced["last chunks"]
        heads = [[k for k in chunk.kernels if k[1] == "matmul" and k[3][-1] == 1536] for chunk in found.chunks]
        assert [bool(head) for head in heads] == [False, True]
        passes = [k for k in found.kernels if k[2] in ("forward", "backward")]
        counted = sum(k[0] for chunk in found.chunks for k in chunk.kernels if k[2] in ("forward", "backward"))
        assert counted == sum(k[0] for k in passes)

    def test_products_in_8_bits_are_so_on_the_way_back(self, traced):
        found = traced["8 bits"]
        kinds = {k[1]: k[2] for k in found.kernels if k[1].startswith("matmul") and k[3][-1] != 1536}
        assert kinds["matmul 8-bit into gradient"] == "backward"
        assert not [k for k in found.kernels if k[1] == "matmul" and 1536 not in k[3]]

    def test_experts_start_in_8_bits(self, traced):
        found = traced["experts in 8 bits"]
        grouped = [k for k in found.kernels if k[1].startswith("matmul 8-bit") and len(k[3]) == 4]
        assert {k[3][0] for k in grouped} == {1}

    def test_the_rank_with_most_tokens_sets_the_pace(self, traced):
        """A tenth more than the mean, from a trace with half as much again."""
        hw = hardware("h100")
        assert hw
        even, tilted = traced["experts"], traced["tilted experts"]
        known = {"tp": 1, "pp": 1, "dp": 8, **_EXPERTS}
        prices = [priced(ranks, known, hw, "bf16") for ranks in ([even], [even, tilted], [_balanced(tilted)])]
        plain, busiest, at_half_more = (price.parts["ep"] + price.parts["matmul"] for price in prices if price)
        assert busiest - plain == pytest.approx((at_half_more - plain) / 5)
        assert busiest > plain

    def test_weights_that_are_not_gathered_beside_kernels_are_in_the_price(self, traced):
        hw = hardware("h100")
        assert hw
        knobs = {"tp": 1, "pp": 1, "dp": 8, "distopt": True, "overlap_grad": True}
        beside = priced([traced["gathered beside"]], {**knobs, "overlap_param": True}, hw, "bf16")
        after = priced([traced["gathered after"]], {**knobs, "overlap_param": False}, hw, "bf16")
        assert beside
        assert after
        assert after.parts["dp"] > beside.parts["dp"]
