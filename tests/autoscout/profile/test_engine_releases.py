"""Other releases of Megatron-core than ours train the same: `MEGATRON_PYTHONS` names interpreters that have them,
separated by colons (docs/lab/testing.md)."""

import os
from typing import Any

import pytest
from profile_bench import Bench, tiny_job

from autoscout.running import equivalence
from kb.records import Job, Measurement

PYTHONS = [path for path in os.environ.get("MEGATRON_PYTHONS", "").split(":") if path]
pytestmark = [
    pytest.mark.engine,
    pytest.mark.thorough,
    pytest.mark.skipif(not PYTHONS, reason="MEGATRON_PYTHONS names no interpreter with another release"),
]

MOE: dict[str, Any] = {"gated": True, "norm": "rmsnorm", "bias": False, "position": "rope", "experts": 4}
OVERLAPPED = {"distopt": True, "overlap_grad": True, "overlap_param": True, "ddp_bucket": 0.05}
# Without a context-parallel group of its own, a release from 0.18 on cuts every sequence among all ranks.
DENSE: list[dict[str, Any]] = [
    {"dp": 4},
    {"dp": 2, "cp": 2},
    {"cp": 4},
    {"tp": 2, "sp": True},
    {"pp": 2, "vpp": 2, "overlap_p2p": True, "dp": 2, **OVERLAPPED},
    {"ar": "full", "ar_method": "block", "ar_layers": 1, "pp": 2},
]
EXPERTS: list[dict[str, Any]] = [
    {"dp": 4, "ep": 4},
    {"dp": 2, "ep": 2, "dispatcher": "allgather"},
    {"tp": 2, "sp": True, "dp": 2, "ep": 2},
    {"cp": 2, "ep": 2},
]
TRAINED = [(knobs, {}) for knobs in DENSE] + [(knobs, MOE) for knobs in EXPERTS]


@pytest.fixture(scope="module")
def ours(bench: Bench) -> dict[bool, Measurement]:
    return {bool(model): bench.run(tiny_job(**model), dp=1) for model in ({}, MOE)}


@pytest.mark.parametrize("python", PYTHONS)
def test_every_layout_trains_what_one_rank_trains_on_our_release(
    bench: Bench, ours: dict[bool, Measurement], python: str
) -> None:
    for knobs, model in TRAINED:
        job: Job = tiny_job(python=python, **model)
        measured = bench.run(job, **knobs)
        assert measured.status == "ok", (knobs, measured.evidence)
        assert equivalence.Losses("fp32").compare(ours[bool(model)], measured) == "", knobs
