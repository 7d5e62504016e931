"""Parts of the screens by themselves: readings of devices, progress in logs, where the simulators fail."""

import re
from importlib import import_module
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tui_samples import JOB, configuration, decided, ended, experiment, failed, infeasible, measured, started

from autoscout.machine.telemetry import DeviceReading, Meter, parsed
from kb import journal as j
from kb.journal import Confirmed, SearchEnded, SessionEnded
from kb.records import Configuration
from tui.actions import SCREENS
from tui.draw import checking, comparing, panels
from tui.draw.arms_panel import arms
from tui.draw.machine_panel import devices
from tui.draw.plot import Marks, plot
from tui.draw.running import ended as of_ended
from tui.draw.running import iteration, running, telling
from tui.draw.runs import describe
from tui.draw.two_by_two import coordinates, difference_of_differences, grid
from tui.screens import pane
from tui.session import shortfall
from tui.session.effort import rates
from tui.session.eta import expected_s
from tui.session.headlines import verdict
from tui.session.standing import standing
from tui.session.state import Grid, fold
from tui.text import changes, clauses, fit, fit_lines, number

RECORDED = Path(__file__).parents[2] / "fixtures/recorded"


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
    readings = {f"gpu {i}": [DeviceReading(busy=0.5, memory_gib=1, memory_total_gib=80, power_w=100)] for i in range(8)}
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
    assert "not trusted here" in first
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
    stands = standing(state, False, message="Killed", kb="/a b/kb.duckdb")
    assert stands.kind == "crashed"
    assert "1 experiments are kept" in stands.advice
    assert "Its last message: Killed" in stands.advice
    assert "autoscout tune --resume gpt-1 --kb '/a b/kb.duckdb'" in stands.advice


def test_silence_is_only_told_when_nothing_explains_it():
    begin, _ = experiment(1, measured(configuration(), 1.0), 1_700_000_000.0)
    state = fold([started(), begin])
    timeout = JOB.launch.timeout_s
    for seconds, kind in ((timeout, "running"), (timeout + 60, "silent")):
        state.now = state.last + seconds
        assert standing(state, True).kind == kind


def test_the_best_so_far_and_its_label_lie_in_one_row_whatever_the_values():
    """The line fell a row below the mark of its own best."""
    for height in range(3, 12):
        for best in (0.70, 0.71, 0.725, 0.74, 0.81, 0.88):
            steps = [(1.0, 1.0), (4.0, best)]
            mark = Marks([(1.0, 1.0), (4.0, best)], "*")
            lines = plot(60, height, steps, [mark], 0.99, "default", 9.0, ascii_only=True).plain.splitlines()
            (row,) = [i for i, line in enumerate(lines) if line.split("|")[0].strip() == number(best)]
            assert "*" in lines[row]
            assert lines[row].rstrip().endswith("_")


def test_the_name_of_a_level_says_its_value_where_another_label_stands():
    lines = plot(
        60, 4, [(1.0, 1.0), (2.0, 0.99)], [Marks([(3.0, 3.0)], "*")], 1.0, "default", 9.0, ascii_only=True
    ).plain
    assert "0.9900" in lines
    assert "default 1.000" in lines


def test_arms_stand_on_one_axis_with_what_they_brought():
    events: list[j.AnyEvent] = [started()]
    values = {"SPARSE": [0.9, 0.95, 0.8, 0.85], "DENSE": [0.99, 0.98], "MODEL": [0.5]}
    number_, at = 1, 1_700_000_000.0
    events += experiment(1, measured(configuration(tp=2), 1.0), at)
    for arm, costs in values.items():
        for i, cost in enumerate(costs):
            number_ += 1
            c = configuration(mbs=number_, pp=1 + i)
            events.append(decided(number_, arm, c, at))
            events += experiment(number_, measured(c, cost), at + 20 * number_)
    state = fold(events)
    sparse = state.efforts["SPARSE"]
    assert (sparse.experiments, sparse.wins, sparse.device_s) == (4, 2, 320.0)
    assert sparse.gain == pytest.approx(0.1 + 0.1 / 0.9)
    assert state.efforts["DENSE"].wins == 0
    found = rates(state.efforts)
    assert found["SPARSE"].value == pytest.approx(sparse.gain / 320)
    for rate in found.values():
        assert 0 <= rate.low <= rate.value <= rate.high
    assert found["DENSE"].high > 0  # two experiments without a win do not prove that there is none
    lines = arms(state, 100, 10, True).plain.splitlines()
    assert "wins" in lines[0]
    top = max(r.high for r in found.values())
    for name, rate in found.items():
        line = next(line for line in lines if name in line)
        assert abs(line[-axis_of(lines[0]) :].index("*") - rate.value / top * (axis_of(lines[0]) - 1)) <= 1


