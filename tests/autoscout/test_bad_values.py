"""Sessions that are told odd things: each ends by itself, with a verdict that holds or a sentence."""

import math

import numpy as np
import pytest

from autoscout.tuning.study import Study
from kb import journal as journals
from kb.journal import Answered, ExperimentEnded
from kb.records import AutoscoutError

TABLE = {"a": [1, 2, 3, 4] * 3, "b": [1] * 4 + [2] * 4 + [3] * 4, "s": [1.0] * 12}


def true(knobs):
    return 1.0 + 0.2 * abs(knobs["a"] - 3) + 0.1 * knobs["b"]


def study(tmp_path, profiles=8, **more):
    return Study.from_table(TABLE, metric="s", kb=tmp_path / "kb.duckdb", profiles=profiles, **more)


def driven(s, answer):
    """Runs it to its end: `answer(knobs, number)` is a time, or how it failed."""
    number = 0
    while s.wants_more():
        for configuration in s.ask():
            number += 1
            found = answer(configuration.knobs, number)
            if isinstance(found, str):
                s.tell(configuration, failed=found, evidence=found)
            else:
                s.tell(configuration, {"s": found})
    return s.best()


def events(tmp_path, s):
    return journals.events(tmp_path / "sessions" / s.session / "journal.jsonl")


def test_a_constant_metric_changes_nothing(tmp_path):
    s = study(tmp_path)
    found = driven(s, lambda knobs, number: 1.0)
    assert found.confirmed is not None
    assert found.confirmed.verdict in ("equal", "slower")
    assert found.confirmed.pairs <= 2
    assert found.confirmed.name == found.confirmed.default_name
    assert found.confirmed.gain == 1.0


def test_one_measurement_is_all_that_there_is(tmp_path):
    found = driven(study(tmp_path, profiles=1), lambda knobs, number: true(knobs))
    assert found.confirmed is not None
    assert found.confirmed.name == found.confirmed.default_name
    assert "no other configuration ran" in found.confirmed.sentence


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, -1.0])
def test_what_is_no_number_is_refused_and_the_session_goes_on(tmp_path, value):
    s = study(tmp_path, profiles=2)
    (first,) = s.ask()
    with pytest.raises(AutoscoutError, match="is not a valid result"):
        s.tell(first, {"s": value})
    s.tell(first, {"s": 1.0})
    assert s.wants_more()
    s.close()


def test_a_reference_that_starts_to_fail_leaves_a_winner_that_says_so(tmp_path):
    reference = []

    def answer(knobs, number):
        reference[:] = reference or [knobs]
        return "error" if knobs == reference[0] and number > 1 else true(knobs)

    found = driven(study(tmp_path), answer)
    assert found.confirmed is not None
    assert found.confirmed.verdict == "alone"
    assert found.confirmed.gain is None
    assert "did not run in 2 rounds" in found.confirmed.sentence


def test_devices_that_disappear_before_the_rounds_end_it_with_a_sentence(tmp_path):
    s = study(tmp_path, profiles=4)
    with pytest.raises(AutoscoutError, match=r"no finalist of .* when measured again .*infrastructure") as said:
        driven(s, lambda knobs, number: "infrastructure" if _confirming(s) else true(knobs))
    assert said.value.exit_code == 3
    assert s.session


def _confirming(s):
    return s._engine.reason != ""


def test_values_of_another_machine_answer_nothing(tmp_path):
    driven(study(tmp_path, profiles=12, environment={"device": "other"}), lambda knobs, number: true(knobs) / 3)
    s = study(tmp_path, profiles=6, environment={"device": "ours"})
    found = driven(s, lambda knobs, number: true(knobs))
    assert not any(isinstance(e, Answered) for e in events(tmp_path, s))
    assert found.value > 0.9


def test_values_of_a_faster_hour_do_not_win(tmp_path):
    """The first session measured everything at a third of what it costs today; every configuration is the same."""
    rng = np.random.default_rng(0)
    driven(study(tmp_path, profiles=12), lambda knobs, number: 0.33 * float(np.exp(0.01 * rng.standard_normal())))
    s = study(tmp_path, profiles=12)
    found = driven(s, lambda knobs, number: float(np.exp(0.01 * rng.standard_normal())))
    assert found.confirmed is not None
    assert found.confirmed.verdict != "faster"
    assert found.value == pytest.approx(1.0, rel=0.05)
    said = [e for e in events(tmp_path, s) if isinstance(e, ExperimentEnded)]
    assert said[0].purpose == "anchor"  # the reference is not taken from then
