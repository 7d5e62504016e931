"""Orders to a running session: they take effect, are in the journal, and survive a resume."""

import os
import statistics
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from landscape import step_time
from test_session import replay_job

import autoscout
from autoscout.targets.jobs import load_job
from autoscout.tuning import session
from autoscout.tuning.loop import Interrupted, Stop
from kb import journal as journals
from kb import store
from kb.journal import (
    Checked,
    Confirmed,
    Decided,
    ExperimentEnded,
    SearchEnded,
    SessionEnded,
    Simulated,
    Steered,
    Waiting,
)
from kb.order_words import MEANING
from kb.orders import give, parsed
from kb.records import AutoscoutError

OPTIONS = session.SessionOptions(fidelity="profile")


def ordered(tmp_path: Path, *orders: str, profiles: int = 14) -> list[journals.AnyEvent]:
    """The events of a session that finds these orders when it starts."""
    job = load_job(replay_job(tmp_path, profiles=profiles))
    kb = tmp_path / "kb.duckdb"
    folder = store.sessions_folder(kb) / "s"
    folder.mkdir(parents=True)
    for order in orders:
        what, *words = order.split()
        give(folder, parsed(what, words, "test"))
    session.tune(job, kb, OPTIONS, lambda e: None, lambda t: None, Stop(), "s")
    return journals.events(folder / "journal.jsonl")


def searched(events: list[journals.AnyEvent]) -> list[ExperimentEnded]:
    return [e for e in events if isinstance(e, ExperimentEnded) and e.purpose == "search"]


def test_the_budget_changes(tmp_path):
    assert len(searched(ordered(tmp_path, "budget 5"))) == 5


def test_a_configuration_is_tried_next(tmp_path):
    first = searched(ordered(tmp_path, "try tp=2 sp=true mbs=4"))[0].measurement.configuration.knobs
    assert (first["tp"], first["sp"], first["mbs"]) == (2, True, 4)


def test_pinned_and_excluded_values(tmp_path):
    events = ordered(tmp_path, "pin tp=2", "exclude mbs=1")
    knobs = [e.measurement.configuration.knobs for e in searched(events)]
    assert len(knobs) == 14
    assert all(k["tp"] == 2 and k["mbs"] != 1 for k in knobs)
    verdict = next(e for e in events if isinstance(e, Confirmed))
    assert verdict.winner.knobs["tp"] == 2


def test_stopping_still_ends_on_a_result(tmp_path):
    events = ordered(tmp_path, "try tp=2", "stop")
    assert next(e for e in events if isinstance(e, SearchEnded)).reason == "stopped"
    assert any(isinstance(e, Confirmed) for e in events)


def test_stopped_before_anything_was_measured_it_did_not_fail(tmp_path):
    with pytest.raises(AutoscoutError, match="ended before anything was measured"):
        ordered(tmp_path, "stop")
    ended = journals.events(tmp_path / "sessions" / "s" / "journal.jsonl")[-1]
    assert isinstance(ended, SessionEnded)
    assert ended.reason == "stopped"


@pytest.mark.parametrize(
    ("order", "said"),
    [
        ("try tp=3", "attention heads do not split over tp 3"),
        ("pin tp=7", "in this job tp is one of"),
        ("exclude nonsense=1", "nonsense"),
    ],
)
def test_an_order_that_cannot_be_obeyed_is_refused_and_the_session_goes_on(tmp_path, order, said):
    events = ordered(tmp_path, order)
    steered = next(e for e in events if isinstance(e, Steered))
    assert said in steered.refused
    assert len(searched(events)) == 14


def test_garbage_in_the_file_is_refused(tmp_path):
    folder = tmp_path / "sessions" / "s"
    folder.mkdir(parents=True)
    (folder / "orders.jsonl").write_text(
        '{"what": "explode"}\nnot json\n{"what": "budget", "values": {"profiles": 3}}\n'
    )
    job = load_job(replay_job(tmp_path))
    session.tune(job, tmp_path / "kb.duckdb", OPTIONS, lambda e: None, lambda t: None, Stop(), "s")
    events = journals.events(folder / "journal.jsonl")
    assert [bool(e.refused) for e in events if isinstance(e, Steered)] == [True, True, False]
    assert len(searched(events)) == 3


