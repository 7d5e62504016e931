"""A machine that gets slower while a session runs: what its anchors know of it, and what the search, early ending and
the best value make of it."""

import math

import msgspec
import numpy as np
import pytest
from landscape import job_of, measured, space_of, step_time

import autoscout
from autoscout.job.objective import DRIFT, cost, costs
from autoscout.tuning.anchors import Anchors
from autoscout.tuning.evaluator import Experiment
from autoscout.tuning.loop import Loop, Stop
from kb import journal as journals
from kb import store
from kb.journal import BestFound

JOB, SPACE = job_of("tiny-gpt-cpu"), space_of("tiny-gpt-cpu")
DEFAULT = SPACE.reference
OTHER = next(c for c in SPACE.configurations() if c != DEFAULT)


def took(seconds, configuration=DEFAULT, **more):
    return msgspec.structs.replace(measured(SPACE, configuration), metrics={"step_time_s": seconds}, **more)


def told(*seconds) -> Anchors:
    anchors = Anchors(JOB, DEFAULT)
    for at, each in enumerate(seconds):
        anchors.tell(took(each), 10 * at)
    return anchors


def test_one_slow_anchor_is_measured_again_and_is_no_drift():
    anchors = told(1.0, 2.0)
    assert anchors.due(11)  # at once
    assert anchors.drift == 0.0
    anchors.tell(took(1.01), 11)
    assert anchors.drift == 0.0
    assert not anchors.due(12)
    assert anchors.heard(took(0.9)).conditions == {}


def test_a_reference_that_stays_slow_is_a_drift_and_costs_are_those_of_the_start():
    anchors = told(1.0, 2.7, 2.9)
    assert math.exp(anchors.drift) == pytest.approx(math.sqrt(2.7 * 2.9))
    later = anchors.heard(took(2.52, OTHER))
    assert later.metrics == {"step_time_s": 2.52}
    assert cost(JOB.objective, later) == pytest.approx(2.52 / math.sqrt(2.7 * 2.9))
    assert [cost(JOB.objective, m) for m in anchors.again] == pytest.approx(
        [math.sqrt(2.7 / 2.9), math.sqrt(2.9 / 2.7)]
    )
    assert anchors.costs == pytest.approx([math.sqrt(2.7 * 2.9), 2.7, 2.9])  # of the machine of now
    anchors.tell(took(1.0), 40)
    anchors.tell(took(1.0), 41)
    assert anchors.drift == pytest.approx(0.0, abs=0.05)


def test_runs_since_the_last_anchor_are_doubted_by_as_much_as_the_machine_moved():
    anchors = told(1.0)
    anchors.heard(took(1.1, OTHER))
    anchors.tell(took(1.0), 8)
    late = next(c for c in SPACE.configurations() if c not in (DEFAULT, OTHER))
    anchors.heard(took(2.2, late))
    assert not anchors.tell(took(2.0), 16)
    assert anchors.tell(took(2.0), 16)
    assert anchors.doubts == {late.id: pytest.approx(math.log(2))}


def test_one_run_after_the_other_given_up_is_reason_to_look_at_the_reference():
    anchors = told(1.0, 1.0, 1.0)
    for _ in range(50):
        if anchors.due(21):
            break
        anchors.heard(took(2.0, OTHER, fidelity="short"))
    else:
        pytest.fail("nobody looked")
    assert not told(1.0, 1.0, 1.0).due(21)


def test_noise_alone_is_seldom_taken_for_a_drift():
    """10 % noise: of 300 sessions with six anchors."""
    rng, wrong = np.random.default_rng(0), 0
    for _ in range(300):
        anchors = Anchors(JOB, DEFAULT)
        for at in range(6):
            anchors.tell(took(float(np.exp(0.1 * rng.standard_normal()))), at)
        wrong += abs(anchors.drift) > 0.05
    assert wrong <= 60


def test_the_further_objectives_are_as_they_were_measured():
    both = msgspec.structs.replace(JOB.objective, also=["minimize peak_memory_gib"])
    m = took(2.0, conditions={DRIFT: 2.0})
    m = msgspec.structs.replace(m, metrics={"step_time_s": 2.0, "peak_memory_gib": 3.0})
    assert costs(both, m) == [1.0, 3.0]


class Nothing:
    def interrupt(self) -> None: ...


def test_a_session_on_a_machine_that_gets_slower_goes_on_finding_what_is_better(tmp_path):
    """From the fifth run on everything takes 2.85 times as long: the best of the first four stayed the best."""
    study = autoscout.Study(JOB, kb=tmp_path / "kb.duckdb", warm_start="off")
    rng, runs = np.random.default_rng(0), 0
    loop = Loop(study._engine, Nothing(), tmp_path / "kb.duckdb", lambda note: None, Stop())  # type: ignore[arg-type]
    while study.wants_more():
        for configuration in study.ask():
            runs += 1
            slow = 2.85 if runs > 4 else 1.0
            study.tell(configuration, {"step_time_s": slow * step_time(configuration) * np.exp(0.02 * rng.normal())})
            if runs == 30:
                bar = loop._bar(Experiment(99, "search", OTHER, "", ""))
                assert bar is not None
                assert bar.cost > 2 * min(map(step_time, SPACE.configurations()))  # of the machine of now
    events = journals.events(store.session_folder(tmp_path / "kb.duckdb", study.session) / "journal.jsonl")
    best = [e for e in events if isinstance(e, BestFound)][-1]
    assert step_time(best.configuration) <= 1.05 * min(map(step_time, SPACE.configurations()))
    assert best.value == pytest.approx(step_time(best.configuration), rel=0.1)
