from pathlib import Path

import msgspec
import pytest
from profile_bench import configuration, tiny_job

from autoscout.running.interpreter import context_of
from autoscout.targets.jobs import profiler_of
from kb.journal import ExperimentEnded, Journal, SessionStarted
from kb.records import AutoscoutError, Job, Measurement

ENVIRONMENT = {"torch": "2.13.0", "device": "AMD EPYC", "launcher": "warm"}


def measurement(step: float, **knobs: int) -> Measurement:
    return Measurement(
        configuration=configuration(**knobs),
        name="recorded",
        context="recorded",
        status="ok",
        metrics={"step_time_s": step},
        cost_s=2.0,
    )


@pytest.fixture
def recorded(tmp_path: Path) -> Job:
    path = tmp_path / "journal.jsonl"
    job = tiny_job(launcher="replay", recorded=str(path))
    journal = Journal(path)
    journal.append(
        SessionStarted(
            session="s",
            job=tiny_job(),
            context="recorded",
            strategy="autoscout",
            seed=0,
            fidelity="profile",
            warm_start="",
            hyper={},
            environment=ENVIRONMENT,
            kb_mark=0,
            default=configuration(),
            orderings=[],
        )
    )
    for step, knobs in ((1.0, {}), (2.0, {}), (3.0, {"tp": 2})):
        journal.append(ExperimentEnded(number=1, purpose="search", measurement=measurement(step, **knobs)))
    journal.close()
    return job


def test_repeats_answer_in_order_and_then_again(recorded: Job, tmp_path: Path) -> None:
    profiler = profiler_of(recorded)
    session = Journal(tmp_path / "session" / "journal.jsonl")
    folder = tmp_path / "session" / "experiments" / "0001"
    answers = []
    for number in range(3):
        answers.append(profiler.run(configuration(), "mbs2", folder))
        session.append(ExperimentEnded(number=number, purpose="search", measurement=answers[-1]))
    assert [answer.metrics["step_time_s"] for answer in answers] == [1.0, 2.0, 1.0]
    assert {answer.name for answer in answers} == {"mbs2"}
    assert profiler.run(configuration(tp=2), "tp2", folder).metrics["step_time_s"] == 3.0


def test_the_recorded_environment_makes_equal_contexts(recorded: Job, tmp_path: Path) -> None:
    profiler = profiler_of(recorded)
    assert profiler.environment() == ENVIRONMENT
    assert profiler.run(configuration(), "mbs2", tmp_path).context == context_of(tiny_job(), ENVIRONMENT)


def test_what_was_not_recorded_is_an_error(recorded: Job, tmp_path: Path) -> None:
    answer = profiler_of(recorded).run(configuration(tp=4), "tp4", tmp_path)
    assert answer.status == "error"
    assert "is recorded in" in answer.evidence


def test_bad_recordings_are_refused(recorded: Job, tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    for path, said in (("", "name the journal"), (str(empty), "contains no session"), ("/none", "no such")):
        job = msgspec.structs.replace(recorded, launch=msgspec.structs.replace(recorded.launch, recorded=path))
        with pytest.raises(AutoscoutError, match=said):
            profiler_of(job)
    other = tiny_job(launcher="replay", recorded=recorded.launch.recorded, hidden=128)
    with pytest.raises(AutoscoutError, match="a different model"):
        profiler_of(other)