def test_a_resumed_session_obeys_what_it_obeyed_before(tmp_path):
    job = load_job(replay_job(tmp_path))
    kb, stop = tmp_path / "kb.duckdb", Stop()
    folder = store.sessions_folder(kb) / "s"
    folder.mkdir(parents=True)
    give(folder, parsed("exclude", ["mbs=1"], "test"))
    count = 0

    def see(event: journals.Event) -> None:
        nonlocal count
        count += isinstance(event, ExperimentEnded)
        if count == 5:
            give(folder, parsed("budget", ["9"], "test"))
            stop.ask()

    with pytest.raises(Interrupted):
        session.tune(job, kb, OPTIONS, see, lambda t: None, stop, "s")
    session.resume("s", kb, lambda e: None, lambda t: None, Stop())
    found = searched(journals.events(folder / "journal.jsonl"))
    assert len(found) == 9
    assert all(e.measurement.configuration.knobs["mbs"] != 1 for e in found)


def test_a_paused_session_waits_and_goes_on(tmp_path):
    job = load_job(replay_job(tmp_path))
    kb = tmp_path / "kb.duckdb"
    folder = store.sessions_folder(kb) / "s"
    folder.mkdir(parents=True)
    seen: list[str] = []

    def see(event: journals.Event) -> None:
        if isinstance(event, Steered):
            seen.append(event.what)
            if event.what == "pause":
                give(folder, parsed("go", [], "test"))
        elif seen == ["pause"]:
            seen.append("something happened while paused")

    give(folder, parsed("pause", [], "test"))
    session.tune(job, kb, OPTIONS, see, lambda t: None, Stop(), "s")
    assert seen == ["pause", "go"]


def test_a_pause_that_was_not_heard_before_the_engine_died_does_not_hold_the_resumed_session(tmp_path):
    job, kb = load_job(replay_job(tmp_path)), tmp_path / "kb.duckdb"
    folder = store.sessions_folder(kb) / "s"
    stop = Stop()

    def die(event: journals.Event) -> None:
        if isinstance(event, ExperimentEnded) and not stop.asked:
            stop.ask()

    with pytest.raises(Interrupted):
        session.tune(job, kb, OPTIONS, die, lambda t: None, stop, "s")
    give(folder, parsed("pause", [], "test"))
    session.resume("s", kb, lambda e: None, lambda t: None, Stop())
    events = journals.events(folder / "journal.jsonl")
    assert [e.refused for e in events if isinstance(e, Steered)] == [
        "this order was given before the session was resumed; give it again"
    ]
    assert any(isinstance(e, Confirmed) for e in events)


@pytest.mark.parametrize("words", [["budget"], ["budget", "-3"], ["try"], ["pin", "tp"], ["fly"]])
def test_orders_that_mean_nothing_are_not_given(tmp_path, words):
    with pytest.raises(AutoscoutError) as refused:
        give(tmp_path, parsed(words[0], words[1:], "test"))
    assert refused.value.exit_code == 2
    assert not list(tmp_path.iterdir())
    assert set(MEANING) >= {"pause", "go", "stop"}


def test_a_retry_runs_what_was_measured_already(tmp_path):
    again = searched(ordered(tmp_path, "try tp=2 sp=true mbs=4", "retry tp=2 sp=true mbs=4", "try tp=2 sp=true mbs=4"))
    ids = [e.measurement.configuration.id for e in again]
    assert ids[0] == ids[1]
    assert ids[2] != ids[0]  # what is known is not run again


@pytest.mark.parametrize("strategy", ["autoscout", "paper"])
def test_a_forced_validation_profiles_what_is_predicted_to_be_best_and_checks_by_it(tmp_path, strategy):
    job = load_job(replay_job(tmp_path, profiles=18 if strategy == "paper" else 8))
    kb, folder = tmp_path / "kb.duckdb", store.sessions_folder(tmp_path / "kb.duckdb") / "s"
    seen: list[journals.Event] = []
    if strategy == "paper":  # its linear simulators need rows from all over the space
        scattered = session.SessionOptions(strategy="random", fidelity="profile")
        session.tune(job, kb, scattered, lambda e: None, lambda t: None, Stop(), "before")
    folder.mkdir(parents=True)

    def see(event: journals.Event) -> None:
        seen.append(event)
        if isinstance(event, Simulated if strategy == "paper" else ExperimentEnded) and not any(
            isinstance(e, Steered) for e in seen
        ):
            give(folder, parsed("validate", [], "test"))

    options = session.SessionOptions(strategy=strategy, fidelity="adaptive")
    session.tune(job, kb, options, see, lambda t: None, Stop(), "s")
    events = journals.events(folder / "journal.jsonl")
    at = next(i for i, e in enumerate(events) if isinstance(e, Steered))
    obeyed = events[at]
    assert isinstance(obeyed, Steered)
    assert not obeyed.refused
    ended = next(e for e in events[at:] if isinstance(e, ExperimentEnded))
    checked = next(e for e in events[at:] if isinstance(e, Checked))
    assert checked.name == ended.measurement.name
    assert checked.members
    if strategy == "paper":
        predicted = {e.name: e.predicted for e in events[:at] if isinstance(e, Simulated)}
        measured = {e.measurement.name for e in events[:at] if isinstance(e, ExperimentEnded)}
        assert checked.name == min((n for n in predicted if n not in measured), key=predicted.__getitem__)


