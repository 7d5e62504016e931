"""The verdict in one sentence: what may be claimed, and never more."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscout.deploy.headline import Verdict, headline
from kb.journal import Confirmed
from kb.records import Configuration, Objective


def rounds(verdict="undecided", gain=1.18, low=0.97, high=1.4, pairs=3, more=16, p=0.94, noise=0.02):
    return Confirmed(
        winner=Configuration({"mbs": 2}), name="mbs2", value=1.0, default_name="mbs1", default_value=gain, gain=gain,
        low=low, high=high, pairs=pairs, verdict=verdict, p_better=p, noise=noise, more=more,
    )  # fmt: skip


def said(confirmed=None, gain=1.18, kept=False, objective=None, **more) -> str:
    objective = objective or Objective(minimize="step_time_s")
    return headline(
        Verdict(objective=objective, reference="your present launch", tried=20, gain=gain, confirmed=confirmed,
                kept=kept, **more)
    )  # fmt: skip


def test_a_proven_gain_is_sure_and_has_its_interval():
    found = said(rounds("faster", 1.33, 1.21, 1.44, more=None), gain=1.33)
    assert found == "33 % faster than your present launch, sure (95 %: 21 to 44 %)"


def test_an_undecided_gain_says_what_would_decide_it():
    found = said(rounds(), round_s=28.0)
    assert found == (
        "Probably 18 % faster than your present launch, not proven: 13 more rounds (about 6 minutes) would decide"
    )


def test_one_round_is_not_probable_whatever_the_gain():
    found = said(rounds(gain=1.385, low=None, high=None, pairs=1, more=None, p=0.62, noise=None), gain=1.385)
    assert found == "Perhaps 38 % faster than your present launch, not proven: only 1 round of measurements"


def test_nothing_better_says_how_likely_something_was_missed():
    found = said(rounds("slower", 1.0, None, None), gain=1.0, kept=True, left=0.031)
    assert found == (
        "Nothing better than your present launch found; 20 configurations measured; "
        "chance that a configuration at least 1 % better remains: 3 %"
    )


@pytest.mark.parametrize(
    ("objective", "words"),
    [
        (Objective(minimize="joules_per_token"), "15 % less joules_per_token than"),
        (Objective(maximize="kv_cache_tokens"), "18 % more kv_cache_tokens than"),
        (Objective(maximize="requests_per_s"), "18 % faster than"),
    ],
)
def test_what_is_not_a_speed_is_not_called_faster(objective, words):
    assert words in said(rounds("faster", low=1.1), objective=objective)


def test_designs_and_a_reference_that_did_not_run_claim_nothing():
    assert "nothing was measured" in said(designed=True)
    assert "no gain is known" in said(gain=None)


numbers = st.floats(0.2, 20)


@given(st.sampled_from(["faster", "equal", "slower", "undecided", "alone"]), numbers, numbers, st.floats(1, 3),
       st.integers(1, 40), st.none() | st.integers(1, 10_000), st.none() | st.floats(0, 1), st.booleans(),
       st.none() | st.floats(0, 1), st.none() | st.floats(0, 1e6))  # fmt: skip
def test_every_headline_is_short_and_sure_only_where_proven(verdict, gain, low, wide, pairs, more, p, kept, left, took):
    confirmed = rounds(verdict, gain, low, low * wide, pairs, more, p, None if p is None else 0.1)
    found = said(confirmed, gain=gain, kept=kept, left=left, round_s=took)
    assert len(found.split()) <= 30
    assert (", sure" not in found) or verdict == "faster" or low > 1
