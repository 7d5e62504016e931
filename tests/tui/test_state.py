"""The fold of a journal into a state: what operators read from the screens, without any screen."""

import re
from pathlib import Path

import msgspec
import pytest
import verbs
from hypothesis import given
from hypothesis import strategies as st
from tui_samples import JOB, START, configuration, ended, experiment, measured, running, session, started

from kb import journal as journals
from kb.journal import ExperimentEnded, SessionResumed
from tui.draw import panels
from tui.printing.plain import Progress
from tui.session.eta import remaining
from tui.session.state import best_so_far, fold
from tui.session.tree import grow
from tui.text import clock

RECORDED = Path(__file__).parents[2] / "fixtures/recorded/tiny-gpt-session.jsonl"


def test_a_running_session():
    state = fold(running())
    assert (state.session, state.phase, state.strategy) == ("gpt-1", "search", "autoscout")
    assert (state.searched, state.known, state.predicted) == (9, 1, 3)
    assert [run.name for run in state.running.values()] == ["pp4_tp2_arnone_mbs2"]
    assert state.failures == {"oom": 1, "error": 1, "limit": 1}
    assert state.default_value == 1.0
    assert state.gain == pytest.approx(1 / 0.72)
    assert state.fidelity == "measured"
    assert "22 %" in state.fidelity_why
    assert state.arms["SPARSE"].pulls == 7
    assert state.arms["SPARSE"].ucb[-1] == 0.2
    assert state.grid is not None
    assert state.grid.costs == [0.8, 0.75, 0.78, 0.72]


def test_a_run_that_breaks_a_constraint_is_no_best_and_says_why():
    run = next(r for r in fold(session()).runs if r.status == "limit")
    assert run.value is None
    assert "peak_memory_gib <= 78" in run.note


def test_the_default_is_the_best_while_all_that_others_measured_is_slower():
    """A second session measures it anew and answers the rest from the first: "best 0.69× default"."""
    default, other = configuration(tp=2), configuration(tp=4)
    events = [started(), *experiment(1, measured(default, 1.0), START, "anchor")]
    known = journals.Answered(measurement=measured(other, 1.4), measured_by="gpt-0", at=START + 11)
    worse = journals.BestFound(configuration=other, name="tp4", value=1.4, experiments=0, at=START + 12)
    state = fold([*events, known, worse])
    assert (state.best_value, state.gain) == (1.0, 1.0)
    better = journals.BestFound(configuration=other, name="tp4", value=0.8, experiments=1, at=START + 13)
    state = fold([*events, known, worse, better])
    assert (state.best_value, state.gain) == (0.8, 1.25)


def test_what_a_machine_did_is_no_failure_and_is_shown():
    spoiled = measured(configuration(pp=4), 0.0, "infrastructure", evidence="gpu-07 fell off the bus")
    before = fold(running())
    state = fold([*running(), *experiment(10, spoiled, START + 500)])
    assert (state.failures, state.incidents) == (before.failures, 1)
    assert state.curve == before.curve
    assert state.runs[-1].status == "infrastructure"
    shown = panels.failures(state, 100, 5, True).plain
    assert "^ infrastructure 1" in shown
    assert "gpu-07 fell off the bus" in shown
    assert "infrastructure 1" in panels.curve(state, 120, 10, True).plain


def test_what_a_shadow_foretold_is_a_failure_but_no_experiment():
    foretold = measured(configuration(pp=4), 0.0, "oom", evidence="its shadow does not fit")
    foretold = msgspec.structs.replace(foretold, fidelity="shadow")
    before = fold(running())
    state = fold([*running(), *experiment(10, foretold, START + 500)])
    assert state.searched == before.searched
    assert state.failures["oom"] == before.failures.get("oom", 0) + 1


def test_the_verdict_replaces_the_single_run():
    state = fold(ended())
    assert (state.best_value, state.gain, state.phase) == (0.73, 1.356, "ended")
    assert not state.running


def test_predictions_stand_beside_what_was_measured():
    run = next(r for r in fold(session()).runs if r.predicted is not None)
    assert run.value is not None
    assert run.predicted == pytest.approx(1.05 * run.value)


