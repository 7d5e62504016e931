"""Training that only runs kernels with deterministic sums."""

import numpy as np
import pytest

from autoscout.simulate.training.layer import DETERMINISTIC
from autoscout.simulate.training.step import Training
from autoscout.simulate.validation.training_tables import columns_of

LAYER = {"layers": 1, "hidden": 4096, "heads": 32, "seq_len": 8192, "global_batch": 1, "gpus": 1, "vocab": 128}


def seconds(gpu: str, **more: object) -> float:
    return float(Training().predict({**LAYER, "gpu": gpu, **more}).value[0])


def test_the_backward_pass_of_attention_is_slower_by_what_was_published():
    added, longer = (seconds("a100", seq_len=n, deterministic=1) - seconds("a100", seq_len=n) for n in (8192, 16384))
    assert 0 < added < (1 / DETERMINISTIC - 1) * seconds("a100")
    assert 3.5 < longer / added < 4  # the square of the sequence, less what short ones lose


@pytest.mark.parametrize("gpu", ["b200", "gb200", "b300", "gb300"])
def test_blackwell_falls_back_to_flash_attention_2(gpu: str):
    fixed = seconds(gpu, deterministic=1)
    assert fixed == pytest.approx(seconds(gpu, deterministic=1, attention="flash2"), rel=1e-9)
    assert fixed / seconds(gpu) > seconds("h100", deterministic=1) / seconds("h100") > 1


def test_nothing_changes_where_it_is_off_or_unsaid():
    assert seconds("gb200", deterministic=0) == seconds("gb200")


def test_the_error_is_wider():
    said = Training().predict({**LAYER, "gpu": "a100", "deterministic": np.array([0.0, 1.0])}).error
    assert said[1] > said[0]


@pytest.mark.parametrize(("name", "value"), [("deterministic", "True"), ("deterministic_mode", 1)])
def test_tables_say_it(name: str, value: object):
    row = {"layers": 32, "hidden": 4096, "heads": 32, "seq_len": 8192, name: value}
    assert columns_of([row])["deterministic"].tolist() == [1.0]
    assert columns_of([{**row, name: "False" if value == "True" else 0}])["deterministic"].tolist() == [0.0]
