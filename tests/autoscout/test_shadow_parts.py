"""Shadows from parts: a rank of a large job from traces of small ones, and what SQL is told of them."""

import msgspec
import pytest
from click.testing import CliRunner

from autoscout.simulate.shadow.composed import Depth, chunk_layers, composed
from autoscout.simulate.shadow.traced import KINDS, Chunk, Rank, Shadow, Step
from autoscout.simulate.shadow.verdict import peak
from autoscout.targets.megatron import shadow as whole
from autoscout.targets.megatron import shadow_parts
from autoscout.targets.target import target_of
from autoscout.targets.tracing import ShadowAsked
from kb import query
from kb.records import AutoscoutError, Configuration, Job
from tests.autoscout.test_shadow import engine, job, laid_out
from tui.cli import cli

WEIGHTS, KEPT, STATE = 100.0, 7.0, 64.0


def traced(layers: int, stages: int, replicas: int = 4) -> Rank:
    """A rank that keeps KEPT a layer and micro batch in flight, has WEIGHTS a layer, and STATE a layer shared out."""
    state = STATE * layers / replicas
    size = round(1000 + WEIGHTS * layers + KEPT * layers * stages + state)
    kinds = dict.fromkeys(KINDS, 0) | {"optimizer": round(state), "weights": round(1000 + WEIGHTS * layers)}
    kernels = [
        [(stages + 1) * layers * 2, "matmul", "forward", [8, 8, 8]],
        [(stages + 1), "matmul", "backward", [8, 8, 99]],
        [1, "adam", "step", [layers * 10]],
    ]
    collectives = [
        [(stages + 1) * layers, "allreduce", "tp", 2, 64, "forward"],
        [layers, "reduce_scatter", "dp+cp", replicas, 1000, "backward"],
    ]
    return Rank(
        rank=0,
        verdict="starts",
        peak=size,
        reserved=size,
        steps=[Step(forward_backward=size, optimizer=0, left=size)],
        micro_batches_traced=stages + 1,
        replicas=replicas,
        at_peak=kinds,
        left=kinds,
        kernels=kernels,
        collectives=collectives,
    )


class TestComposed:
    corners = tuple((Depth(layers, stages), traced(layers, stages)) for stages in (2, 3) for layers in (2, 3))

    def test_is_the_large_rank_byte_by_byte(self):
        found = composed(self.corners, Depth(20, 16), 4, sharded=True)
        assert peak(found) == peak(traced(20, 16))
        assert found.left == traced(20, 16).left

    def test_more_replicas_share_the_optimizer(self):
        shared = composed(self.corners, Depth(20, 16), 64, sharded=True)
        assert peak(shared) == peak(traced(20, 16, 64))
        alone = composed(self.corners, Depth(20, 16), 64, sharded=False)
        assert peak(alone) == peak(traced(20, 16, 4))

    def test_counts_are_of_one_micro_batch(self):
        found = composed(self.corners, Depth(20, 16), 64, sharded=True)
        counts = {(name, phase, str(shapes)): count for count, name, phase, *shapes in found.kernels}
        assert counts[("matmul", "forward", "[[8, 8, 8]]")] == pytest.approx(40)
        assert counts[("matmul", "backward", "[[8, 8, 99]]")] == pytest.approx(1)
        adam = next(shapes for _, name, _, *shapes in found.kernels if name == "adam")
        assert adam == [[pytest.approx(20 * 10 * 4 / 64)]]
        sent = {group: (count, ranks, size) for count, _, group, ranks, size, _ in found.collectives}
        assert sent["tp"] == (pytest.approx(20), 2, 64)
        assert sent["dp+cp"] == (1, 64, pytest.approx(20 * 1000))

    def test_chunks_keep_their_own_kernels(self):
        """The head is in the last one only."""
        corners = []
        for depth, rank in self.corners:
            head = [depth.stages + 1, "matmul", "forward", [8, 8, 99]]
            chunks = [Chunk(rank.kernels[:1], rank.collectives[:1]), Chunk([head], [])]
            corners.append((depth, msgspec.structs.replace(rank, chunks=chunks)))
        found = composed(corners, Depth(20, 16), 64, sharded=True)
        assert [[k[3] for k in chunk.kernels] for chunk in found.chunks] == [[[8, 8, 8]], [[8, 8, 99]]]
        assert [chunk.kernels[0][0] for chunk in found.chunks] == [pytest.approx(40), pytest.approx(1)]
        assert found.chunks[0].collectives[0][0] == pytest.approx(20)

    @pytest.mark.parametrize(
        ("knobs", "layers"),
        [
            ({"pp": 4}, (8, 8, 8)),
            ({"pp": 4, "vpp": 2}, (4, 4, 4)),
            ({"pp": 3, "stage_split": "loss"}, (11, 11, 10)),
            ({"pp": 2, "stage_split": "embedding+loss"}, (16, 17, 16)),
            ({"pp": 4, "first_layers": 5, "last_layers": 7}, (5, 10, 7)),
            ({"pp": 4, "stage_split": "spread"}, None),
        ],
    )
    def test_layers_of_a_chunk(self, knobs, layers):
        assert chunk_layers(32, knobs) == layers


