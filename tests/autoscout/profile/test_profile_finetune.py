"""Fine-tuning on Megatron-core: whatever the layout, padded or packed, a step trains on the same samples and the same
adapters, and computes what a single rank computes with a sample in each sequence."""

import math
from typing import Any

import pytest
from cases import few
from profile_bench import Bench, tiny_job

from autoscout.running import equivalence
from kb.records import Lora, Measurement

pytestmark = pytest.mark.engine

SHAPE: dict[str, Any] = {"gated": True, "norm": "rmsnorm", "bias": False, "position": "rope", "kv_heads": 2}
LENGTHS = [4, 8, 16, 30, 64]
ALL = Lora(rank=4, modules=["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"])
JOBS = {
    "lora": tiny_job(**SHAPE, lora=ALL, lengths=LENGTHS),
    "frozen": tiny_job(**SHAPE, frozen_layers=2, lengths=LENGTHS),
    "full": tiny_job(lengths=LENGTHS),
    "none frozen": tiny_job(**SHAPE, lengths=LENGTHS),
}
FULL = {"ar": "full", "ar_method": "uniform", "ar_layers": 4}
LAYOUTS: list[tuple[str, dict[str, Any]]] = [
    ("lora", {"packing": True}),
    ("lora", {"tp": 2, "sp": True, "packing": True, **FULL}),
    ("lora", {"tp": 2, "dp": 2, "distopt": True, "overlap_grad": True, "ddp_bucket": 0.05, "packing": True}),
    ("lora", {"cp": 2}),
    ("lora", {"pp": 2, "packing": True}),
    ("frozen", {"tp": 2, "packing": True, **FULL}),
    ("frozen", {"pp": 2}),  # a stage that trains nothing
    ("frozen", {"dp": 2, "distopt": True, "overlap_grad": True, "ddp_bucket": 0.05}),
    ("full", {"dp": 2, "packing": True}),
]


def alone(bench: Bench, name: str, known: dict[str, Measurement] = {}) -> Measurement:  # noqa: B006
    if name not in known:
        known[name] = bench.run(JOBS[name])
    return known[name]


@pytest.mark.parametrize(("name", "layout"), few(LAYOUTS, 2))
def test_layouts_of_fine_tuning_agree(bench: Bench, name: str, layout: dict[str, Any]) -> None:
    measured = bench.run(JOBS[name], **layout)
    assert measured.status == "ok", measured.evidence
    assert equivalence.Losses("fp32").compare(alone(bench, name), measured) == ""


def test_tokens_are_counted_without_padding(bench: Bench) -> None:
    measured = alone(bench, "lora")
    tokens = 8 * sum(LENGTHS) / len(LENGTHS)
    assert math.isclose(measured.metrics["tokens_per_s"] * measured.metrics["step_time_s"], tokens)


def test_frozen_layers_compute_but_do_not_learn(bench: Bench) -> None:
    """The same model and samples: the same loss before the first step, less gradient, another training afterwards."""
    frozen, whole = alone(bench, "frozen"), alone(bench, "none frozen")
    assert math.isclose(frozen.losses[0], whole.losses[0], rel_tol=1e-6)
    assert 0 < frozen.grad_norms[0] < 0.9 * whole.grad_norms[0]
    assert not math.isclose(frozen.losses[-1], whole.losses[-1], rel_tol=1e-6)
