"""What holds for every valid job and layout, whatever the constants: predictions that break it are absurd."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscout.simulate.training.memory import Memory
from autoscout.simulate.training.step import Training

DEVICES = ("a100", "a100-40g", "a100-pcie", "a40", "a10g", "h100", "h200", "l40s", "v100")


@st.composite
def runs(draw):
    """A job and a layout that could run: degrees that divide, a batch that fills every replica."""
    heads = draw(st.sampled_from((8, 16, 32, 64)))
    tp, pp, cp = draw(st.sampled_from((1, 2, 4, 8))), draw(st.sampled_from((1, 2, 4))), draw(st.sampled_from((1, 2)))
    dp, mbs = draw(st.sampled_from((1, 2, 8, 32))), draw(st.sampled_from((1, 2, 4)))
    experts = draw(st.sampled_from((0, 0, 8, 64)))
    run = {
        "gpu": draw(st.sampled_from(DEVICES)),
        "heads": heads,
        "hidden": heads * draw(st.sampled_from((64, 128))),
        "kv_heads": draw(st.sampled_from((heads, 8))),
        "layers": pp * draw(st.sampled_from((2, 8, 20))),
        "vocab": draw(st.sampled_from((32000, 50304, 128256))),
        "gated": draw(st.sampled_from((0, 1))),
        "seq_len": draw(st.sampled_from((512, 2048, 8192))),
        "tp": tp, "pp": pp, "cp": cp, "dp": dp, "mbs": mbs, "gpus": tp * pp * cp * dp,
        "global_batch": mbs * dp * draw(st.sampled_from((1, 4, 16))),
        "sp": float(tp > 1 and draw(st.booleans())),
        "distopt": float(draw(st.booleans())),
        "ar": draw(st.sampled_from(("none", "selective", "full"))),
        "te": float(draw(st.booleans())),
        "dtype": draw(st.sampled_from(("bf16", "fp16", "fp32"))),
        "overlap_grad": float(draw(st.booleans())),
    }  # fmt: skip
    moe = {"experts": experts, "topk": 2, "expert_ffn": run["hidden"], "ep": min(dp, 8), "etp": 1.0} if experts else {}
    return {**run, **moe}


def seconds(run, **change):
    return float(Training().predict({**run, **change}).value[0])


def gib(run, **change):
    return float(Memory().predict({**run, **change}).value[0])


@given(runs())
def test_every_prediction_is_a_positive_number_with_parts_that_sum_to_it(run):
    for member in (Training(), Memory()):
        with np.errstate(all="raise", under="ignore"):
            said = member.predict(run)
        assert np.isfinite(said.value).all()
        assert (said.value > 0).all()
        assert (said.error > 0).all()
        assert all((part >= 0).all() for part in said.parts.values())
        assert sum(said.parts.values()) == pytest.approx(said.value)


@given(runs())
def test_more_work_takes_longer_and_more_memory(run):
    assert seconds(run, layers=2 * run["layers"]) > seconds(run)
    assert gib(run, layers=2 * run["layers"]) > gib(run)
    assert seconds(run, global_batch=2 * run["global_batch"]) > seconds(run)
    # a small layer that waits for the host may wait a little less when it computes more
    assert seconds(run, seq_len=2 * run["seq_len"]) > 0.95 * seconds(run)
    # of fp16 the update may need more than the activations
    assert gib(run, seq_len=2 * run["seq_len"]) >= gib(run)
    assert seconds(run, vocab=2 * run["vocab"]) > seconds(run)
    assert gib(run, mbs=2 * run["mbs"], global_batch=2 * run["global_batch"]) >= gib(run)


@given(runs())
def test_recomputation_costs_time_and_saves_memory(run):
    assert seconds(run, ar="full") > seconds(run, ar="none")
    assert gib(run, ar="full", layers=8 * run["layers"]) <= gib(run, ar="none", layers=8 * run["layers"])
    assert seconds(run, ar="none") <= seconds(run, ar="selective") * (1 + 1e-9)
    assert gib(run, ar="selective") <= gib(run, ar="none") * (1 + 1e-9)


@given(runs())
def test_splitting_a_model_saves_memory(run):
    one = {**run, "pp": 1, "sp": 0.0}
    assert gib(one, tp=2, gpus=2 * run["cp"] * run["dp"]) < gib(one, tp=1, gpus=run["cp"] * run["dp"])
    if run["dp"] * run["cp"] > 1:  # else nothing is shared out, and no space has it
        assert gib(run, distopt=1.0) <= gib(run, distopt=0.0) * (1 + 1e-9)
    many = {**run, "dp": 8, "gpus": 8 * run["tp"] * run["pp"] * run["cp"]}
    assert gib(many, distopt=1.0) < gib(many, distopt=0.0)


@given(runs())
def test_more_devices_are_no_faster_than_in_proportion(run):
    batch = run["mbs"] * run["dp"] * 32
    twice = seconds(run, dp=2 * run["dp"], gpus=2 * run["gpus"], global_batch=batch)
    assert twice > 0.5 * seconds(run, global_batch=batch) * 0.95


@given(runs())
def test_faster_devices_are_faster(run):
    """Where the matrix units or the memory set the pace; small layers wait for the host on every device."""
    large = {**run, "hidden": 64 * 128, "heads": 64, "kv_heads": 8, "seq_len": 4096, "expert_ffn": 14336}
    large |= {"tp": 1, "pp": 1, "cp": 1, "ep": 1, "dp": 1, "gpus": 1, "dtype": "bf16"}
    order = [seconds(large, gpu=name) for name in ("a10g", "a40", "a100-pcie", "a100", "h100", "h200")]
    assert all(slow >= 0.98 * fast for slow, fast in itertools.pairwise(order)), order


@given(runs())
def test_tensor_parallelism_is_slower_over_pcie(run):
    split = {**run, "tp": 4, "gpus": 4 * run["pp"] * run["cp"] * run["dp"], "per_node": 8}
    assert seconds(split, gpu="a100-pcie") > seconds(split, gpu="a100")
