"""Shadows: one rank of a Megatron job of any world size, without a GPU."""

import importlib.util
import math
import os
import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from autoscout.running import processes
from autoscout.simulate.hardware.device import hardware
from autoscout.simulate.shadow.pricing import priced
from autoscout.simulate.shadow.traced import GIB, KINDS, Rank, Shadow, Step
from autoscout.simulate.shadow.verdict import judged, peak, stages, traced_micro_batches
from autoscout.targets.jobs import JobSpace
from autoscout.targets.megatron import shadow as shadows
from autoscout.targets.megatron.doubted_layouts import doubts
from autoscout.targets.target import target_of
from autoscout.targets.tracing import ShadowAsked
from kb.records import AutoscoutError, Cluster, Configuration, Job, LaunchSettings, Model, Node, Objective, Traffic
from tui.cli import cli
from tui.printing.shadows import timeline

sys.path.insert(0, "tests/tools")

import shadow_local_layers
from cases import few
from shadow_recipes import RECIPES, measured

engine = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("megatron") is None, reason="needs the megatron extra"),
]


def job(devices: int = 1024, memory_gib: float = 0.0, layers: int = 4, **launch) -> Job:
    model = Model(
        layers=layers,
        hidden=512,
        heads=8,
        kv_heads=4,
        vocab=4096,
        ffn=1024,
        gated=True,
        norm="rmsnorm",
        bias=False,
        position="rope",
    )
    return Job(
        name="small",
        target="megatron",
        model=model,
        traffic=Traffic(seq_len=512, global_batch=2048),
        cluster=Cluster(nodes=[Node(device="h100", count=devices, memory_gib=memory_gib)]),
        objective=Objective(minimize="step_time_s"),
        launch=LaunchSettings(**{"transformer_engine": True, **launch}),
    )


def laid_out(**knobs) -> Configuration:
    return Configuration({"tp": 2, "pp": 2, "cp": 1, "dp": 256, "mbs": 1, "distopt": True, **knobs})


def flags(of: Job, **knobs) -> dict:
    return shadows.question_of(of, laid_out(**knobs))


VARIANTS: dict[str, dict] = {
    "plain": {},
    "recomputed": {"ar": "full", "ar_layers": 1},
    "sequence": {"sp": True},
    "replicated": {"distopt": False, "dp": 4},
    "refused": {"tp": 16, "dp": 32},
    "rounded": {"moments": "bf16"},
}
EXPERTS = {"experts": 8, "topk": 2, "expert_ffn": 512}
DISPATCHED: dict[str, dict] = {
    "own layers": {"ep": 4, "dispatcher": "alltoall"},
    "own layers, gathered": {"ep": 4, "dispatcher": "allgather"},
    "engine": {"ep": 4, "dispatcher": "alltoall"},
}
TWO_AT_ONCE = {"ep": 4, "dispatcher": "alltoall", "overlap_experts": True}
UNEVEN: dict[str, dict] = {"exchanged": {"ep": 1}, "gathered": {"ep": 2, "dispatcher": "allgather"}}


def with_experts(of: Job, **changes) -> Job:
    return msgspec.structs.replace(of, model=msgspec.structs.replace(of.model, **{**EXPERTS, **changes}))


def dispatched(of: Job, name: str) -> dict:
    return {**flags(with_experts(of), tp=1, dp=8, **DISPATCHED[name]), "rank": 0}


def answers(questions: dict[str, dict]) -> dict[str, Rank]:
    """Of one process: two thirds of a question asked alone would be imports."""
    return dict(zip(questions, shadows.ask(list(questions.values()), [sys.executable], 300.0), strict=True))


@pytest.fixture(scope="module")
def told() -> dict[str, Rank]:
    questions = {}
    for name, knobs in VARIANTS.items():
        degrees = laid_out(**knobs).knobs
        world = int(degrees["tp"]) * int(degrees["pp"]) * int(degrees["dp"])
        questions[name] = {**flags(job(devices=world), **knobs), "rank": 0}
    questions["engine"] = dispatched(job(devices=16), "engine")
    for name, knobs in {"one at once": {"overlap_experts": False}, "two at once": {}}.items():
        of, layout = with_experts(job(devices=8)), {"tp": 1, "pp": 1, "dp": 8, **TWO_AT_ONCE, **knobs}
        questions[name] = {**flags(of, **layout), "rank": 0, "micro_batches": 2}
    if measured(RECIPES[0]):
        questions["recipe"] = RECIPES[0].question()
    return answers(questions)