def test_best_so_far_counts_measured_points_only():
    steps = best_so_far(fold(session()))
    assert [value for _, value in steps] == [1.0, 0.9, 0.8, 0.75, 0.72]
    assert [at for at, _ in steps] == sorted(at for at, _ in steps)


def test_the_rest_of_the_budget_is_judged_by_the_last_experiments():
    left = remaining(fold(running()))
    assert left is not None
    assert left.search_s == pytest.approx((JOB.budget.profiles - 9) * (10.0 + 5.0), rel=0.05)  # 10 s each, 5 s between
    # Three finalists and, twice, the default in two rounds; four further ones on a machine that may be noisy.
    assert left.confirm_s == pytest.approx((2 * 5 + 4 * 4 / 4) * 15.0, rel=0.05)
    assert left.low <= left.total <= left.high
    assert left.high >= left.search_s + (2 * 5 + 4 * 4) * 15.0 * 0.95
    assert remaining(fold(ended())) is None


def test_the_wall_clock_limit_ends_the_rounds_too():
    """Final rounds were counted on top of the limit, which they keep."""
    events = running()
    budget = msgspec.structs.replace(JOB.budget, wall="5m")
    events[0] = msgspec.structs.replace(started(), job=msgspec.structs.replace(JOB, budget=budget))
    state = fold(events)
    left = remaining(state)
    assert left is not None
    assert left.total == pytest.approx(300.0 - state.elapsed_s)
    assert left.confirm_s == pytest.approx(150.0, abs=75.0)  # half of the limit at most
    assert left.search_s > 0


def test_while_rounds_may_follow_there_is_time_left():
    """It said "about 00:00 to go" where the rounds that it knew of were over."""
    events = ended()[:-2]  # without the verdict and the end
    for i, c in enumerate([configuration(tp=2), configuration(tp=4)] * 4):
        events += experiment(40 + i, measured(c, 1.0), START + 220 + 10 * i, "confirm")
    ran = [i for i, e in enumerate(events) if isinstance(e, ExperimentEnded) and e.purpose == "confirm"]
    for i in ran:
        left = remaining(fold(events[: i + 1]))
        assert left is not None
        assert left.confirm_s > 0


def test_lines_of_a_recording_end_with_its_verdict():
    """`watch --plain` said only that the session had ended."""
    printed = verbs.run("watch", "--plain", str(RECORDED.with_name("tiny-moe-session.jsonl"))).stdout
    last = [line for line in printed.splitlines() if line.startswith(("tiny-moe-cpu: ", "changed: "))]
    assert re.fullmatch(r"tiny-moe-cpu: \d+ % faster than the expert default, sure \(95 %: .* %\)", last[0])
    assert "mbs 8" in last[1]


def test_the_time_left_is_believable_and_gets_better():
    """On the recorded session, against what it really took, which its interval used to leave out."""
    events = journals.events(RECORDED)
    end, whole = events[-1].at, events[-1].at - events[0].at
    errors = []
    for i, event in enumerate(events):
        if isinstance(event, ExperimentEnded) and event.number % 8 == 0:
            left = remaining(fold(events[: i + 1]))
            assert left is not None
            errors.append(abs(left.total - (end - event.at)) / whole)
            assert left.low <= end - event.at <= left.high
    assert max(errors) < 0.3
    assert errors[-1] < errors[0]
    assert errors[-1] < 0.1


def test_what_ran_when_the_session_was_killed_is_not_running_any_more():
    state = fold([*running(), SessionResumed(pid=1, at=1_700_000_200.0)])
    assert not state.running
    assert state.runs[-1].status == "killed"


def test_the_tree_follows_the_winning_ordering_and_knows_where_the_best_is():
    root = grow(fold(session()))
    assert root.visits == 10
    assert root.children[0].path[0].startswith("ar ")
    assert sum(child.visits for child in root.children) == root.visits
    node = root
    while node.children:
        node = next(child for child in node.children if child.holds_best)
    assert node.best == 0.72


