"""The verdict at the end of a session, from re-measurements alone."""

import msgspec
import pytest
from landscape import failed, job_of, measured, space_of

from autoscout.confirm import finalists, rounds, verdict
from autoscout.rivals.expert import expert_default
from autoscout.space.explain import completed

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
    assert rounds([OTHER, DEFAULT], 3) == [[OTHER, DEFAULT], [DEFAULT, OTHER], [OTHER, DEFAULT]]


def test_the_gain_is_the_ratio_of_costs_with_its_interval():
    measured_rounds = [[took(OTHER, w), took(DEFAULT, d)] for w, d in ((1.0, 2.0), (1.1, 2.1), (0.9, 1.9))]
    found = verdict(JOB, SPACE, measured_rounds, DEFAULT)
    assert found is not None
    assert found.winner == OTHER
    assert (found.value, found.default_value) == (1.0, 2.0)
    assert found.gain == pytest.approx((2.0 / 1.0 * 2.1 / 1.1 * 1.9 / 0.9) ** (1 / 3))
    assert found.low is not None
    assert found.gain is not None
    assert found.high is not None
    assert 1.5 < found.low < found.gain < found.high < 2.6
    assert found.pairs == 3


def test_when_the_default_wins_the_next_best_says_by_how_much():
    found = verdict(
        JOB, SPACE, [[took(OTHER, 1.2), took(DEFAULT, 1.0)], [took(OTHER, 1.3), took(DEFAULT, 1.1)]], DEFAULT
    )
    assert found is not None
    assert (found.winner, found.gain, found.low) == (DEFAULT, 1.0, None)
    assert found.rival_name == SPACE.name(OTHER)
    assert found.behind == pytest.approx((1.2 * 1.3 / 1.1) ** 0.5)


def test_a_finalist_that_fails_once_is_out():
    found = verdict(
        JOB, SPACE, [[took(OTHER, 1.0), took(DEFAULT, 2.0)], [failed(SPACE, OTHER), took(DEFAULT, 2.0)]], DEFAULT
    )
    assert found is not None
    assert found.winner == DEFAULT
    assert verdict(JOB, SPACE, [[failed(SPACE, OTHER)]], DEFAULT) is None


def test_a_larger_metric_wins_where_the_objective_maximizes():
    job = msgspec.structs.replace(
        JOB, objective=msgspec.structs.replace(JOB.objective, minimize="", maximize="tokens_per_s")
    )

    def rate(configuration, tokens):
        return msgspec.structs.replace(measured(SPACE, configuration), metrics={"tokens_per_s": tokens})

    found = verdict(job, SPACE, [[rate(OTHER, 200.0), rate(DEFAULT, 100.0)]], DEFAULT)
    assert found is not None
    assert (found.winner, found.value) == (OTHER, pytest.approx(200.0))
    assert found.gain == pytest.approx(2.0)
