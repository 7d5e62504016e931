"""Steps of plans whose stages are cut between operators: each stage takes what its operators do, and the slowest sets
the pace."""

import numpy as np
import pytest

from autoscout.simulate.training.stage_operators import OPERATORS, described
from autoscout.simulate.training.step import Training

GPT = {
    **{"layers": 32, "hidden": 4096, "heads": 32, "seq_len": 2048, "gpu": "a10g", "dtype": "fp16", "te": 0, "mbs": 1},
    **{
        "attention": "unfused",
        "dropout": 1,
        "tied": 1,
        "learned_positions": 1,
        "gpus": 8,
        "dp": 1,
        "global_batch": 128,
    },
}
EVERY = OPERATORS * 32 + 3


def step(operators, devices, shares=None, **columns):
    tp = columns.pop("tp", devices)
    plan = described(operators, devices, tp, shares or [0.0] * len(devices), np.inf)
    given = {**GPT, "pp": len(devices), **columns, "stages": np.array([plan])}
    told = Training().predict(given)
    assert told.value[0] == pytest.approx(sum(float(part[0]) for part in told.parts.values()))
    return told


def even(stages, many=EVERY):
    ends = [1 + OPERATORS * 32 * (i + 1) // stages for i in range(stages - 1)]
    return np.diff([0, *ends, many]).tolist()


@pytest.mark.parametrize("pp", [1, 2, 4, 8])
def test_a_plan_of_equal_stages_takes_what_the_pipeline_does(pp):
    whole = Training().predict({**GPT, "pp": pp, "gpus": pp})
    cut = step(even(pp), [1] * pp, gpus=pp)
    assert cut.value[0] == pytest.approx(whole.value[0], rel=0.02)
    assert cut.error[0] == pytest.approx(whole.error[0])


@pytest.mark.parametrize("tp", [2, 4])
def test_so_with_tensor_parallelism(tp):
    whole = Training().predict({**GPT, "pp": 2, "tp": tp, "gpus": 2 * tp})
    cut = step(even(2), [tp, tp], gpus=2 * tp)
    assert cut.parts["tp"][0] == pytest.approx(whole.parts["tp"][0], rel=0.02)
    assert cut.value[0] == pytest.approx(whole.value[0], rel=0.02)


def test_so_where_everything_runs_again():
    whole = Training().predict({**GPT, "pp": 8, "ar": "full", "recomputed": 1.0})
    cut = step(even(8), [1] * 8, [1.0] * 8)
    assert cut.parts["recompute"][0] == pytest.approx(whole.parts["recompute"][0], rel=0.05)


def test_the_slowest_stage_sets_the_pace():
    """30 layers: four in each stage but the last, which has the head; then five in one of them."""
    equal = [1 + 4 * OPERATORS, *[4 * OPERATORS] * 6, 2 * OPERATORS + 2]
    longer = [*equal[:3], 5 * OPERATORS, 3 * OPERATORS, *equal[5:]]
    before, slow = step(equal, [1] * 8, layers=30), step(longer, [1] * 8, layers=30)
    assert slow.parts["compute"][0] / before.parts["compute"][0] == pytest.approx(5 / 4, rel=0.02)
    assert slow.parts["bubble"][0] < before.parts["bubble"][0]  # fewer layers are left to pass through


def test_replicas_of_a_stage_share_its_micro_batches():
    operators = [1 + 8 * OPERATORS, 16 * OPERATORS, 8 * OPERATORS + 2]
    alone = step(operators, [1, 1, 1], tp=[1, 1, 1], gpus=3, mbs=2)
    shared = step(operators, [1, 2, 1], tp=[1, 1, 1], gpus=4, mbs=2)
    assert 0.5 < shared.parts["compute"][0] / alone.parts["compute"][0] < 0.65


def test_rows_without_a_plan_are_not_touched():
    plan = described(even(8), [1] * 8, [1] * 8, [0.0] * 8, np.inf)
    columns = {**GPT, "pp": np.array([8, 8, 4]), "gpus": np.array([8, 8, 4]), "stages": np.array(["", plan, ""])}
    told = Training().predict(columns).value
    alone = [Training().predict({**GPT, "pp": pp, "gpus": pp}).value[0] for pp in (8, 4)]
    assert told[[0, 2]] == pytest.approx(alone)