@pytest.fixture(scope="module")
def own_layers() -> dict[str, Rank]:
    """Of Megatron's own layers, without Transformer Engine."""
    questions = {
        name: dispatched(job(devices=16, transformer_engine=False), name) for name in DISPATCHED if name != "engine"
    }
    of = with_experts(job(devices=8, transformer_engine=False), experts=6)
    for name, knobs in UNEVEN.items():
        questions[name] = {**flags(of, tp=1, dp=4, **knobs), "rank": 0, "imbalance": 1.5}
    return answers(questions)


class TestOfARank:
    pytestmark = engine

    def test_its_memory_is_the_sum_of_its_kinds(self, told):
        rank = told["plain"]
        assert rank.verdict == "starts", rank.message
        assert sum(rank.at_peak.values()) == rank.peak
        assert set(rank.at_peak) == set(KINDS)
        assert peak(rank) == rank.peak
        assert max(sum(row[1:]) for row in rank.timeline) == rank.peak
        assert rank.reserved >= rank.peak

    def test_weights_and_gradients_are_counted_byte_by_byte(self, told):
        rank = told["plain"]
        assert rank.left["weights"] == pytest.approx(2 * rank.parameters, rel=0.01)
        assert rank.left["gradients"] == pytest.approx(4 * rank.parameters, rel=0.01)
        assert rank.left["optimizer"] == pytest.approx(12 * rank.parameters / 256, rel=0.1)
        assert told["replicated"].left["optimizer"] == pytest.approx(12 * rank.parameters, rel=0.01)

    def test_rounded_moments_take_their_bytes(self, told):
        """Two of two bytes, and the 16 bits of every fp32 weight that its bf16 copy lacks."""
        rank = told["rounded"]
        assert rank.verdict == "starts", rank.message
        assert rank.left["optimizer"] == pytest.approx(6 * rank.parameters / 256, rel=0.1)

    def test_what_saves_memory_does(self, told):
        activations = {name: told[name].at_peak["activations"] for name in ("plain", "recomputed", "sequence")}
        assert activations["recomputed"] < 0.3 * activations["plain"]
        assert activations["sequence"] < activations["plain"]

    def test_matrix_products_are_those_of_the_model(self, told):
        """6 per parameter and token of the layers, and the scores apart."""
        rank = told["plain"]
        done = sum(
            2 * n * s[0] * s[1] * s[2] for n, name, _, s in (k for k in rank.kernels if k[1].startswith("matmul"))
        )
        layers, tokens = 2, 512 * rank.micro_batches_traced
        a_layer = 512 * (512 + 2 * 256 + 512 + 3 * 1024) / 2  # on one of two tensor parallel ranks
        assert done == pytest.approx(6 * layers * a_layer * tokens, rel=1e-6)

    def test_collectives_say_their_group_and_bytes(self, told):
        rank = told["sequence"]
        gathered = [c for c in rank.collectives if c[1] == "allgather_base" and c[2] == "tp"]
        assert {c[3] for c in gathered} == {2}
        assert {c[4] for c in gathered} == {512 * 512 * 2}
        assert any(c[2] == "pp" and c[1] == "send" for c in rank.collectives)
        assert any(c[2] == "dp+cp" and c[3] == 256 for c in rank.collectives)

    def test_a_refusal_is_in_megatrons_own_words(self, told):
        rank = told["refused"]
        assert rank.verdict == "refused"
        assert "num_query_groups" in rank.message or "num_attention_heads" in rank.message
        assert "megatron/core" in rank.where


