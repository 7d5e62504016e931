"""Values of other measuring periods: in today's terms, with the doubt that is left."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from landscape import job_of, measured, space_of, step_time

from autoscout.search.belief.ranking import Ranking
from autoscout.space.explain import completed
from autoscout.tuning.anchors import Anchors
from autoscout.tuning.periods import Periods

JOB, SPACE = job_of("tiny-gpt-cpu"), space_of("tiny-gpt-cpu")
DEFAULT = SPACE.reference
OTHERS = [completed(SPACE, {"pp": 2, "mbs": mbs}, DEFAULT) for mbs in (1, 2, 4)]


def took(configuration, seconds):
    return msgspec.structs.replace(measured(SPACE, configuration), metrics={"step_time_s": seconds})


@given(slower=st.floats(0.5, 2.0))
def test_what_an_earlier_hour_measured_moves_with_the_reference(slower):
    """A configuration that was as fast as the default then is not faster today because today is slower."""
    periods = Periods(JOB, [("then", took(DEFAULT, 1.0)), ("then", took(OTHERS[0], 1.0))])
    periods.tell(took(DEFAULT, slower))
    today = periods.as_today("then", took(OTHERS[0], 1.0))
    assert today.metrics["step_time_s"] == pytest.approx(slower, rel=0.05)
    assert 0 < today.conditions["doubt"] < 0.1


def test_the_more_two_periods_share_the_less_doubt_is_left_and_without_any_it_is_large():
    then = [("then", took(c, 1.0 + i)) for i, c in enumerate([DEFAULT, *OTHERS])]
    periods = Periods(JOB, then)
    doubts = [periods.offset("then")[1]]
    for _, m in then:
        periods.tell(took(m.configuration, 1.2 * m.metrics["step_time_s"]))
        doubts.append(periods.offset("then")[1])
    assert doubts == sorted(doubts, reverse=True)
    assert doubts[0] == pytest.approx(0.3)
    assert periods.offset("then")[0] == pytest.approx(np.log(1.2), rel=0.02)
    assert periods.offset("never heard of") == (0.0, 0.3)


def test_a_doubted_row_is_believed_less_than_the_same_one_measured_here():
    rng = np.random.default_rng(3)
    rows = [(c, step_time(c)) for c in (SPACE.sample(rng) for _ in range(20))]
    lucky = (OTHERS[0], 0.8 * min(cost for _, cost in rows))

    def excess(doubts):
        ranking = Ranking(SPACE, [*rows, lucky], doubts)
        return next(b for b in ranking.believed if b.configuration == OTHERS[0])

    sure, doubted = excess({}), excess({OTHERS[0].id: 0.3})
    assert doubted.deviation > sure.deviation


def test_anchors_come_more_often_where_the_machine_moves_and_end_when_they_fail():
    steady, moving = Anchors(JOB, DEFAULT), Anchors(JOB, DEFAULT)
    assert not steady.due(100)  # the first one is the search's own
    for i in range(3):
        steady.tell(took(DEFAULT, 1.0), 10 * i)
        moving.tell(took(DEFAULT, 1.0 + 0.3 * (i % 2)), 10 * i)
    assert moving.due(25)
    assert not steady.due(25)
    moving.tell(msgspec.structs.replace(took(DEFAULT, 1.0), status="infrastructure"), 25)
    assert moving.due(30)  # the machine's fault says nothing of the reference
    moving.tell(msgspec.structs.replace(took(DEFAULT, 1.0), status="error", metrics={}), 30)
    assert not moving.due(1000)