def test_the_arms_say_that_proposals_are_held_until_they_are_heard_again():
    orders = [j.Steered(what=what, values={}, by="ann") for what in ("hold", "pause", "hear")]
    c = configuration(mbs=1)
    begun = [started(), decided(1, "MODEL", c, 1.0), *experiment(1, measured(c, 1.0), 2.0)]
    shown = [arms(fold([*begun, *orders[:n]]), 100, 10, True).plain for n in range(4)]
    assert ["are on hold" in text for text in shown] == [False, True, True, False]


def axis_of(heading: str) -> int:
    return len(heading) - heading.index(" 0%") - 1


def test_one_or_two_checks_are_no_verdict():
    def checked(n):
        check = j.Checked(step=1, name="x", predicted=1.0, measured=1.01, mape=0.01, epsilon=0.15, weights={})
        return panels.trust(fold([started(), *[check] * n]), 50, 6, True).plain

    assert "trusted" not in checked(1)
    assert "so far, 1 check\n" in checked(1)
    assert "so far, 2 checks" in checked(2)
    assert "trusted" in checked(3)


def test_experiments_that_were_not_scored_are_counted():
    """Journals in which scoring stopped at the switch."""
    check = j.Checked(step=1, name="x", predicted=1.0, measured=1.5, mape=0.3, epsilon=0.15, weights={})
    events: list[j.AnyEvent] = [started(), check, j.FidelitySwitched(step=1, to="measured", why="they err")]
    for i in range(1, 8):
        events += experiment(i, measured(configuration(mbs=i), 1.0), 1_700_000_000.0 + 20 * i)
    assert "7 runs since that check" in panels.trust(fold(events), 36, 4, True).plain


def test_a_log_is_shown_without_the_warnings_of_python():
    log = [
        "iteration 1/ 5 | loss 9.8",
        "/usr/lib/python3/torch/nn/modules/x.py:1193: UserWarning: The operator is deprecated",
        "  warnings.warn(",
        "[rank0]:[W1123 01:02:03.4 ProcessGroupGloo.cpp:12] Warning: no interface",
        "iteration 2/ 5 | loss 9.7",
    ]
    assert telling(log) == [log[0], log[-1]]


@given(st.text("abc de_f;, ", max_size=80), st.integers(4, 40))
def test_what_is_cut_ends_with_a_word(text, width):
    shown = fit(text, width)
    assert len(shown) <= width
    if shown != text:
        assert shown.endswith("…")
        rest = text[len(shown) - 1 :]
        words = any(c in " _,;:" for c in text[1:width])
        assert not words or rest[:1] in " _,;:"


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (6, "dp2…"),
        (26, "dp2_ar-full…"),  # not dp2_ar-full_ar…
        (30, "dp2_ar-full_ar_method-block…"),
        (44, "dp2_ar-full_ar_method-block_distopt…"),  # not …_distopt_overlap…
        (90, "dp2_ar-full_ar_method-block_distopt_overlap_grad_no-sp_ddp_bucket1"),
    ],
)
def test_the_name_of_a_configuration_is_cut_between_its_knobs(width, shown):
    knobs = ("dp", "ar", "ar_method", "distopt", "overlap_grad", "sp", "ddp_bucket")
    assert fit("dp2_ar-full_ar_method-block_distopt_overlap_grad_no-sp_ddp_bucket1", width, knobs) == shown


def test_a_reason_is_cut_between_its_clauses():
    why = "the simulators err by 22 % over the last 5 checks, more than ε = 15 %; most of it where ar is full: 50 %"
    assert fit_lines(why, 50, 2) == [
        "the simulators err by 22\u00a0% over the last 5 checks,",
        "more than ε = 15\u00a0%",
    ]
    assert fit_lines("short", 60, 2) == ["short"]


def test_values_stand_apart_from_long_names_and_below_each_other():
    """vLLM's knobs and some metrics are longer than Megatron-core's: 0.9 was written onto the name."""
    events: list[j.AnyEvent] = [started()]
    for i, share in enumerate((0.8, 0.9), start=1):
        knobs = Configuration({"gpu_memory_utilization": share, "max_num_batched_tokens": 2048 * i, "tp": i})
        found = msgspec.structs.replace(measured(knobs, 1.0 / i), environment={"transformer-engine": "2.11.0"})
        events += experiment(i, found, 1_700_000_000.0 + 20 * i)
    state = fold(events)
    run = state.runs[-1]
    told = describe(state, run, [], False).plain
    for name, value in {"gpu_memory_utilization": "0.9", "transformer-engine": "2.11.0"}.items():
        assert re.search(rf"^{name} +{value}$", told, re.MULTILINE)
    beside = comparing.side_by_side(state, [], 76).plain.splitlines()
    assert len({len(line) for line in beside[:4]}) == 1