class TestOfExperts:
    pytestmark = engine

    @pytest.mark.parametrize("name", DISPATCHED)
    def test_multiply_their_share_of_the_tokens(self, told, own_layers, name):
        """Two experts a rank, each of which gets a quarter of the tokens of each of four ranks."""
        rank = {**told, **own_layers}[name]
        assert rank.verdict == "starts", rank.message
        layers, tokens = 2, 512 * rank.micro_batches_traced
        gates_and_ups = 2 * layers * tokens * 512 * 1024
        asked = [k[3] for k in rank.kernels if k[1] == "matmul" and k[2] == "forward" for _ in range(k[0])]
        of_experts = sum(math.prod(s) for s in asked if s[-2:] == [512, 1024])  # grouped ones have a number of experts
        of_attention = layers * tokens * 512 * (512 + 2 * 256)
        assert of_experts == gates_and_ups + of_attention

    def test_tokens_that_the_experts_do_not_divide_start_too(self, own_layers):
        exchanged, gathered = (own_layers[name] for name in UNEVEN)
        assert exchanged.verdict == "starts", exchanged.message
        assert gathered.verdict == "starts", gathered.message
        # A rank that has all experts has all tokens, however they are routed.
        asked = [k[3] for k in exchanged.kernels if k[1] == "matmul" and k[2] == "forward" for _ in range(k[0])]
        of_experts = sum(s[0] for s in asked if s[1:] == [512, 512])
        assert of_experts == 2 * exchanged.micro_batches_traced * (512 + 2 * 512)

    def test_tokens_travel_there_and_back(self, told, own_layers):
        for rank in (own_layers["own layers"], told["engine"]):
            sent = [c for c in rank.collectives if c[1] == "alltoall_base" and c[5] == "forward"]
            assert sum(c[0] for c in sent if c[4] == 2 * 512 * 512 * 2) == 2 * 2 * rank.micro_batches_traced

    def test_a_second_micro_batch_at_once_takes_less_than_another_layer(self, told):
        """Its layers come when the other's go; what the closed form says is in test_two_micro_batches.py."""
        one, two = told["one at once"], told["two at once"]
        assert two.verdict == "starts", two.message
        assert two.kernels
        a_layer = one.at_peak["activations"] / 4
        assert 0 < two.steps[-1].forward_backward - one.steps[-1].forward_backward < a_layer
        sent = [sum(c[0] for c in rank.collectives if c[1] == "alltoall_base") for rank in (one, two)]
        assert sent[0] == sent[1]


