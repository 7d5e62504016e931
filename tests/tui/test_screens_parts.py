"""Parts of the screens by themselves: readings of devices, progress in logs, where the simulators fail."""

import pytest
from tui_samples import JOB, configuration, experiment, failed, infeasible, measured, started

from autoscout.machine.telemetry import Meter, Reading, parsed
from kb import journal as j
from tui.draw import checking
from tui.draw.machine_panel import devices
from tui.draw.running import iteration, running
from tui.draw.two_by_two import coordinates, difference_of_differences, grid
from tui.session import shortfall
from tui.session.eta import expected_s
from tui.session.standing import standing
from tui.session.state import Grid, fold


def test_what_nvidia_smi_says_of_its_devices():
    said = "0, 97, 71234, 81559, 612.34, 64\n1, 0, 4, 81559, [N/A], 31\nNo devices were found\n"
    found = parsed(said)
    assert list(found) == ["gpu 0", "gpu 1"]
    first = found["gpu 0"]
    assert (first.busy, first.power_w, first.temperature_c) == (0.97, 612.34, 64.0)
    assert first.memory_gib == pytest.approx(71234 / 1024)
    assert found["gpu 1"].power_w is None
    assert "612 W" in devices({"gpu 0": [first]}, 100, 20, False).plain


def test_without_a_gpu_the_kernel_tells_cpu_and_memory():
    meter = Meter()
    meter.read()
    for reading in meter.read().values():
        assert 0 <= reading.busy <= 1
        assert 0 < reading.memory_gib < reading.memory_total_gib


def test_many_devices_take_a_line_each():
    readings = {f"gpu {i}": [Reading(busy=0.5, memory_gib=1, memory_total_gib=80, power_w=100)] for i in range(8)}
    assert devices(readings, 120, 16, True).plain.count("\n") == 8


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (" iteration        5/      10 | consumed samples: 80 | elapsed time per iteration (ms): 31.2", (5, 10)),
        (" 42%|████▏     | 84/200 [00:31<00:44,  2.62it/s]", (84, 200)),
        ("loaded 3/4 of http://10.0.0.1/2024/11", None),
        ("iteration 11/10", None),
    ],
)
def test_progress_that_a_log_tells(line, found):
    assert iteration(["something else", line, "the last line"]) == found


def test_the_elapsed_time_stands_beside_what_such_experiments_took():
    c = configuration(pp=2)
    events: list[j.AnyEvent] = [started(), *experiment(1, measured(c, 1.0), 1_700_000_000.0)]
    again = experiment(2, measured(configuration(tp=2), 1.0), 1_700_000_020.0)
    events += [again[0]]
    state = fold(events)
    state.now = 1_700_000_025.0
    assert expected_s(state, state.runs[-1]) == 10.0
    assert "00:05 of about 00:10" in running(state, 80, 5, [], False).plain
    state.now = 1_700_000_060.0
    assert "00:30 longer than usual" in running(state, 80, 5, [], False).plain


def test_time_spent_waiting_for_the_devices_is_not_the_experiments():
    begin, end = experiment(1, measured(configuration(), 1.0), 1_700_000_000.0)
    waited = [j.Waiting(holder="x", pid=1, at=1_700_000_001.0), j.Waiting(over=True, at=1_700_000_300.0)]
    state = fold([started(), begin, *waited])
    assert state.waiting is None
    assert state.runs[0].began == 1_700_000_300.0
    assert fold([started(), begin, waited[0]]).waiting is not None
    assert fold([started(), begin, waited[0], end]).waiting is None


def test_where_the_simulators_fail_is_found():
    """They are right, except with full recomputation."""
    events: list[j.AnyEvent] = [started()]
    for i in range(8):
        c = configuration(pp=1 + i % 2, ar="full" if i >= 4 else "none", mbs=i)
        m = measured(c, 1.0)
        events += experiment(i + 1, m, 1_700_000_000.0 + 20 * i)
        predicted = 1.5 if i >= 4 else 1.02
        events.append(
            j.Checked(
                step=i,
                name=m.name,
                predicted=predicted,
                measured=1.0,
                mape=0.2,
                epsilon=0.15,
                weights={"a": 1.0},
                members={"a": predicted, "b": 1.0},
            )
        )
    state = fold(events)
    first = checking.regions(state, 100, 8, True).plain.splitlines()[1]
    assert first.startswith("ar is full")
    assert "50%" in first
    assert "not believed here" in first
    lines = {line.split()[0]: line for line in checking.members(state, 100, True).plain.splitlines()}
    assert " 26% " in lines["a"]
    assert " 0% " in lines["b"]


def test_the_grid_marks_what_was_predicted_and_says_the_difference_of_differences():
    g = Grid(
        names=[],
        arm="SPARSE",
        costs=[1.0, 0.8, 0.9, 0.6],
        delta_sparse=0.1,
        delta_dense=0.2,
        interaction=0.0,
        errors=[0.0, 0.05, 0.0, 0.0],
    )
    assert difference_of_differences(g) == pytest.approx((1.0 - 0.9) - (0.8 - 0.6))
    state = fold([started()])
    state.grid = g
    text = grid(state, 80, False).plain
    assert "~0.8000±5%" in text
    assert "-10.0%" in text
    g.costs[1] = None
    assert difference_of_differences(g) is None


def test_dense_coordinates_say_direction_and_momentum():
    decided = j.Decided(
        step=1,
        phase="search",
        arm="DENSE",
        configurations=[],
        names=[],
        why="",
        coordinates={"mbs": [-1, 4], "x": [1, 1]},
    )
    text = coordinates(fold([started(), decided]), 80, False).plain.splitlines()
    assert "mbs" in text[0]
    assert "↓" in text[0]
    assert "4 values at a time" in text[0]
    assert "1 value at a time" in text[1]


def test_what_is_nearest_to_feasible():
    missed = shortfall.misses(fold(infeasible()))
    assert [(m.text, m.value, m.run.name) for m in missed] == [("peak_memory_gib <= 78", 81.4, "pp4_tp1_arnone_mbs1")]
    assert missed[0].factor == pytest.approx(81.4 / 78)
    assert [(f.status, f.count) for f in shortfall.failures(fold(infeasible()))] == [("limit", 2), ("oom", 1)]


@pytest.mark.parametrize(
    ("events", "alive", "kind"),
    [
        ([], None, "empty"),
        ([started()], True, "starting"),
        (infeasible(), False, "infeasible"),
        (failed(), False, "failed"),
    ],
)
def test_how_a_session_stands(events, alive, kind):
    state = fold(events)
    assert standing(state, alive).kind == kind


def test_a_session_that_broke_off_says_how_to_go_on_with_it():
    state = fold([started(), *experiment(1, measured(configuration(), 1.0), 1_700_000_000.0)])
    stands = standing(state, False, said="Killed", kb="/a b/kb.duckdb")
    assert stands.kind == "crashed"
    assert "1 experiments are kept" in stands.advice
    assert "It said: Killed" in stands.advice
    assert "autoscout tune --resume gpt-1 --kb '/a b/kb.duckdb'" in stands.advice


def test_silence_is_only_told_when_nothing_explains_it():
    begin, _ = experiment(1, measured(configuration(), 1.0), 1_700_000_000.0)
    state = fold([started(), begin])
    timeout = JOB.launch.timeout_s
    for seconds, kind in ((timeout, "running"), (timeout + 60, "silent")):
        state.now = state.last + seconds
        assert standing(state, True).kind == kind
