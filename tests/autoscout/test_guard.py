"""The guard: MAPE over a window, by region, and its verdict in words."""

import pytest

from autoscout.simulate.trust import TrustGuard


def checked(*checks, epsilon=0.15, window=10):
    guard = TrustGuard(epsilon, window)
    for predicted, measured, knobs in checks:
        guard.check(predicted, measured, knobs)
    return guard


def test_the_guard_averages_a_window():
    guard = TrustGuard(epsilon=0.16, window=2)
    assert guard.trusted
    assert guard.check(1.1, 1.0) == pytest.approx(0.1)
    assert guard.check(1.3, 1.0) == pytest.approx(0.2)
    assert not guard.trusted
    assert guard.check(1.0, 1.0) == pytest.approx(0.15)
    assert guard.trusted
    assert guard.check(1.0, None) == pytest.approx(0.5)  # predicted to run, and failed


def test_it_says_in_words_why_it_simulates():
    assert TrustGuard(0.15, 5).verdict({"pp": 1}).why == "the simulators have not been checked yet"
    guard = checked(*[(1.07, 1.0, {"pp": 1})] * 5)
    verdict = guard.verdict({"pp": 1})
    assert verdict.simulate
    assert verdict.why == "the simulators err by 7% over the last 5 checks, within the tolerated ε = 15%"


def test_it_says_when_nothing_like_a_configuration_was_checked():
    verdict = checked(*[(1.07, 1.0, {"pp": 1, "tp": 2})] * 5).verdict({"pp": 8, "tp": 2})
    assert verdict.simulate
    assert verdict.why.endswith("no checked configuration had pp 8")


def test_a_region_where_the_checks_failed_is_profiled_though_the_rest_is_trusted():
    guard = checked(*[(1.02, 1.0, {"pp": 1, "sp": False})] * 8, *[(1.5, 1.0, {"pp": 4, "sp": False})] * 2)
    assert guard.trusted
    assert guard.verdict({"pp": 1, "sp": False}).simulate
    verdict = guard.verdict({"pp": 4, "sp": True})
    assert not verdict.simulate
    assert verdict.why == "where pp is 4 the simulators err by 50% (2 checks), more than the tolerated ε = 15%"


def test_one_bad_check_is_not_yet_a_region():
    guard = checked(*[(1.02, 1.0, {"pp": 1})] * 8, (1.5, 1.0, {"pp": 4}))
    assert guard.verdict({"pp": 4}).simulate


def test_a_failed_guard_names_the_region_that_broke_it():
    guard = checked(*[(1.02, 1.0, {"pp": 1, "tp": 1})] * 3, *[(2.0, 1.0, {"pp": 4, "tp": 1})] * 3)
    assert not guard.trusted
    assert guard.why == (
        "the simulators err by 51% over the last 6 checks, more than the tolerated ε = 15%; "
        "where pp is 4, they err by 100%, elsewhere by 2%"
    )
