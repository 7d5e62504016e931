"""Joules per output token of a server: watts by what its devices do, over what it answers."""

import numpy as np
import pytest

from autoscout.simulate.hardware.device import shipped
from autoscout.simulate.joules import COMPUTING
from autoscout.simulate.members import analytic
from autoscout.simulate.serving.serving_joules import ANSWERING, ServingEnergy
from autoscout.simulate.serving.simulator import ServingSimulator

SHAPE = {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "gated": 1, "vocab": 128256}
LOAD = {"gpu": "h100", "tp": 1, "input_len": 512, "output_len": 256, "concurrency": 32, "requests": 300}


def joules(**more: object) -> np.ndarray:
    return ServingEnergy().predict({**SHAPE, **LOAD, **more}).value


def test_watts_lie_between_those_of_answering_and_of_reading():
    rate = ServingSimulator("output_tokens_per_s").predict({**SHAPE, **LOAD}).value[0]
    full = shipped("h100").watts
    assert ANSWERING * full < joules()[0] * rate < COMPUTING * full
    one = {"input_len": 1, "concurrency": 1}
    alone = ServingSimulator("output_tokens_per_s").predict({**SHAPE, **LOAD, **one}).value[0]
    assert joules(**one)[0] * alone == pytest.approx(ANSWERING * full, rel=0.02)  # lengths are drawn


def test_where_products_fill_half_of_the_time_watts_are_those_of_computing():
    full = shipped("h100").watts
    for more in ({"input_len": 2048, "concurrency": 128}, {"concurrency": 512, "requests": 3000}):
        rate = ServingSimulator("output_tokens_per_s").predict({**SHAPE, **LOAD, **more}).value[0]
        assert joules(**more)[0] * rate == pytest.approx(COMPUTING * full, rel=0.01)


def test_fuller_batches_take_fewer_joules_and_idle_devices_more():
    few, many = joules(concurrency=np.array([2.0, 64.0]))
    assert few > 5 * many
    assert joules(tp=4, concurrency=2)[0] > 1.5 * few


def test_a_limit_spares_joules_where_prompts_are_short():
    limited, free = joules(power_cap=np.array([60.0, 100.0]))
    assert limited < free


def test_where_nothing_is_served_or_nothing_is_known():
    huge = {"layers": 200, "hidden": 16384, "heads": 128, "ffn": 65536}
    assert joules(**huge)[0] == np.inf
    assert np.isnan(joules(gpu=np.array(["h100", "cpu"]))).tolist() == [False, True]
    assert ServingEnergy().applies({**SHAPE, **LOAD, "gpu": "cpu"}).endswith("no constants for cpu")
    assert ServingEnergy().applies({**SHAPE, **LOAD}) == ""


def test_one_row_corrects_half_of_the_level():
    model = ServingEnergy()
    before = model.predict({**SHAPE, **LOAD}).value
    model.fit({**SHAPE, **LOAD}, 4 * before)
    assert model.predict({**SHAPE, **LOAD}).value == pytest.approx(2 * before)
    assert [m.name for m in analytic("joules_per_token", "serve")] == ["analytic-serving-energy"]
