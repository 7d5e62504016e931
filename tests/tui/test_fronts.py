"""The front of two objectives."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tui_samples import configuration, experiment, measured, session, started

from kb.journal import AnyEvent
from tui.session.fronts import Front, front
from tui.session.state import fold

Pair = tuple[float, float]


def of(pairs: list[Pair]) -> Front | None:
    """Configurations with these step times and memories."""
    events: list[AnyEvent] = [started()]
    for i, (seconds, memory) in enumerate(pairs):
        m = measured(configuration(mbs=i + 1), seconds, memory=memory)
        events += experiment(i + 1, m, 1_700_000_000.0 + 20 * i)
    return front(fold(events))


@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(1, 77)), min_size=2, max_size=30))
def test_nothing_on_the_front_is_beaten_and_everything_else_is(pairs: list[Pair]):
    found = of(pairs)
    assert found is not None
    assert len(found.points) == len(pairs)
    best = [p for p in found.points if p.kind != "beaten"]
    for p in found.points:
        beaten = any(q.x <= p.x and q.y <= p.y and (q.x, q.y) != (p.x, p.y) for q in found.points)
        assert beaten == (p.kind == "beaten")
    assert [p.x for p in best] == sorted(p.x for p in best)


def test_the_knee_is_where_both_are_nearly_at_their_best():
    found = of([(1.0, 70.0), (1.1, 20.0), (3.0, 10.0), (2.0, 60.0)])
    assert found is not None
    assert [(p.x, p.kind) for p in found.points] == [(1.0, "front"), (1.1, "knee"), (3.0, "front"), (2.0, "beaten")]


def test_a_metric_that_the_job_does_not_ask_for_is_said_to_be_none_of_its_objectives():
    found = of([(1.0, 70.0), (1.1, 20.0)])
    assert found is not None
    assert (found.y_name, found.wanted) == ("peak_memory_gib", False)


def test_failures_and_broken_constraints_are_not_on_it():
    found = front(fold(session()))
    assert found is not None
    assert {p.name for p in found.points}.isdisjoint({"pp4_tp1_arnone_mbs1", "pp2_tp1_arnone_mbs4"})


def test_one_configuration_is_no_front():
    assert of([(1.0, 2.0)]) is None
    assert front(msgspec.structs.replace(fold(session()), runs=[])) is None


def test_the_drawing_marks_the_knee():
    from tui.draw import comparing

    pairs = [(1.0, 70.0), (1.1, 20.0), (3.0, 10.0)]
    state = fold([started()])
    text = comparing.front(state, of(pairs), 80, 24, False).plain
    assert "<- knee" in text
    assert "not an objective of this job" in text
    assert text.count("◆") == 2  # in the picture and in the list
    assert comparing.interval([1.0, 1.0, 1.0]) == "1.000 ±0%"
    assert comparing.interval([0.9, 1.1]) == "1.000 ±127%"
    assert comparing.interval([2.5]) == "2.500"
    assert max(len(line) for line in text.splitlines()) <= 80


@pytest.mark.parametrize("pairs", [[(1.0, 5.0), (1.0, 5.0)], [(2.0, 5.0), (1.0, 5.0)]])
def test_ties_draw_too(pairs: list[Pair]):
    from tui.draw import comparing

    assert comparing.front(fold([started()]), of(pairs), 40, 10, True).plain
