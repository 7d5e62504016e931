"""A machine's clock that is set back or ahead (NTP, a resumed VM) changes no duration and loses no row."""

import time

import pytest
from test_command_run import run


@pytest.mark.parametrize("step_s", [-86_400.0, -5.0, 86_400.0])
def test_a_clock_that_steps_while_an_experiment_runs_changes_no_cost(ending, tmp_path, monkeypatch, step_s):
    """The cost was the difference of two dates, -259,198 s once, and the knowledge base refused the rest of the
    session."""
    real, asked = time.time, []

    def stepping() -> float:
        asked.append(1)
        return real() + step_s * len(asked)

    monkeypatch.setattr(time, "time", stepping)
    began = time.monotonic()
    found = run(ending("result"), tmp_path)
    assert found.status == "ok"
    assert 0 < found.cost_s <= time.monotonic() - began
    assert found.device_s == found.cost_s * 1