def test_without_simulators_a_validation_is_refused(tmp_path):
    steered = next(e for e in ordered(tmp_path, "validate") if isinstance(e, Steered))
    assert "no simulators" in steered.refused


def test_an_order_after_the_last_experiment_of_the_budget_ends_the_search(tmp_path):
    """It used to end the engine with an internal error."""
    job, folder = load_job(replay_job(tmp_path, profiles=3)), tmp_path / "sessions" / "s"
    folder.mkdir(parents=True)

    def see(event: journals.Event) -> None:
        if isinstance(event, ExperimentEnded) and event.number == 3:
            give(folder, parsed("retry", ["tp=2"], "test"))

    result = session.tune(job, tmp_path / "kb.duckdb", OPTIONS, see, lambda t: None, Stop(), "s")
    assert result.reason == "budget"


def test_a_failed_session_says_in_its_journal_why(tmp_path):
    job = load_job(replay_job(tmp_path, profiles=3))
    job = msgspec.structs.replace(
        job, objective=msgspec.structs.replace(job.objective, constraints=["peak_memory_gib <= 0.001"])
    )
    with pytest.raises(AutoscoutError):
        session.tune(job, tmp_path / "kb.duckdb", OPTIONS, lambda e: None, lambda t: None, Stop(), "s")
    over = journals.events(tmp_path / "sessions" / "s" / "journal.jsonl")[-1]
    assert isinstance(over, SessionEnded)
    assert (over.reason, over.exit_code) == ("failed", 3)
    assert "The nearest is" in over.problem


@pytest.mark.engine
def test_waiting_for_the_devices_is_an_event_that_names_who_has_them(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    hold = (
        "import time; from autoscout.running.cluster import slots\n"
        "with slots.machine(lambda: None, lambda: False, 'theirs'): print(flush=True); time.sleep(60)"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    holder = subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE, env=environment)
    assert holder.stdout is not None
    holder.stdout.readline()
    stop, seen = Stop(), []

    def see(event: journals.Event) -> None:
        if isinstance(event, Waiting):
            seen.append(event)
            stop.ask()

    try:
        with pytest.raises(Interrupted):
            session.tune(
                load_job("fixtures/jobs/tiny-gpt-cpu.toml"), tmp_path / "kb.duckdb", OPTIONS, see, lambda t: None, stop
            )
    finally:
        holder.kill()
        holder.wait()
    assert (seen[0].holder, seen[0].pid, seen[0].over) == ("theirs", holder.pid, False)


def test_a_search_that_is_narrowed_after_ten_experiments_goes_on_from_what_they_told(tmp_path):
    kb = tmp_path / "kb.duckdb"
    with autoscout.Study("fixtures/jobs/tiny-gpt-cpu.toml", kb=kb, profiles=16, seed=2) as study:
        for _ in range(10):
            (configuration,) = study.ask()
            study.tell(configuration, {"step_time_s": step_time(configuration)})
        folder = store.session_folder(kb, study.session)
        best_tp = study.best().configuration["tp"]
        give(folder, parsed("pin", [f"tp={best_tp}"], "test"))
        narrowed = []
        for _ in range(5):
            (configuration,) = study.ask()
            narrowed.append(step_time(configuration))
            study.tell(configuration, {"step_time_s": step_time(configuration)})
    events = journals.events(folder / "journal.jsonl")
    at = next(i for i, e in enumerate(events) if isinstance(e, Steered))
    decided = [e for e in events[at:] if isinstance(e, Decided)]
    assert decided
    assert all("far from all that was tried" not in e.why and e.phase != "opening" for e in decided)
    before = [e.measurement.metrics["step_time_s"] for e in events[:at] if isinstance(e, ExperimentEnded)]
    assert statistics.median(narrowed) < statistics.median(before)
    assert sorted(narrowed)[-2] < 2 * min(before), "one of the five may be far off"
