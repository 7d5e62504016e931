"""Data parallel engines of a mixture of experts step together."""

from typing import Any

import numpy as np
import pytest

from autoscout.simulate.serving.fluid import fluid
from autoscout.simulate.serving.lockstep import alone_s, waits_s
from autoscout.simulate.serving.serving_device import device
from autoscout.simulate.serving.setup import Setup, setup
from autoscout.simulate.serving.simulator import exactly

QWEN3_30B: dict[str, Any] = {
    **{"layers": 48, "hidden": 2048, "heads": 32, "kv_heads": 4, "head_dim": 128, "ffn": 6144, "expert_ffn": 768},
    **{"experts": 128, "topk": 8, "vocab": 151936, "gated": True, "tied": False, "dtype": "bfloat16"},
    **{"tp": np.array([1.0, 4.0]), "dp": np.array([8.0, 2.0]), "ep": 1.0},
}
PROMPTS = {"concurrency": 64.0, "input_len": 4000.0, "output_len": 300.0}
ANSWERS = {"concurrency": 64.0, "input_len": 100.0, "output_len": 2000.0}


def served(**columns: Any) -> Setup:
    return setup({**QWEN3_30B, "requests": 300.0, **columns}, device("h100"), 2)


def test_who_reads_no_prompt_waits_for_who_does() -> None:
    of_prompts, of_answers = (fluid(served(**load)) for load in (PROMPTS, ANSWERS))
    assert of_prompts["others_s"][0] > of_prompts["others_s"][1] > 0  # for seven others, and for one
    assert (of_answers["others_s"] < 0.03 * of_prompts["others_s"]).all()
    assert "others_s" not in fluid(served(**PROMPTS, experts=0.0))


def test_it_waits_for_what_the_other_computes_alone() -> None:
    e = served(**PROMPTS).engine
    prompt = alone_s(e, 4000.0, 4000.0 * 2000, 8.0, 8 * 4000.0, 8192.0)
    assert (prompt > 0).all()
    assert prompt[0] > prompt[1]  # of which four devices share the attention
    one = np.ones(2)  # step from turn to turn
    assert waits_s(e, prompt, np.zeros(2), one).tolist() == [0, 0]
    assert waits_s(e, prompt, one, one) == pytest.approx(prompt)


def test_engines_that_balance_their_prompts_seldom_wait_for_each_other() -> None:
    """Each step waited as if prompts came to one engine after the other: 8 engines of DeepSeek-R1 took 170 ms a token
    for 116, with all requests there from the beginning."""
    e, prompt = served(**PROMPTS).engine, np.ones(2)
    each, balanced = (waits_s(e, prompt, np.full(2, 0.3), np.full(2, turn)) for turn in (1.0, 8.0))
    assert (balanced < each / 4).all()
    always = waits_s(e, prompt, np.ones(2), np.full(2, 8.0))  # all have some in each turn
    assert always == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("load", [PROMPTS, ANSWERS])
def test_the_events_wait_as_long(load: dict[str, float]) -> None:
    columns = {**QWEN3_30B, "requests": 300.0, **load}
    s = served(**load)
    for i, tpot in enumerate(fluid(s)["tpot_mean_ms"].tolist()):
        assert exactly(columns, s, i)["tpot_mean_ms"] == pytest.approx(tpot, rel=0.1)


@pytest.mark.parametrize("load", [PROMPTS, {"rate": 8.0, "input_len": 4000.0, "output_len": 300.0}])
def test_a_step_without_prompts_is_one_that_waits(load: dict[str, float]) -> None:
    """The wait was in the mean of a token only, as if more steps had prompts of their own."""
    s = served(**load)
    for i, itl in enumerate(fluid(s)["itl_p50_ms"].tolist()):
        assert exactly({**QWEN3_30B, "requests": 300.0, **load}, s, i)["itl_p50_ms"] == pytest.approx(itl, rel=0.1)
