"""Every parallel layout must compute what a single rank computes, to about four digits."""

from importlib.metadata import version
from typing import Any

import pytest
from cases import few
from profile_bench import Bench, tiny_job

from autoscout.running import equivalence
from autoscout.space.knob import reached
from kb.records import Job, Measurement

pytestmark = pytest.mark.engine

GPT = tiny_job()
LLAMA = tiny_job(gated=True, norm="rmsnorm", bias=False, position="rope", kv_heads=2, tied=True)
BF16 = tiny_job(dtype="bf16")
MOE = tiny_job(gated=True, norm="rmsnorm", bias=False, position="rope", experts=4)

OVERLAPPED = {"distopt": True, "overlap_grad": True, "overlap_param": True, "ddp_bucket": 0.05}
GROUPED: list[dict[str, Any]] = [  # what grouped queries, gating, rotary positions and tying change
    {"tp": 2},
    {"tp": 4},
    {"pp": 2},
    {"pp": 2, "vpp": 2, "overlap_p2p": True},
    {"tp": 2, "cp": 2, "sp": True},
]
DENSE: list[dict[str, Any]] = [
    {"tp": 2},
    {"tp": 4},
    {"tp": 2, "sp": True},
    {"pp": 2},
    {"pp": 4, "mbs": 1},
    {"pp": 2, "vpp": 2, "overlap_p2p": True},
    {"dp": 4},
    {"dp": 2, **OVERLAPPED},
    {"pp": 2, "vpp": 2, "overlap_p2p": True, "dp": 2, **OVERLAPPED},
    {"cp": 2},
    {"cp": 4},
    {"tp": 2, "cp": 2, "sp": True},
    {"tp": 2, "pp": 2, "distopt": True},
    {"ar": "selective", "cp": 2},
    {"ar": "full", "ar_method": "uniform", "ar_layers": 2, "tp": 2},
    {"ar": "full", "ar_method": "block", "ar_layers": 1, "pp": 2},
]
HALVED: list[dict[str, Any]] = [{"tp": 2, "sp": True}, {"pp": 2}, {"cp": 2}, {"dp": 2, **OVERLAPPED}]  # in bf16
EXPERTS: list[dict[str, Any]] = [
    {"dp": 2, "ep": 2},
    {"dp": 4, "ep": 4},
    {"dp": 2, "ep": 2, "dispatcher": "allgather"},
    {"tp": 2, "sp": True, "dp": 2, "ep": 2},
    {"tp": 2, "sp": True, "etp": 2, "dispatcher": "allgather"},
    {"pp": 2, "dp": 2, "ep": 2},
    {"cp": 2, "ep": 2},
    {"dp": 2, "ep": 2, **OVERLAPPED},
]


def named(layouts: list[dict[str, Any]]) -> list[Any]:
    return [pytest.param(layout, id="-".join(f"{key}={value}" for key, value in layout.items())) for layout in layouts]


def single_rank(bench: Bench, job: Job, known: dict[str, Measurement] = {}) -> Measurement:  # noqa: B006
    if job.id not in known:
        known[job.id] = bench.run(job)
    return known[job.id]


def agrees(bench: Bench, job: Job, layout: dict[str, Any]) -> str:
    """ "" or what is wrong with the layout's numbers."""
    reference = single_rank(bench, job)
    measured = bench.run(job, **layout)
    assert measured.status == "ok", measured.evidence
    assert len(measured.losses) == 3
    assert len(measured.grad_norms) == (4 if job.model.experts else 3), "the last is the experts' alone"
    return equivalence.Losses(job.model.dtype).compare(reference, measured)


@pytest.mark.parametrize("layout", few(named(DENSE), 4))
def test_gpt_layouts_agree(bench: Bench, layout: dict[str, Any]) -> None:
    assert agrees(bench, GPT, layout) == ""


@pytest.mark.parametrize("layout", few(named(GROUPED), 2))
def test_llama_layouts_agree(bench: Bench, layout: dict[str, Any]) -> None:
    assert agrees(bench, LLAMA, layout) == ""


@pytest.mark.parametrize("layout", few(named(EXPERTS), 3))
def test_moe_layouts_agree(bench: Bench, layout: dict[str, Any]) -> None:
    assert agrees(bench, MOE, layout) == ""


@pytest.mark.parametrize("layout", few(named(HALVED), 1))
def test_bf16_layouts_agree(bench: Bench, layout: dict[str, Any]) -> None:
    assert agrees(bench, BF16, layout) == ""


@pytest.mark.parametrize("name", few(["gpt", "llama", "bf16"], 1))
def test_the_guard_catches_interleaving_that_mixes_up_messages(bench: Bench, name: str) -> None:
    job = {"gpt": GPT, "llama": LLAMA, "bf16": BF16}[name]
    measured = bench.run(job, pp=2, vpp=2)
    assert measured.status == "ok", "Megatron-core runs it to the end without complaint"
    judged = equivalence.judge(equivalence.Losses(job.model.dtype), single_rank(bench, job), measured)
    assert judged.status == "wrong"
    assert "deviate by" in judged.evidence


def test_groups_of_recomputed_layers_need_not_divide_a_chunk_since_0_17(bench: Bench) -> None:
    measured = bench.run(GPT, ar="full", ar_method="uniform", ar_layers=3)
    if not reached(version("megatron-core"), "0.17"):
        assert measured.status == "invalid"
        assert "phase train: IndexError" in measured.evidence
        return
    assert equivalence.judge(equivalence.Losses("fp32"), single_rank(bench, GPT), measured).status == "ok"


@pytest.mark.parametrize("dtype", few(["fp32", "bf16"], 1))
def test_the_guard_catches_expert_gradients_that_are_not_summed(bench: Bench, dtype: str) -> None:
    job = MOE if dtype == "fp32" else tiny_job(gated=True, norm="rmsnorm", bias=False, experts=4, dtype="bf16")
    measured = bench.run(job, tp=2, sp=True, ep=1, etp=1)
    assert measured.status == "ok"
    judged = equivalence.judge(equivalence.Losses(dtype), single_rank(bench, job), measured)
    if reached(version("megatron-core"), "0.19"):  # sums them
        assert judged.status == "ok"
        return
    assert judged.status == "wrong"
    assert "gradient norms deviate" in judged.evidence
