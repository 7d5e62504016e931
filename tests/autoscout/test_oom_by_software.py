"""The chance of running out of memory by what software may run: a trainer fails by its own, not by the mean."""

import numpy as np
import pytest

from autoscout.simulate.training.memory import Memory
from tui.printing.predictions import _chance

NAN = float("nan")
JOB = {"layers": 40, "hidden": 5120, "heads": 40, "ffn": 13824, "gated": 1, "vocab": 128000, "seq_len": 8192} | {
    "global_batch": 64, "gpus": 64, "gpu": "a100", "distopt": 1, "pp": 2, "mbs": 1,
}  # fmt: skip
UNKNOWN = {**JOB, "software": "unknown", "te": NAN, "tp": np.array([1, 2, 4, 8])}


def test_software_that_is_known_leaves_no_range():
    model = Memory()
    low, high = model.oom_range({**JOB, "tp": np.array([1, 2, 4, 8])})
    assert low.tolist() == high.tolist() == model.oom_probability({**JOB, "tp": np.array([1, 2, 4, 8])}).tolist()


def test_the_mean_lies_between_what_each_software_would_do():
    model = Memory()
    low, high = model.oom_range(UNKNOWN)
    mean = model.oom_probability(UNKNOWN)
    assert (low <= mean).all()
    assert (mean <= high).all()
    assert (high - low).max() > 0.5


def test_rows_of_known_and_unknown_software_beside_each_other():
    mixed = {**UNKNOWN, "software": np.array(["unknown", "", "unknown", ""]), "te": np.array([NAN, 1.0, NAN, 1.0])}
    low, high = Memory().oom_range(mixed)
    assert ((high - low) > 0).tolist()[1::2] == [False, False]
    assert low == pytest.approx(np.where([1, 0, 1, 0], Memory().oom_range(UNKNOWN)[0], low))


def test_one_run_that_died_rules_out_software_in_which_it_fits():
    model = Memory()
    row = {name: value[2:3] if isinstance(value, np.ndarray) else value for name, value in UNKNOWN.items()}
    before = model.oom_probability(row)[0], model.oom_range(row)
    assert before[1][0][0] < 0.1 < before[1][1][0]
    model.fit(row, np.array([np.inf]))
    assert model.oom_probability(row)[0] > max(0.5, before[0])
    assert model.oom_range(row)[0][0] > before[1][0][0]


@pytest.mark.parametrize(
    ("share", "text"), [(0.0, "less than 1%"), (0.004, "less than 1%"), (0.33, "33%"), (0.999, "more than 99%")]
)
def test_what_is_unlikely_is_not_called_impossible(share: float, text: str):
    assert _chance(share) == text
