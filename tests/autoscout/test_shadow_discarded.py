"""What Megatron discards to make it again: it resizes the storage of an output, which no operator shows."""

import importlib.util
import sys

import msgspec
import pytest

from autoscout.simulate.shadow.traced import Rank
from autoscout.targets.megatron import shadow as shadows
from kb.records import Cluster, Configuration, Job, LaunchSettings, Model, Node, Objective, Traffic

pytestmark = [
    pytest.mark.engine,
    pytest.mark.thorough,  # test_latent.py asks the same of queries, keys and values
    pytest.mark.skipif(importlib.util.find_spec("megatron") is None, reason="needs the megatron extra"),
]
TOKENS, HIDDEN, INNER, TOPK, LAYERS = 512, 256, 384, 2, 3
MODEL = Model(
    layers=LAYERS, hidden=HIDDEN, heads=8, kv_heads=8, vocab=1024, ffn=512, gated=True, norm="rmsnorm", bias=False,
    position="rope", experts=4, topk=TOPK, expert_ffn=INNER,
)  # fmt: skip
JOB = Job(
    name="experts",
    target="megatron",
    model=MODEL,
    traffic=Traffic(seq_len=TOKENS, global_batch=4),
    cluster=Cluster(nodes=[Node(device="h100", count=2)]),
    objective=Objective(minimize="step_time_s"),
    launch=LaunchSettings(transformer_engine=True),
)


@pytest.fixture(scope="module")
def told() -> dict[str, Rank]:
    plain: dict = {"tp": 1, "pp": 1, "dp": 2, "ep": 2, "mbs": 1}
    asked = {
        "all": plain,
        "moe_act": {**plain, "ar": "selective", "ar_modules": "moe_act"},
        "layernorm": {**plain, "ar": "selective", "ar_modules": "layernorm"},
    }
    questions = [{**shadows.question_of(JOB, Configuration(knobs)), "rank": 0} for knobs in asked.values()]
    found = shadows.ask(questions, [sys.executable], 300.0)
    assert [rank.verdict for rank in found] == ["starts"] * 3, [rank.message for rank in found]
    return dict(zip(asked, found, strict=True))


def test_outputs_of_activations_and_norms_are_not_kept(told: dict[str, Rank]) -> None:
    """Of every layer, in bf16: the input of an expert's second product; the output of the norm before the experts (the
    other is inside the product of queries, keys and values), and the number in fp32 that a norm keeps of a token."""
    kept = {name: rank.at_peak["activations"] for name, rank in told.items()}
    assert kept["all"] - kept["moe_act"] == LAYERS * 2 * TOKENS * TOPK * INNER
    assert kept["all"] - kept["layernorm"] == LAYERS * TOKENS * (2 * HIDDEN + 4)


def test_nothing_of_them_is_left_after_the_step(told: dict[str, Rank]) -> None:
    left = [msgspec.to_builtins(rank.steps[-1])["left"] for rank in told.values()]
    assert left == [left[0]] * 3
