"""Study: a session that a script drives. Each is held against what `tune` does and what its journal says."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
from cases import few
from landscape import job_of, step_time
from test_session import replay_job

import autoscout
from autoscout.deploy.export import of_session
from autoscout.deploy.recommendation import best_of_job, best_of_session
from autoscout.search.strategy import kind_of, names
from autoscout.studies.rivals.random import STRATEGY as RANDOM
from autoscout.targets.jobs import load_job
from autoscout.tuning import session
from autoscout.tuning.loop import Stop
from kb import journal as journals
from kb import query, store
from kb.journal import ExperimentEnded, SessionEnded
from kb.records import AutoscoutError, Configuration

TABLE = {"threads": [1, 2, 4, 8] * 3, "block": [16] * 4 + [32] * 4 + [64] * 4, "time_s": [*range(12, 0, -1)]}


def over_a_table(tmp_path: Path, **more) -> autoscout.Study:
    return autoscout.Study.from_table(TABLE, metric="time_s", kb=tmp_path / "kb.duckdb", **more)


def true_time(configuration: Configuration) -> float:
    knobs = configuration.knobs
    rows = zip(TABLE["threads"], TABLE["block"], TABLE["time_s"], strict=True)
    return next(float(t) for threads, block, t in rows if (threads, block) == (knobs["threads"], knobs["block"]))


def drive(study: autoscout.Study, count: int = 1) -> list[Configuration]:
    """Until it wants no more; what it asked, in order."""
    asked = []
    while study.wants_more():
        for configuration in study.ask(count):
            asked.append(configuration)
            study.tell(configuration, {"time_s": true_time(configuration)})
    return asked


def events_of(tmp_path, study: autoscout.Study) -> list[journals.AnyEvent]:
    return journals.events(store.session_folder(tmp_path / "kb.duckdb", study.session) / "journal.jsonl")


@pytest.mark.parametrize("count", [1, 3])
def test_it_finds_the_best_row_and_what_it_learned_is_in_the_knowledge_base(tmp_path, count):
    study = over_a_table(tmp_path, profiles=12)
    drive(study, count)
    best = study.best()
    assert best.configuration == {"threads": 8, "block": 64}
    assert best.confirmed is not None
    rows = query.run(tmp_path / "kb.duckdb", "SELECT count(*) FROM measurement WHERE status = 'ok'").rows
    assert rows[0][0] == sum(isinstance(e, ExperimentEnded) for e in events_of(tmp_path, study))
    assert isinstance(events_of(tmp_path, study)[-1], SessionEnded)


def test_it_decides_as_tune_does_on_the_same_answers(tmp_path):
    """One engine, two ways to drive it: told what the recorded table answers, the study asks what `tune` ran."""
    job = load_job(replay_job(tmp_path, profiles=12))
    options = session.SessionOptions(seed=3, warm_start="off")
    ran: list[ExperimentEnded] = []
    session.tune(
        job,
        tmp_path / "tuned.duckdb",
        options,
        lambda e: ran.append(e) if isinstance(e, ExperimentEnded) else None,
        print,
        Stop(),
    )
    study = autoscout.Study(job, kb=tmp_path / "studied.duckdb", seed=3, warm_start="off")
    answers = [event.measurement for event in ran]
    for answer in answers:
        assert study.wants_more()
        (asked,) = study.ask()
        assert asked.knobs == answer.configuration.knobs
        study.tell(
            asked,
            answer.metrics,
            failed="" if answer.status == "ok" else answer.status,
            evidence=answer.evidence,
            losses=answer.losses,
            grad_norms=answer.grad_norms,
            cost_s=answer.cost_s,
        )
    assert not study.wants_more()


def test_the_best_of_a_study_without_losses_is_that_of_its_job(tmp_path):
    """`best JOB` took runs whose losses nobody told for wrong ones, of which `best SESSION` had a winner."""
    job = load_job(replay_job(tmp_path, profiles=4))
    study = autoscout.Study(job, kb=tmp_path / "kb.duckdb", warm_start="off")
    while study.wants_more():
        (asked,) = study.ask()
        study.tell(asked, {"step_time_s": 1.0 + 0.1 * len(asked.knobs)})
    of_job = best_of_job(tmp_path / "kb.duckdb", job)
    assert of_job.best == best_of_session(tmp_path / "kb.duckdb", study.session).best


def test_a_failure_is_learned_as_a_failure(tmp_path):
    study = over_a_table(tmp_path, profiles=12)
    while study.wants_more():
        (configuration,) = study.ask()
        if configuration.knobs["threads"] == 8:
            study.tell(configuration, failed="oom", evidence="it needs 90 GiB")
        else:
            study.tell(configuration, {"time_s": true_time(configuration)})
    assert study.best().configuration == {"threads": 4, "block": 64}
    rows = query.run(tmp_path / "kb.duckdb", "SELECT DISTINCT status FROM measurement ORDER BY 1").rows
    assert [row[0] for row in rows] == ["ok", "oom"]


def test_the_search_ends_when_as_many_failed_as_may(tmp_path):
    """Whose allocation is short can say a number: a share alone is kept only where it can be."""
    job = load_job(replay_job(tmp_path))
    study = autoscout.Study(
        msgspec.structs.replace(job, budget=msgspec.structs.replace(job.budget, failures=3)),
        kb=tmp_path / "kb.duckdb",
    )
    failed, asked = 0, 0
    while study.wants_more():
        (configuration,) = study.ask()
        asked += 1
        if asked > 1 and failed < 3:
            failed += 1
            study.tell(configuration, failed="oom", evidence="out of memory")
        else:
            study.tell(configuration, {"step_time_s": 1.0})
    ended = [e.reason for e in events_of(tmp_path, study) if isinstance(e, journals.SearchEnded)]
    searched = [e for e in events_of(tmp_path, study) if isinstance(e, ExperimentEnded) and e.purpose == "search"]
    assert (ended, failed, len(searched)) == (["failures"], 3, 4)


@pytest.mark.parametrize(
    ("tell", "said"),
    [
        (lambda s, c: s.tell({"threads": 3, "block": 16}, {"time_s": 1.0}), "was not returned by ask"),
        (lambda s, c: s.tell({**c.knobs, "colour": "red"}, {"time_s": 1.0}), "was not returned by ask"),
        (
            lambda s, c: s.tell(c, {"tine_s": 1.0}),
            "the result has no 'time_s', which the objective needs; it has tine_s",
        ),
        (lambda s, c: s.tell(c), "the result has no 'time_s', which the objective needs; it has no metrics"),
        (lambda s, c: s.tell(c, failed="out of memory"), "must be one of oom"),
        (lambda s, c: s.tell(c, {"time_s": float("nan")}), "time_s = nan"),
    ],
)
def test_what_cannot_be_meant_is_refused_and_nothing_is_lost(tmp_path, tell, said):
    study = over_a_table(tmp_path)
    (configuration,) = study.ask()
    with pytest.raises(AutoscoutError, match=said) as error:
        tell(study, configuration)
    assert error.value.exit_code == 2
    study.tell(configuration, {"time_s": 5.0})  # it is still awaited
    with pytest.raises(AutoscoutError, match="already has a result"):
        study.tell(configuration, {"time_s": 5.0})
    study.close()


def test_a_metric_that_the_job_does_not_know_is_refused(tmp_path):
    with autoscout.Study(job_of("tiny-gpt-cpu"), kb=tmp_path / "kb.duckdb") as study:
        (configuration,) = study.ask()
        with pytest.raises(AutoscoutError, match=r"step_tine_s.*step_time_s"):
            study.tell(configuration, {"step_time_s": 1.0, "step_tine_s": 1.0})


def test_nothing_ran_has_no_best(tmp_path):
    with over_a_table(tmp_path) as study, pytest.raises(AutoscoutError, match="has run correctly yet") as error:
        study.best()
    assert error.value.exit_code == 3


def test_it_goes_on_after_a_kill_where_its_journal_ends(tmp_path):
    """The first dies without a word; what was told is not asked again, and the rest is what it would have asked."""
    whole = drive(over_a_table(tmp_path / "whole", profiles=10, seed=5))
    broken = over_a_table(tmp_path, profiles=10, seed=5)
    for _ in range(4):
        (configuration,) = broken.ask()
        broken.tell(configuration, {"time_s": true_time(configuration)})
    broken._given.close()  # what the system does with a process that ends
    again = over_a_table(tmp_path, profiles=10, seed=5, resume=broken.session)
    assert [c.knobs for c in drive(again)] == [c.knobs for c in whole[4:]]


def test_its_session_cannot_be_driven_twice_at_once(tmp_path):
    with over_a_table(tmp_path) as study, pytest.raises(AutoscoutError, match="running in another process"):
        over_a_table(tmp_path, resume=study.session)


def test_a_strategy_of_ones_own_and_a_second_one_of_its_name(tmp_path):
    mine = autoscout.Strategy(name="mine-in-a-test", make=RANDOM.make)
    with over_a_table(tmp_path, strategy=mine) as study:
        assert study.ask()
    with pytest.raises(AutoscoutError, match="a strategy named 'mine-in-a-test' exists already"):
        over_a_table(tmp_path, strategy=autoscout.Strategy(name="mine-in-a-test", make=RANDOM.make))


def test_simulators_of_ones_own_lead_the_search(tmp_path):
    """A simulator that knows the truth: the best of 12 rows is among the first few."""
    calls: list[dict] = []

    def oracle(knobs) -> float:
        calls.append(knobs)
        return true_time(Configuration(knobs))

    study = over_a_table(tmp_path, simulators={"oracle": oracle}, profiles=4)
    asked = drive(study)
    assert {"threads": 8, "block": 64} in [c.knobs for c in asked[:4]]
    assert len(calls) <= 12  # each configuration once


def test_constraints_hold(tmp_path):
    study = over_a_table(tmp_path, constraints=["watt <= 100"], profiles=12)
    while study.wants_more():
        for configuration in study.ask():
            watt = 200.0 if configuration.knobs["block"] == 64 else 90.0
            study.tell(configuration, {"time_s": true_time(configuration), "watt": watt})
    assert study.best().configuration == {"threads": 8, "block": 32}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda p: autoscout.Study(autoscout.Space.from_table({"a": [1, 2]}), kb=p),
            "needs either minimize= or maximize=",
        ),
        (
            lambda p: autoscout.Study(job_of("tiny-gpt-cpu"), minimize="x", kb=p),
            "the job file already has an objective",
        ),
        (lambda p: autoscout.Study.from_table(TABLE, metric="tine_s", kb=p), "no column 'tine_s'.*time_s"),
        (lambda p: over_a_table(p, strategy="autoscut"), "autoscut.*autoscout"),
        (lambda p: over_a_table(p, resume="nobody"), "nobody"),
    ],
)
def test_a_study_that_cannot_be_begun_says_why(tmp_path, make, said):
    with pytest.raises(AutoscoutError, match=said):
        make(tmp_path / "kb.duckdb")


def test_a_large_job_told_by_its_model(tmp_path):
    """A job of 2,840 configurations, driven in batches of two by an analytic landscape."""
    study = autoscout.Study(job_of("tiny-gpt-cpu"), kb=tmp_path / "kb.duckdb", profiles=15, seed=1)
    rng = np.random.default_rng(0)
    times = []
    while study.wants_more():
        for configuration in study.ask(2):
            seconds = step_time(configuration) * float(np.exp(rng.normal(0, 0.01)))
            times.append(seconds)
            study.tell(configuration, {"step_time_s": seconds})
    assert study.best().value <= times[0]


def test_its_result_is_read_by_best_as_that_of_any_session(tmp_path):
    """Its space is known to nobody but the script: knobs and values are those of the journal."""
    study = over_a_table(tmp_path, profiles=12)
    drive(study)
    found = best_of_session(tmp_path / "kb.duckdb", study.session)
    assert found.best.configuration == study.best().configuration == {"threads": 8, "block": 64}
    default = store.session_started(tmp_path / "kb.duckdb", study.session).default.knobs
    assert {c.knob: (c.default, c.best) for c in found.changes} == {
        name: (default[name], value) for name, value in found.best.configuration.items() if default[name] != value
    }


@pytest.mark.parametrize("assignments", [[], ["threads=4"]])
def test_what_has_no_launch_is_not_exported_and_that_is_said(tmp_path, assignments):
    study = over_a_table(tmp_path, profiles=4)
    drive(study)
    with pytest.raises(AutoscoutError, match="no launch to export: your own script measured it") as error:
        of_session(tmp_path / "kb.duckdb", study.session, assignments)
    assert error.value.exit_code == 2


@pytest.mark.parametrize("name", few([name for name in names() if not kind_of(name).missing], 5))
def test_every_strategy_can_be_given(tmp_path, name):
    study = over_a_table(tmp_path, strategy=name, profiles=4)
    asked = drive(study)
    best = study.best().configuration
    assert best in [configuration.knobs for configuration in asked]


def test_what_no_simulator_can_predict_leaves_the_journal_whole(tmp_path):
    job = load_job("fixtures/jobs/llama-3-8b-serve.toml")
    space = msgspec.structs.replace(job.space, fix={**job.space.fix, "spec": "ngram"})
    job = msgspec.structs.replace(job, space=space, launch=msgspec.structs.replace(job.launch, repeats=1))
    study = autoscout.Study(job, kb=tmp_path / "kb.duckdb", profiles=4)
    while study.wants_more():
        for i, configuration in enumerate(study.ask()):
            study.tell(configuration, {job.objective.metric: 100.0 + i})
    assert isinstance(events_of(tmp_path, study)[-1], SessionEnded)
