"""The verdict at the end of a session, from re-measurements alone."""

import msgspec
import pytest
from landscape import failed, job_of, measured, space_of

from autoscout.space.explain import completed
from autoscout.targets.jobs import expert_default
from autoscout.tuning.confirm import finalists, round_of, undecided, verdict

JOB, SPACE = job_of("tiny-gpt-cpu"), space_of("tiny-gpt-cpu")
DEFAULT = expert_default(SPACE)
OTHER = completed(SPACE, {"pp": 2, "mbs": 2}, DEFAULT)
THIRD = completed(SPACE, {"pp": 4}, DEFAULT)


def took(configuration, seconds):
    return msgspec.structs.replace(measured(SPACE, configuration), metrics={"step_time_s": seconds})


def test_the_default_is_always_among_the_finalists_and_failures_never():
    slow_default = took(DEFAULT, 9.0)
    chosen = finalists(JOB, [took(OTHER, 1.0), slow_default, failed(SPACE, THIRD, "wrong")], DEFAULT)
    assert chosen == [OTHER, DEFAULT]
    assert finalists(JOB, [failed(SPACE, DEFAULT)], DEFAULT) == []


def test_finalists_are_those_that_noise_may_have_hidden():
    assert finalists(JOB, [took(OTHER, 1.0), took(DEFAULT, 1.1), took(THIRD, 1.5)], DEFAULT) == [OTHER, DEFAULT]


def test_rounds_go_forth_and_back():
    assert [round_of([OTHER, DEFAULT], i) for i in range(3)] == [[OTHER, DEFAULT], [DEFAULT, OTHER], [OTHER, DEFAULT]]


def rounds_of(*rows):
    """One row of seconds a round, for OTHER, THIRD and the default."""
    return [[took(OTHER, a), took(THIRD, b), took(DEFAULT, d)] for a, b, d in rows]


def test_of_those_that_are_measurably_faster_the_fastest_wins():
    """OTHER is faster on average, but only THIRD surely."""
    measured_rounds = rounds_of((0.5, 0.85, 1.0), (0.9, 0.86, 1.0), (0.5, 0.85, 1.0))
    found = verdict(JOB, SPACE, measured_rounds, DEFAULT)
    assert found is not None
    assert found.winner == THIRD
    assert found.low is not None
    assert found.low > 1
    assert found.rival_name == SPACE.name(OTHER)
    assert not undecided(JOB, measured_rounds, DEFAULT)


def test_more_rounds_where_they_may_decide_something():
    assert undecided(JOB, rounds_of((0.5, 1.2, 1.0), (0.9, 1.2, 1.0), (1.1, 1.2, 1.0)), DEFAULT)
    assert not undecided(JOB, rounds_of((1.1, 1.2, 1.0), (1.2, 1.2, 1.0)), DEFAULT)  # the default leads
    assert not undecided(JOB, [[took(OTHER, 1.0)]], DEFAULT)  # it does not run


def test_the_gain_is_the_ratio_of_costs_with_its_interval():
    measured_rounds = [[took(OTHER, w), took(DEFAULT, d)] for w, d in ((1.0, 2.0), (1.1, 2.1), (0.9, 1.9))]
    found = verdict(JOB, SPACE, measured_rounds, DEFAULT)
    assert found is not None
    assert found.winner == OTHER
    assert found.value == pytest.approx((1.0 * 1.1 * 0.9) ** (1 / 3))
    assert found.default_value is not None
    assert found.gain == pytest.approx(found.default_value / found.value)
    assert found.low is not None
    assert found.gain is not None
    assert found.high is not None
    assert 1.5 < found.low < found.gain < found.high < 2.6
    assert found.pairs == 3


def test_what_is_not_measurably_faster_does_not_beat_the_default():
    rounds_ = [[took(OTHER, w), took(DEFAULT, d)] for w, d in ((1.0, 1.1), (1.1, 1.05), (1.0, 1.1))]
    found = verdict(JOB, SPACE, rounds_, DEFAULT)
    assert found is not None
    assert (found.winner, found.gain, found.low) == (DEFAULT, 1.0, None)
    assert found.rival_name == SPACE.name(OTHER)
    assert found.behind is not None
    assert found.behind_high is not None
    assert found.behind < 1 < found.behind_high


def test_one_round_decides_nothing_against_the_default():
    found = verdict(JOB, SPACE, [[took(OTHER, 1.0), took(DEFAULT, 2.0)]], DEFAULT)
    assert found is not None
    assert found.winner == DEFAULT


def test_without_a_default_that_runs_the_fastest_wins():
    found = verdict(JOB, SPACE, [[took(OTHER, 1.0), took(THIRD, 2.0), failed(SPACE, DEFAULT)]], DEFAULT)
    assert found is not None
    assert (found.winner, found.gain, found.default_value) == (OTHER, None, None)


def test_when_the_default_wins_the_next_best_says_by_how_much():
    rounds_ = [[took(OTHER, 1.2), took(DEFAULT, 1.0)], [took(OTHER, 1.3), took(DEFAULT, 1.1)]]
    found = verdict(JOB, SPACE, rounds_, DEFAULT)
    assert found is not None
    assert (found.winner, found.gain, found.low) == (DEFAULT, 1.0, None)
    assert found.rival_name == SPACE.name(OTHER)
    assert found.behind == pytest.approx((1.2 * 1.3 / 1.1) ** 0.5)


def test_a_finalist_that_fails_once_is_out():
    rounds_ = [[took(OTHER, 1.0), took(DEFAULT, 2.0)], [failed(SPACE, OTHER), took(DEFAULT, 2.0)]]
    found = verdict(JOB, SPACE, rounds_, DEFAULT)
    assert found is not None
    assert found.winner == DEFAULT
    assert verdict(JOB, SPACE, [[failed(SPACE, OTHER)]], DEFAULT) is None


def test_a_larger_metric_wins_where_the_objective_maximizes():
    objective = msgspec.structs.replace(JOB.objective, minimize="", maximize="tokens_per_s")
    job = msgspec.structs.replace(JOB, objective=objective)

    def rate(configuration, tokens):
        return msgspec.structs.replace(measured(SPACE, configuration), metrics={"tokens_per_s": tokens})

    rounds_ = [[rate(OTHER, 200.0 + i), rate(DEFAULT, 100.0 - i)] for i in range(3)]
    found = verdict(job, SPACE, rounds_, DEFAULT)
    assert found is not None
    assert found.winner == OTHER
    assert found.value == pytest.approx(201.0, rel=1e-3)
    assert found.gain == pytest.approx(2.03, rel=1e-2)