def test_a_verdict_is_cut_into_lines_between_its_clauses_not_within_brackets():
    interval = "a is faster than b: +26.7% (95 % interval +21.5% to +32.2%; P(better) > 0.999; 6 rounds)"
    assert clauses(f"{interval}; peak or basin is not known") == [interval, "peak or basin is not known"]
    assert clauses("") == []


def test_orderings_are_cut_between_knobs_and_say_how_many_follow():
    names = ["pipeline_parallel", "tensor_parallel", "recompute_granularity", "expert_parallel"]
    ranked = j.TournamentRanked(round=0, orderings=[names], rewards=[0.5], kept=[0])
    line = panels.standings(fold([started(), ranked]), 60, True).plain.splitlines()[1]
    assert line.endswith("pipeline_parallel > tensor_parallel > 2 more")


def test_the_recommended_one_is_compared_first(tmp_path):
    """Single runs of others were faster than its rounds, and only they were shown."""
    state = fold(ended())
    assert state.confirmed
    slowest = max((r for r in state.runs if r.measurement and "step_time_s" in r.measurement.metrics),
                  key=lambda r: r.measurement.metrics["step_time_s"] if r.measurement else 0.0)  # fmt: skip
    state.confirmed = msgspec.structs.replace(state.confirmed, winner=slowest.configuration)
    state.default = None
    heading = comparing.side_by_side(state, [], 60).plain.splitlines()[0]
    assert heading.split()[0] == "best"


@pytest.mark.parametrize("screen", SCREENS)
def test_help_explains_each_panel_of_a_screen_in_one_line(screen):
    """It was one paragraph, which named few of them."""
    module, _, name = pane.CLASSES[screen].partition(":")
    module = import_module(module)
    explained = getattr(module, name).help
    assert set(re.findall(r'Panel\("([^"]+)"', Path(module.__file__).read_text())) <= set(explained)
    assert max(map(len, explained)) + 1 + max(map(len, explained.values())) <= 112  # one line of 120 columns


def test_a_session_whose_rounds_the_wall_ended_says_so_and_how_they_go_on():
    """It was the budget of experiments, which had ended the search."""
    undecided = Confirmed(
        winner=configuration(), name="a", value=1.0, default_name="b", default_value=1.2, gain=1.2, low=0.9,
        high=1.5, pairs=2, verdict="undecided",
    )  # fmt: skip
    over = SessionEnded(reason="wall", experiments=9, engine_ms_mean=1.0, engine_ms_max=2.0)
    stands = standing(fold([started(), SearchEnded(reason="budget"), undecided, over]), False)
    assert stands.words == "ended: the wall-clock budget is spent"
    assert stands.advice.endswith("autoscout tune --resume gpt-1 --wall 2h")


def test_what_tells_configurations_apart_comes_first():
    """Twelve rows of the Runs screen began with what all of them had: "pp 2, dp 2, ep 1…"."""
    often = {("pp", 2): 9, ("mbs", 8): 2, ("distopt", False): 5}
    assert changes({"pp": 1, "mbs": 4, "distopt": True}, {"pp": 2, "mbs": 8, "distopt": False}, often) == (
        "mbs 8, −distopt, pp 2"
    )


def test_a_verdict_that_is_wider_than_its_panel_goes_on_below():
    """How long it would take to decide was cut off at 80 columns."""
    state = fold([*ended()[:-2], msgspec.structs.replace(ended()[-2], low=0.9, verdict="undecided", more=9)])
    assert " ".join(of_ended(state, 40).plain.splitlines()[:3]).startswith(verdict(state)[:100])
    assert all(len(line) <= 40 for line in of_ended(state, 40).plain.splitlines()[:3])


def test_many_changed_knobs_stand_in_columns():
    """Half of ten fitted a low Launch screen, and nothing showed that there were more."""
    state = fold(j.events(RECORDED / "tiny-moe-session.jsonl"))
    text = panels.changes(state, 76, 5, False).plain
    assert text.count("\n") == 5
    assert all(name in text for name in ("pp ", "overlap_grad ", "mbs ", "ar_layers "))
    assert "overlap_param" not in text  # it cannot be set without overlap_grad
    assert max(map(len, text.splitlines())) <= 76


def test_the_verdict_stands_before_the_value_and_is_whole_at_80_columns():
    state = fold(j.events(RECORDED / "tiny-moe-session.jsonl"))
    for width in (80, 120):
        line = panels.headline(state, standing(state, None), width, False).plain.splitlines()[1]
        assert line.startswith(" 58 % faster than the expert default, sure (95 %: 13 to 121 %)")
        assert len(line) <= width


def test_ranks_of_a_narrow_panel_keep_their_lines():
    state = fold(j.events(RECORDED / "tiny-moe-session.jsonl"))
    assert "s/iter  alone ms" in describe(state, state.runs[-1], [], False, 44).plain
    ranks = describe(state, state.runs[-1], [], False, 44).plain.split("\nranks\n")[1].splitlines()[1:6]
    assert max(map(len, ranks)) <= 44
