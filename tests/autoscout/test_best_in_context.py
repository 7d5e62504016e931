"""`best` where the final confirmation trains as the person does: what was searched with is another context."""

import json
from pathlib import Path

from test_session import events_of, replay_job, run

from autoscout.deploy.recommendation import best_of_session
from kb.journal import ExperimentEnded

SLOWER = 3.0  # as the person trains


def as_the_person_trains(journal: Path) -> None:
    """The confirmation's runs take longer and are of a context of their own."""
    lines = []
    for line in journal.read_text().splitlines():
        event = json.loads(line)
        if event["type"] == "experiment_ended" and event["purpose"] == "confirm":
            event["measurement"]["context"] = "trained"
            event["measurement"]["metrics"]["step_time_s"] *= SLOWER
        if event["type"] == "confirmed":
            event["value"] *= SLOWER
            event["default_value"] *= SLOWER
        lines.append(json.dumps(event))
    journal.write_text("\n".join(lines) + "\n")


def test_runs_of_the_search_are_no_runs_of_the_confirmation(tmp_path: Path) -> None:
    kb = tmp_path / "kb.duckdb"
    session = run(replay_job(tmp_path), kb).session
    before = best_of_session(kb, session)
    (journal,) = tmp_path.rglob(f"{session}/journal.jsonl")
    as_the_person_trains(journal)
    confirmed = [e.measurement for e in events_of(kb, session, ExperimentEnded) if e.purpose == "confirm"]
    found = best_of_session(kb, session)
    assert found.context == "trained"
    for said in (found.best, found.default, found.worst):
        assert said is not None
        own = [m.metrics["step_time_s"] for m in confirmed if m.configuration.knobs == said.configuration]
        assert (said.measurements, said.lowest, said.highest) == (len(own), min(own), max(own)), said.name
    assert found.best.configuration == before.best.configuration
    assert "measured configurations" in found.evidence
    assert found.evidence.split(" measured")[0] == before.evidence.split(" measured")[0], "all that was tried counts"
