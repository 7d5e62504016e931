"""The wall-clock limit of a session. An experiment takes ten seconds of a clock that only experiments advance."""

from types import SimpleNamespace

import pytest
from test_session import replay_job, with_budget

from autoscout.targets.jobs import load_job
from autoscout.tuning import session
from autoscout.tuning.loop import Stop
from autoscout.tuning.wall_clock import WallClock
from kb.journal import ExperimentStarted

RUN_S = 10.0


@pytest.fixture
def clock(monkeypatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=1.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr("autoscout.tuning.wall_clock.time", clock)
    return clock


@pytest.mark.parametrize(("limit_s", "rounds"), [(400, 2), (200, 2), (80, 1)])
def test_a_session_with_its_rounds_ends_within_the_limit(tmp_path, clock, limit_s: float, rounds: int):
    """The search took all of the time, a round came on top of it, and a round that had begun was ended however long it
    took: a session with a limit of four minutes ran for nine."""
    began = clock.now

    def run(event):
        clock.now += RUN_S * isinstance(event, ExperimentStarted)

    job = with_budget(load_job(replay_job(tmp_path)), 300, f"{limit_s}s")
    result = session.tune(job, tmp_path / "kb.duckdb", session.SessionOptions(), run, lambda text: None, Stop())
    assert result.reason == "wall"
    assert clock.now - began <= limit_s
    assert result.confirmed is not None
    assert result.confirmed.pairs >= rounds


def test_waiting_for_devices_does_not_count(clock):
    wall = WallClock(25.0)
    wall.started()
    clock.now += RUN_S
    wall.ended()
    assert not wall.late(1)
    assert wall.late(2)
    clock.now += 100
    wall.waited_s += 100
    assert not wall.late(1)


def test_several_experiments_at_a_time_need_less_time(clock):
    wall = WallClock(25.0)
    wall.started()
    clock.now += RUN_S
    wall.ended()
    wall.ended()
    assert not wall.late(3)
    assert wall.late(4)


def test_without_a_limit_nothing_is_late(clock):
    wall = WallClock(float("inf"))
    wall.started()
    clock.now += 1e9
    wall.ended()
    assert not wall.late(1000, reserve=0.5)
