"""`best` where the final confirmation trains as the person does: what was searched with is another context."""

import contextlib
import json
import re
from pathlib import Path

import msgspec
import pytest
import verbs
from imported import bring_in
from test_session import events_of, replay_job, run

from autoscout.deploy.recommendation import best_of_job, best_of_session
from autoscout.machine.preflight import preflight
from autoscout.targets.jobs import JobSpace, load_job
from autoscout.tuning.best_predicted import ranking
from autoscout.tuning.predict import predict
from kb.journal import Confirmed, ExperimentEnded, Journal, SessionStarted
from kb.records import AutoscoutError, Cluster, Measurement, Node

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


def test_a_present_launch_that_a_recipe_beats_is_still_what_a_person_sees(tmp_path: Path) -> None:
    """The gain is quoted against the best recipe; who launches another one today has to be told what they gain."""
    job = load_job("fixtures/jobs/llama-3-8b-serve.toml")
    line = "vllm serve M --max-num-seqs 16"
    job = msgspec.structs.replace(job, launch=msgspec.structs.replace(job.launch, current=line))
    space = JobSpace.of_job(job)
    now, recipe = space.recipes[:2]
    path = tmp_path / "sessions" / "s" / "journal.jsonl"
    path.parent.mkdir(parents=True)
    with contextlib.closing(Journal(path)) as journal:
        journal.append(
            SessionStarted(
                session="s", job=job, context="c", strategy="autoscout", seed=0, fidelity="profile", warm_start="off",
                hyper={}, environment={}, kb_mark=0, default=now, recipes=[recipe], orderings=[],
            )
        )  # fmt: skip
        for number, (one, tpot) in enumerate([(now, 25.0), (recipe, 10.0)]):
            metrics = {job.objective.metric: tpot}
            told = Measurement(configuration=one, name=space.name(one), context="c", status="ok", metrics=metrics)
            journal.append(ExperimentEnded(number=number, purpose="search", measurement=told), sync=False)
    found = best_of_session(tmp_path / "kb.duckdb", "s")
    assert (found.reference, found.changes) == ("the best expert recipe", [])
    assert found.present is not None
    assert (found.present.ratio, found.present.measured.value, found.present.in_turns) == (2.5, 25.0, False)
    assert "max_num_seqs" in {change.knob for change in found.present.changes}
    name = space.name(recipe)
    rounds = Confirmed(
        winner=recipe, name=name, value=10.0, default_name=name, default_value=10.0, gain=1.0, low=None, high=None,
        pairs=2, today_name=space.name(now), over_today=2.4,
    )  # fmt: skip
    with contextlib.closing(Journal(path)) as journal:
        journal.append(rounds)
    found = best_of_session(tmp_path / "kb.duckdb", "s")
    assert found.present is not None
    assert (found.present.ratio, found.present.in_turns) == (2.4, True), "as the rounds' own sentence says it"


def test_what_other_devices_measured_is_not_of_this_job(tmp_path: Path) -> None:
    """A job is its workload: what A100s had measured was the best of the same on H100s, and corrected what is
    predicted there."""
    kb, table = tmp_path / "kb.duckdb", tmp_path / "a100.csv"
    job = msgspec.structs.replace(load_job("fixtures/jobs/llama-3.2-3b.toml"), cluster=Cluster(nodes=[Node("a100", 8)]))
    knobs = JobSpace.of_job(job).reference.knobs
    rows = [{**knobs, "mbs": mbs, "step_time_s": 50.0 / mbs, "peak_memory_gib": 30.0} for mbs in (1, 2, 4)]
    table.write_text("\n".join([",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]) + "\n")
    assert bring_in(kb, table, job, [], [], []).valid == 3
    assert best_of_job(kb, job).best.value == 12.5
    assert predict(JobSpace.of_job(job), {}, kb).rows == 3
    other = msgspec.structs.replace(job, cluster=Cluster(nodes=[Node("h100", 8)]))
    space = JobSpace.of_job(other)
    with pytest.raises(
        AutoscoutError, match=r"3 measurements of llama-3.2-3b are known, but none applies to this cluster"
    ):
        best_of_job(kb, other)
    cold = predict(space, {}, None)
    found = predict(space, {}, kb)
    assert (found.rows, found.other_rows, found.value) == (0, 3, cold.value)
    job_file = tmp_path / "h100.toml"
    text = Path("fixtures/jobs/llama-3.2-3b.toml").read_text()
    job_file.write_text(re.sub(r"^nodes = .*$", 'nodes = [{ device = "h100", count = 8 }]', text, flags=re.MULTILINE))
    said = verbs.run("predict", str(job_file), "--kb", str(kb)).stdout
    assert "no measured row of this job (3 with different versions or devices are excluded)" in said
    assert ranking(space, other, kb, 2).rows == 0
    assert {f.subject: f.ok for f in preflight(other, kb)}["noise"] is None
