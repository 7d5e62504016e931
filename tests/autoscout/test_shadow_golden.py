"""Recipes whose peak Megatron's CI measured on GPUs: traced here, in half a minute of CPU together, and composed of
traces that are recorded, which takes none. The fourth recipe of `make test` is traced in test_shadow.py.

All of them: tests/tools/shadow_accuracy.py (docs/lab/shadow.md).
"""

import importlib.util
import sys

import pytest

sys.path.insert(0, "tests/tools")

import shadow_accuracy
from shadow_recipes import RECIPES, measured

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not measured(RECIPES[0]), reason="no ../shared/data"),
]
traced_here = [
    pytest.mark.thorough,
    pytest.mark.skipif(importlib.util.find_spec("megatron") is None, reason="needs the megatron extra"),
]

DENSE = [
    ("gpt3_7b_tp1_pp4_memory_speed", "A100", shadow_accuracy.whole),  # eight chunks a stage
    ("gpt3_7b_tp4_pp1_memory_speed", "A100", shadow_accuracy.from_parts),
    ("gpt3_15b_8t_release_sm", "A100", shadow_accuracy.from_parts),
    # whose output layer's placeholder of a fused gradient is kept, too
    ("gpt3_15b_8t_release_sm", "H100", shadow_accuracy.from_parts),
]


def recipe(case: str, gpu: str):
    return next(r for r in RECIPES if r.case == case and r.gpu.startswith(gpu))


@pytest.mark.parametrize(("case", "gpu", "traced"), [pytest.param(*row, marks=traced_here) for row in DENSE])
def test_a_dense_peak_is_the_measured_one(case, gpu, traced):
    """And its shallow traces are those recorded, byte for byte."""
    of = recipe(case, gpu)
    if traced is shadow_accuracy.whole:
        (rank,) = traced(of, [1.0])
    else:
        pair = shadow_accuracy.shallow(of, [1.0])
        assert [shadow_accuracy.kept(rank) for rank in pair] == shadow_accuracy.recorded()[f"{case} {of.gpu}"]
        rank = shadow_accuracy.joined(of, pair)
    assert rank.steps[-1].forward_backward == pytest.approx(measured(of)[0], rel=0.001)


@pytest.mark.parametrize(("case", "gpu"), [(case, gpu) for case, gpu, of in DENSE if of is shadow_accuracy.from_parts])
def test_recorded_traces_make_the_measured_peak(case, gpu):
    of = recipe(case, gpu)
    rank = shadow_accuracy.joined(of, shadow_accuracy.recorded()[f"{case} {of.gpu}"])
    assert rank.steps[-1].forward_backward == pytest.approx(measured(of)[0], rel=0.001)


@pytest.mark.parametrize(
    ("case", "gpu"),
    [
        pytest.param("mixtral_8x22b_tp2pp8ep8vpp1_release", "H100", marks=traced_here),
        pytest.param("mixtral_8x7b_alltoall_tp2pp4ep4_release", "A100", marks=traced_here),
    ],
)
def test_a_peak_with_experts_lies_in_the_stated_interval(case, gpu):
    of = recipe(case, gpu)
    low, high = shadow_accuracy.interval(of, shadow_accuracy.from_parts(of, [1.0, 1.2]))
    assert all(low <= value / 2**30 <= high for value in measured(of))