@given(st.integers(0, len(ended())))
def test_folding_in_two_parts_is_folding_at_once(cut: int):
    events = ended()
    state = fold(events[:cut])
    for event in events[cut:]:
        state.apply(event)
    assert state == fold(events)


def test_lines_of_a_recording_tell_the_time_of_the_session():
    lines: list[str] = []
    events = journals.events(RECORDED)
    started = next(e for e in events if isinstance(e, journals.SessionStarted))
    progress = Progress(started.job, started.session, lines.append)
    for event in events:
        progress.see(event)
    assert lines[0].startswith("00:00")
    assert lines[-1].startswith("02:")


def test_lines_name_the_gain_and_the_changes_and_leave_the_search_s_own_steps_out():
    lines: dict[bool, list[str]] = {False: [], True: []}
    events = journals.events(RECORDED.with_name("tiny-llama-session.jsonl"))
    started = next(e for e in events if isinstance(e, journals.SessionStarted))
    for verbose, written in lines.items():
        progress = Progress(started.job, started.session, written.append, verbose)
        for event in events:
            progress.see(event)
    assert "  the reference" in lines[False][1]
    assert any("% better, the best so far: " in line for line in lines[False])
    ended = [e for e in events if isinstance(e, journals.ExperimentEnded) and e.measurement.status == "ok"]
    shown = [line for line in lines[False] if "  again " in line or "/30  " in line]
    assert len(shown) == sum(e.purpose in ("search", "check", "confirm") for e in ended)
    assert not any("tournament" in line or "simulators" in line for line in lines[False])
    assert any("tournament" in line for line in lines[True])


def test_a_terminal_shows_the_time_to_go_below_the_lines():
    lines: list[str] = []
    shown: list[str] = []
    events = journals.events(RECORDED)
    started = next(e for e in events if isinstance(e, journals.SessionStarted))
    progress = Progress(started.job, started.session, lines.append, show=shown.append)
    for event in events:
        progress.see(event)
    assert any("to go" in status for status in shown)
    assert any("finalists re-measured once; " in status for status in shown)  # it was "1 times"
    assert not any("to go" in line for line in lines)


def test_the_work_of_others_is_named_while_it_disturbs_once():
    """Only the verdict named it; the reference ran between 1.17 and 11 s."""
    lines: list[str] = []
    progress = Progress(JOB, "gpt-1", lines.append)
    progress.see(started())
    for number, share in enumerate((0.05, 0.6, 0.7), 1):
        run = msgspec.structs.replace(measured(configuration(mbs=number), 1.0), conditions={"foreign_cpu_share": share})
        for event in experiment(number, run, 1_700_000_000.0 + number):
            progress.see(event)
    assert [line.strip() for line in lines if "other processes" in line] == [
        "other processes took 60% of this machine's CPU time during this run"
    ]


def test_the_time_between_two_processes_of_a_session_is_not_its_own():
    """A session of 5 s that was continued after a quarter of an hour stood at 14:54 of its limit of 5 minutes."""
    events = ended()
    took = fold(events).elapsed_s
    later = SessionResumed(pid=1, at=events[-1].at + 900)
    state = fold([*events, later, msgspec.structs.replace(events[-1], at=later.at + 2)])
    assert state.elapsed_s == pytest.approx(took + 2)
    assert f"time {clock(took + 2)} of" in panels.budget(state, 44, 8, False).plain


@pytest.mark.parametrize("verdict", ["faster", "undecided"])
def test_the_lines_name_the_limit_that_ended_the_final_rounds(verdict):
    """The last line before an unproven verdict was that every configuration had been tried."""
    *events, confirmed, over = ended()
    lines: list[str] = []
    progress = Progress(JOB, "gpt-1", lines.append)
    events += [msgspec.structs.replace(confirmed, verdict=verdict), msgspec.structs.replace(over, reason="wall")]
    for event in events:
        progress.see(event)
    why = "the final rounds end: the wall-clock budget is spent"
    command = "autoscout tune --resume gpt-1 --wall 2h"
    assert lines[-1].endswith(f"{why}; continue them: {command}") is (verdict == "undecided")
