"""Orders to a running session: they take effect, are in the journal, and survive a resume."""

from pathlib import Path

import pytest
from test_session import replay_job

from autoscout import session
from autoscout.job import load_job
from autoscout.loop import Interrupted, Stop
from kb import journal as journals
from kb import store
from kb.journal import Confirmed, ExperimentEnded, SearchEnded, Steered
from kb.orders import MEANING, give, parsed
from kb.records import AutoscoutError

OPTIONS = session.Options(fidelity="profile")


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


@pytest.mark.parametrize(
    ("order", "said"),
    [("try tp=3", "tp 3 is not among"), ("pin tp=7", "in this job tp is one of"), ("exclude nonsense=1", "nonsense")],
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


@pytest.mark.parametrize("words", [["budget"], ["budget", "-3"], ["try"], ["pin", "tp"], ["fly"]])
def test_orders_that_mean_nothing_are_not_given(tmp_path, words):
    with pytest.raises(AutoscoutError) as refused:
        give(tmp_path, parsed(words[0], words[1:], "test"))
    assert refused.value.exit_code == 2
    assert not list(tmp_path.iterdir())
    assert set(MEANING) >= {"pause", "go", "stop"}