class TestOfAConfiguration:
    pytestmark = engine

    def test_is_known_the_second_time(self, tmp_path, monkeypatch):
        kb = tmp_path / "kb.duckdb"
        of = job(devices=4, memory_gib=0.2)
        configuration = laid_out(dp=1, distopt=False)
        first = target_of(of).shadow(ShadowAsked(of, configuration, "a", kb, 300.0))
        assert isinstance(first, Shadow)
        assert (first.verdict, first.cached) == ("starts", 0)
        assert first.oom_probability is not None
        assert first.oom_probability > 0.95
        monkeypatch.setattr(shadows, "ask", None)  # nothing may be started
        again = target_of(of).shadow(ShadowAsked(of, configuration, "a", kb, 0.0))
        assert isinstance(again, Shadow)
        assert again.cached == len(again.ranks)
        assert msgspec.structs.replace(again, cached=0) == first
        foretold = doubts(of, kb).foretold(configuration, "a")
        assert foretold is not None
        assert (foretold.status, foretold.fidelity) == ("oom", "shadow")
        assert "does not fit into 0.2 GiB" in foretold.evidence

    def test_a_person_reads_megatrons_words(self, tmp_path):
        text = "\n".join(
            [
                'name = "small"\ntask = "pretrain"\ntarget = "megatron"\n[model]',
                "layers = 2\nhidden = 64\nheads = 4\nkv_heads = 4\nvocab = 128\nffn = 128\nbias = false",
                'position = "rope"\n[traffic]\nseq_len = 32\nglobal_batch = 16\n[objective]',
                'minimize = "step_time_s"\n[cluster]\nnodes = [{ device = "a100", count = 8 }]',
                "[launch]\ntransformer_engine = true",
            ]
        )
        path = tmp_path / "job.toml"
        path.write_text(text)
        asked = ["shadow", str(path), "tp=8", "dp=1", "--rank", "0", "--anyway", "--kb", str(tmp_path / "kb.duckdb")]
        told = CliRunner().invoke(cli, asked, standalone_mode=False)
        assert told.return_value == 3, told.output
        assert "rank 0 does not start: ValueError: num_attention_heads (4) must be a multiple of" in told.output

    def test_ends_with_its_time_and_leaves_nothing_running(self):
        rank = shadows.ask([{**flags(job()), "rank": 0}], [sys.executable], 0.3)[0]
        assert rank.verdict == "timeout"
        ours = processes.family(os.getpid())
        assert not [pid for pid in ours if b"shadow_rank" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    @pytest.mark.parametrize(("model", "knobs", "number", "gib"), few(shadow_local_layers.MEASURED, 1))
    def test_megatrons_own_layers_keep_what_an_h100_was_seen_to_keep(self, model, knobs, number, gib):
        """Its operators are those of a build for CUDA: norms of one kernel, a softmax with a scratch tensor, an Adam
        of all parameters at once, whose peak is the highest where all layers are recomputed."""
        (found,) = shadow_local_layers.traced([(model, knobs, number, gib)])
        assert found == pytest.approx(gib, rel=0.003 if "ar" in knobs else 0.001)

    @pytest.mark.skipif(not measured(RECIPES[0]), reason="no ../shared/data")
    def test_peak_is_what_megatrons_ci_measured(self, told):
        """7B on 8 A100, pp 4, vpp 8; all recipes: tests/tools/shadow_accuracy.py."""
        rank = told["recipe"]
        assert rank.steps[-1].forward_backward == pytest.approx(measured(RECIPES[0])[0], rel=0.001)


def _empty() -> Rank:
    return Rank(rank=0, verdict="starts", steps=[Step(forward_backward=0, optimizer=1, left=0)])


class TestWithoutTheEngine:
    def test_stages_that_differ(self):
        assert stages(8, 1) == [7, 0]
        assert stages(8, 2) == [7, 0]
        assert stages(512, 8) == [511, 0, 64]
        of = with_experts(job(devices=12, layers=12), dense_layers=3)
        assert shadows.differing(of, laid_out(tp=1, pp=6, dp=2)) == [11, 0, 2, 4]  # half of stage 1 has no experts
        assert traced_micro_batches(4, 1) == 5
        assert traced_micro_batches(4, 2) == 8

    def test_the_fullest_rank_comes_first_and_experts_widen_the_interval(self):
        def rank(number: int, gib: float, imbalance: float = 1.0) -> Rank:
            step = Step(forward_backward=round(gib * GIB), optimizer=0, left=0)
            return Rank(rank=number, verdict="starts", imbalance=imbalance, steps=[step], reserved=round(gib * GIB))

        bare = Shadow(job="j", name="n", configuration={}, verdict="starts", sentence="", world=8, ranks=[])
        found = judged(bare, [rank(7, 20), rank(0, 30), rank(0, 40, 1.5)], 0.03, 1.0, 79.0, 1.5)
        assert [r.rank for r in found.ranks] == [0, 7, 0]
        assert found.imbalanced == pytest.approx(34)
        assert found.low < 30 < 34 < 40 < found.high  # the first steps are the least balanced
        assert found.oom_probability == pytest.approx(0, abs=1e-6)

    def test_larger_batches_share_a_trace(self):
        of, larger = job(), msgspec.structs.replace(job(), traffic=Traffic(seq_len=512, global_batch=8192))
        assert shadows.question_of(of, laid_out()) == shadows.question_of(larger, laid_out())
        assert shadows.question_of(of, laid_out()) != shadows.question_of(of, laid_out(mbs=2))

    def test_user_buffers_are_beside_torchs_memory(self):
        """Ten of the gathered input's size (8 × 512 tokens of 512 numbers), and two more workspaces of 32 MiB."""
        overlapped = {"sp": True, "tp_comm_overlap": True, "mbs": 8}
        plain = shadows.summarised(ShadowAsked(job(), laid_out(mbs=8), ranks=[0]), [_empty()], {}, 0)
        buffered = shadows.summarised(ShadowAsked(job(), laid_out(**overlapped), ranks=[0]), [_empty()], {}, 0)
        assert buffered.beside - plain.beside == pytest.approx(10 * 8 * 512 * 512 * 2 / GIB)
        assert flags(job(), **overlapped)["workspace"] - flags(job(), mbs=8)["workspace"] == 64 * 2**20

    def test_a_step_is_priced_by_what_it_does(self):
        def rank(number: int, rows: int, dp_bytes: int) -> Rank:
            kernels = [[20, "matmul", "forward", [rows, 4096, 4096]], [1, "adam", "step", [10**9]]]
            sent = [
                [10, "allreduce", "tp", 2, 2**24, "forward"],
                [1, "reduce_scatter", "dp+cp", 8, dp_bytes, "backward"],
            ]
            return Rank(
                rank=number,
                verdict="starts",
                kernels=kernels,
                collectives=sent,
                micro_batches=8,
                micro_batches_traced=2,
            )

        hw = hardware("a100")
        assert hw
        knobs = {"tp": 2, "pp": 2, "dp": 8}
        even = priced([rank(31, 8192, 2**30), rank(0, 8192, 2**30)], knobs, hw, "bf16")
        uneven = priced([rank(31, 16384, 2**30), rank(0, 8192, 2**30)], knobs, hw, "bf16")
        assert even
        assert uneven
        flops = 20 / 2 * 8 * 2 * 8192 * 4096**2
        assert flops / 312e12 < even.parts["matmul"] < 2 * flops / 312e12
        a_batch = (even.parts["matmul"] + even.parts["tp"]) / 8
        assert even.bubble_s == pytest.approx(a_batch)
        assert uneven.bubble_s == pytest.approx(even.bubble_s)
        assert uneven.step_s > 1.5 * even.step_s
        assert even.step_s == pytest.approx(sum(even.parts.values()) + even.bubble_s)

    def test_a_rank_that_does_not_exist(self):
        with pytest.raises(AutoscoutError, match=r"--rank 4096: the configuration has the ranks 0 to 1023"):
            shadows.shadow(ShadowAsked(job(), laid_out(), "a", None, 1.0, ranks=[4096]))

    def test_an_interpreter_without_torch(self):
        of = job(python="/usr/bin/python3")
        if not Path("/usr/bin/python3").exists():
            pytest.skip("no /usr/bin/python3")
        with pytest.raises(AutoscoutError, match="has no torch, but a shadow run"):
            shadows.shadow(ShadowAsked(of, laid_out(), "a", None, 1.0))

    def test_what_was_not_traced_is_not_known(self, tmp_path):
        if importlib.util.find_spec("megatron") is None:
            pytest.skip("needs the megatron extra")
        with pytest.raises(AutoscoutError, match="has not been traced yet"):
            shadows.shadow(ShadowAsked(job(), laid_out(), "a", tmp_path / "kb.duckdb", 0.0))

    def test_another_target_says_so(self):
        of = JobSpace.load("fixtures/jobs/tiny-gpt-deepspeed-cpu.toml").job
        with pytest.raises(AutoscoutError, match="target = 'deepspeed' does not support shadow runs"):
            target_of(of).shadow(ShadowAsked(of, Configuration({}), "a", None, 1.0))

    def test_a_picture_over_time(self):
        rows = [[i, 2, 2, 2, i, 0, 0] for i in range(20)]
        picture = timeline(Rank(rank=0, verdict="starts", timeline=rows))
        assert picture.splitlines()[-2].strip() == "w" * 20
        assert "a" in picture.splitlines()[0]


class TestAllocator:
    """Of the worker; it needs nothing of torch."""

    @pytest.fixture
    def allocator(self):
        path = Path(shadows.RANK).with_name("allocator.py")
        spec = importlib.util.spec_from_file_location("shadow_allocator", path)
        assert spec
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    def test_segments_and_reuse(self, allocator):
        mib = 2**20
        assert allocator.replayed([(1, 512)], float("inf")).most == 2 * mib
        assert allocator.replayed([(1, 5 * mib)], float("inf")).most == 20 * mib
        assert allocator.replayed([(1, 11 * mib)], float("inf")).most == 12 * mib
        assert allocator.replayed([(1, 11 * mib), (1, -11 * mib), (2, 10 * mib)], float("inf")).most == 12 * mib

    def test_empty_segments_go_back_before_it_runs_out(self, allocator):
        mib = 2**20
        found = allocator.replayed([(1, 40 * mib), (1, -40 * mib), (2, 60 * mib)], 64 * mib)
        assert (found.flushes, found.reserved) == (1, 60 * mib)
        with pytest.raises(allocator.OutOfMemory):
            allocator.replayed([(1, 40 * mib), (2, 60 * mib)], 64 * mib)
