"""The chance of running out of memory by what software may run: a trainer fails by its own, not by the mean."""

import numpy as np
import pytest

from autoscout.simulate.training.memory import ERROR, Memory
from autoscout.simulate.training.software import variants
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


def test_one_run_that_ran_rules_out_software_in_which_it_does_not_fit():
    model = Memory()
    row = {name: value[2:3] if isinstance(value, np.ndarray) else value for name, value in UNKNOWN.items()}
    before = model.oom_probability(row)[0], model.oom_range(row)[1][0]
    model.fit(row, np.array([0.0]))
    assert model.oom_probability(row)[0] < min(0.5, before[0])
    assert model.oom_range(row)[1][0] < before[1]
    assert model.margin <= 0


def test_a_run_that_ran_and_one_that_died_bound_what_fits():
    """The one that ran needs more than the one that died: the truth lies between."""
    needs = Memory()._pressure(UNKNOWN)
    less, more = np.argsort(needs)[[0, -1]]
    model, odd = Memory(), np.full(len(needs), np.nan)
    odd[less], odd[more] = np.inf, 0.0
    model.fit(UNKNOWN, odd)
    assert -2 * ERROR <= model.margin <= 2 * ERROR
    unknown = Memory()
    unknown.fit({**UNKNOWN, "gpu": "nobody's"}, odd)
    assert unknown.margin == 0.0


def test_runs_that_died_or_ran_do_not_say_how_exact_the_model_is():
    """They told it to be as exact for unknown software as for known: of runs given less than 2 % one in twenty died."""
    told = Memory()
    told.fit(UNKNOWN, np.array([NAN, NAN, np.inf, NAN]))
    assert (told._spread(variants(UNKNOWN)) == Memory()._spread(variants(UNKNOWN))).all()
    few = Memory()
    few.fit(UNKNOWN, np.where(np.arange(4) < 3, Memory().predict(UNKNOWN).value, np.nan))
    assert (few._spread(variants(UNKNOWN)) < Memory()._spread(variants(UNKNOWN))).all()


@pytest.mark.parametrize(
    ("share", "text"), [(0.0, "less than 1%"), (0.004, "less than 1%"), (0.33, "33%"), (0.999, "more than 99%")]
)
def test_what_is_unlikely_is_not_called_impossible(share: float, text: str):
    assert _chance(share) == text