class TestFromParts:
    @pytest.mark.parametrize(
        ("knobs", "why"),
        [
            ({"stage_split": "spread"}, "its layers are placed by a layout string"),
            ({"ar": "full", "ar_method": "block", "ar_layers": 1}, "its layers are not all recomputed in the same way"),
            ({"vpp": 2, "dp": 2048}, "its pipeline is never full"),
        ],
    )
    def test_says_where_it_says_nothing(self, knobs, why):
        with pytest.raises(AutoscoutError, match=why):
            shadow_parts.from_parts(ShadowAsked(job(devices=8192), laid_out(**knobs), "a", None, 0.0))

    def test_the_verb_composes_whole_pipelines_only(self):
        asked = ["shadow", "fixtures/jobs/llama-3.2-3b.toml", "--parts", "--rank", "0"]
        told = CliRunner().invoke(cli, asked, standalone_mode=False)
        assert "--parts composes all different stages" in str(told.exception)


def test_sql_is_told_and_told_again(tmp_path):
    kb = tmp_path / "kb.duckdb"
    of, configuration = job(), laid_out()
    found = Shadow(
        job=of.name,
        name="tp2_pp2",
        configuration=configuration.knobs,
        verdict="starts",
        sentence="starts",
        world=1024,
        ranks=[traced(2, 2)],
        allocated=3.0,
    )
    asked = ShadowAsked(of, configuration, kb=kb)
    whole.remember(asked, found)
    whole.remember(asked, found)
    rows = query.run(kb, "SELECT job, name, verdict, allocated_gib, knobs ->> 'tp', from_parts FROM shadows").rows
    assert rows == [("small", "tp2_pp2", "starts", 3.0, "2", True)]


class TestAgainstWholeTraces:
    pytestmark = engine

    @pytest.mark.thorough
    def test_a_deep_stage_from_shallow_ones(self, tmp_path, monkeypatch):
        """Every rank within 0.5 %, and what is known takes no process."""
        kb = tmp_path / "kb.duckdb"
        of, configuration = job(devices=32, layers=8), laid_out(pp=1, dp=16, sp=True)
        kind = target_of(of)

        def shadow(of: Job, configuration: Configuration, limit_s: float, parts: bool = False) -> Shadow:
            found = kind.shadow(ShadowAsked(of, configuration, "a", kb, limit_s, parts=parts))
            assert isinstance(found, Shadow)
            return found

        traced = {r.rank: peak(r) for r in shadow(of, configuration, 300.0).ranks}
        found = shadow(of, configuration, 300.0, parts=True)
        for rank in found.ranks:
            assert peak(rank) == pytest.approx(traced[rank.rank], rel=0.005)
        assert found.step_s == pytest.approx(shadow(of, configuration, 0.0).step_s, rel=0.02)
        monkeypatch.setattr(whole, "ask", None)  # nothing may be started
        more = shadow(job(devices=64, layers=12), laid_out(pp=1, dp=32, sp=True), 0.0)
        assert more.cached == 2
        assert more.allocated > found.allocated
