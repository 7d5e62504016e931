"""Fidelity: what is known, then simulators while they are right, then experiments."""

import msgspec
import numpy as np
import pytest
from landscape import driven, job_of, measured, space_of, step_time

from autoscout.search.hyper import Hyper
from autoscout.search.strategy import strategy
from autoscout.space.explain import completed
from autoscout.tuning.evaluator import Evaluator, FidelityMode
from autoscout.tuning.tape import Tape
from kb.journal import Answered, Checked, FidelitySwitched, Journal, Simulated
from kb.records import Measurement


class Bench:
    """An evaluator over the analytic landscape, with what it wrote and how often it profiled."""

    def __init__(
        self, tmp_path, remembered=(), mode: FidelityMode = "adaptive", hyper=None, truth=measured, tape=(), **more
    ):
        self.space = space_of("tiny-gpt-cpu")
        self.events = []
        self.profiled = []
        recorder = Tape(Journal(tmp_path / "journal.jsonl"), list(tape), self.events.append)

        def profile(configuration, purpose):
            self.profiled.append((configuration.id, purpose))
            return truth(self.space, configuration)

        self.profile = profile
        self.evaluator = Evaluator(
            job_of("tiny-gpt-cpu"),
            self.space,
            recorder,
            lambda m: m,
            [("earlier", m) for m in remembered],
            mode,
            hyper or Hyper(),
            "test",
            self.space.reference,
            **more,
        )

    def evaluate(self, configurations, step):
        return driven(self.evaluator.evaluate(configurations, step), self.profile)

    def search(self, steps):
        chosen = strategy("paper", self.space, seed=1)
        for step in range(1, steps + 1):
            measurements, switched = self.evaluate(chosen.ask(), step)
            if switched:
                chosen.switch_to_profiling()
            chosen.tell(measurements)

    def of(self, kind):
        return [e for e in self.events if isinstance(e, kind)]


def history(n, noise=0.0, seed=5) -> list[Measurement]:
    space = space_of("tiny-gpt-cpu")
    rng = np.random.default_rng(seed)
    default = space.reference  # left out: what is remembered is answered, not profiled
    drawn = [c for _ in range(2 * n) if (c := space.sample(rng)) != default][:n]
    return [measured(space, c, noise, seed=i) for i, c in enumerate(drawn)]


def test_with_an_empty_knowledge_base_it_simply_profiles(tmp_path):
    bench = Bench(tmp_path)
    bench.search(10)
    assert bench.evaluator.fidelity == "measured"
    assert bench.of(Simulated) == []
    assert bench.profiled


def test_nothing_is_profiled_twice(tmp_path):
    bench = Bench(tmp_path)
    bench.search(40)
    assert len(bench.profiled) == len({key for key, _ in bench.profiled})


def test_what_the_knowledge_base_knows_is_answered_and_said(tmp_path):
    known = history(300)
    bench = Bench(tmp_path, known, mode="profile")
    bench.search(40)
    answered = {e.measurement.configuration.id for e in bench.of(Answered)}
    assert answered
    assert answered <= {m.configuration.id for m in known}
    assert answered.isdisjoint({key for key, _ in bench.profiled})
    assert all(e.measured_by == "earlier" for e in bench.of(Answered))


def test_simulators_stand_in_and_are_checked_every_tau_iterations(tmp_path):
    bench = Bench(tmp_path, history(300), hyper=Hyper(tau=5, epsilon=10.0))
    bench.search(25)
    assert bench.evaluator.fidelity == "predicted"
    assert bench.profiled[0] == (bench.space.reference.id, "search")
    assert {purpose for _, purpose in bench.profiled[1:]} == {"check"}
    assert {c.step % 5 for c in bench.of(Checked)} == {0}
    assert len(bench.of(Simulated)) > 3 * len(bench.profiled)


def test_simulators_that_err_are_switched_off_with_the_reason(tmp_path):
    def twice_as_slow(space, configuration):
        m = measured(space, configuration)
        return msgspec.structs.replace(m, metrics={"step_time_s": 2 * step_time(configuration)})

    bench = Bench(tmp_path, history(300), hyper=Hyper(tau=5, epsilon=0.15), truth=twice_as_slow)
    bench.search(30)
    (switch,) = bench.of(FidelitySwitched)
    assert bench.evaluator.fidelity == "measured"
    assert "more than the tolerated ε = 15%" in switch.why
    last_simulated = max(i for i, e in enumerate(bench.events) if isinstance(e, Simulated))
    assert last_simulated < bench.events.index(switch)


def test_a_shadow_that_foretells_a_failure_is_no_check_of_predicted_times(tmp_path):
    """It counted as an error of 100 %, though no experiment contradicted the prediction."""

    def never_fits(space, configuration):
        m = measured(space, configuration)
        if configuration.id == space.reference.id:
            return m
        return msgspec.structs.replace(m, status="oom", fidelity="shadow", metrics={})

    bench = Bench(tmp_path, history(300), hyper=Hyper(tau=5, epsilon=0.15), truth=never_fits)
    bench.search(30)
    assert len(bench.profiled) > 1
    assert bench.of(Checked) == bench.of(FidelitySwitched) == []


@pytest.mark.parametrize("status", ["infrastructure", "killed"])
def test_a_run_that_failed_for_no_fault_of_its_configuration_is_no_check(tmp_path, status):
    """Each counted as an error of 100 %: an engine that AutoScout did not fit seemed to refute the simulators."""

    def never_starts(space, configuration):
        m = measured(space, configuration)
        return m if configuration.id == space.reference.id else msgspec.structs.replace(m, status=status, metrics={})

    bench = Bench(tmp_path, history(300), hyper=Hyper(tau=5, epsilon=0.15), truth=never_starts)
    bench.search(30)
    assert len(bench.profiled) > 1
    assert bench.of(Checked) == bench.of(FidelitySwitched) == []


def test_after_the_switch_every_experiment_is_still_held_against_its_prediction(tmp_path):
    """The MAPE stood still from the switch on, without a word."""

    def twice_as_slow(space, configuration):
        m = measured(space, configuration)
        return msgspec.structs.replace(m, metrics={"step_time_s": 2 * step_time(configuration)})

    bench = Bench(tmp_path, history(300), hyper=Hyper(tau=5, epsilon=0.15), truth=twice_as_slow)
    bench.search(30)
    after = bench.events[bench.events.index(bench.of(FidelitySwitched)[0]) :]
    scored = [e for e in after if isinstance(e, Checked)]
    known = {m.name for m in bench.evaluator.done.values()}
    profiled = known - {m.measurement.name for m in bench.of(Answered)}
    assert profiled <= {e.name for e in bench.of(Checked)} | {bench.space.name(bench.space.reference)} <= known
    assert len(scored) == len({e.name for e in scored}) > 3  # once each


def test_a_journal_from_before_experiments_were_scored_after_the_switch_is_resumed(tmp_path):
    bench = Bench(tmp_path, history(300), hyper=Hyper(tau=1000, simulated_patience=20))
    bench.search(60)
    switch = bench.events.index(bench.of(FidelitySwitched)[0])
    old = [e for i, e in enumerate(bench.events) if i <= switch or not isinstance(e, Checked)]
    (tmp_path / "again").mkdir()
    again = Bench(tmp_path / "again", history(300), hyper=Hyper(tau=1000, simulated_patience=20), tape=old)
    again.search(60)
    assert again.evaluator.done.keys() == bench.evaluator.done.keys()


def test_simulators_that_have_nothing_new_to_say_give_way(tmp_path):
    bench = Bench(tmp_path, history(300), hyper=Hyper(tau=1000, simulated_patience=20))
    bench.search(120)
    (switch,) = bench.of(FidelitySwitched)
    assert "no longer predict anything better" in switch.why


def test_of_several_measurements_the_median_answers_and_only_a_wrong_one_overrules(tmp_path):
    space = space_of("tiny-gpt-cpu")
    configuration = completed(space, {"pp": 2, "mbs": 2}, space.reference)

    def one(seconds, status="ok", cost_s=1.0):
        m = measured(space, configuration)
        return msgspec.structs.replace(m, metrics={"step_time_s": seconds}, status=status, cost_s=cost_s)

    def answer(name, *remembered):
        bench = Bench(tmp_path / name, remembered, mode="profile")
        (measurement,), _ = bench.evaluate([configuration], 1)
        return measurement, bench.profiled

    assert answer("a", one(1.0), one(3.0), one(2.0))[0].metrics["step_time_s"] == 2.0
    assert answer("b", one(1.0), one(3.0, "wrong"), one(2.0))[0].status == "wrong"
    assert answer("c", one(1.0, "timeout", 99.0), one(2.0), one(2.0))[0].status == "ok"
    again = [(configuration.id, "search")]
    assert answer("d", one(1.0, "killed"))[1] == again
    assert answer("d2", one(1.0, "infrastructure"))[1] == again
    assert answer("e", one(1.0, "oom"))[0].status == "oom"
    assert answer("f", one(1.0, "timeout", cost_s=95.0))[0].status == "timeout"  # the job's limit is 90 s
    assert answer("g", one(1.0, "timeout", cost_s=30.0))[1] == again


def test_the_default_is_measured_in_every_session_whatever_the_knowledge_base_says(tmp_path):
    """A value of another hour would be held against new ones; it costs nothing of the budget."""
    space = space_of("tiny-gpt-cpu")
    default = space.reference
    other = completed(space, {"pp": 2, "mbs": 2}, default)
    bench = Bench(tmp_path, [measured(space, default), measured(space, other)], mode="profile")
    bench.evaluate([default, other], 1)
    assert bench.profiled == [(default.id, "anchor")]


def test_the_default_is_never_simulated(tmp_path):
    space = space_of("tiny-gpt-cpu")
    default = strategy("autoscout", space, seed=1).ask()[0]
    bench = Bench(tmp_path, [m for m in history(300) if m.configuration != default])
    (measurement,), _ = bench.evaluate([default], 1)
    assert bench.evaluator.fidelity == "predicted"
    assert measurement.fidelity == "measured"


def test_repeats_do_not_make_simulators_look_better_than_they_are(tmp_path):
    """Four configurations four times each are four rows."""
    rows = history(4) * 4
    assert Bench(tmp_path, rows).evaluator.fidelity == "measured"


def test_every_simulated_configuration_says_why_it_was_believed(tmp_path):
    bench = Bench(tmp_path, history(300), hyper=Hyper(tau=5, epsilon=10.0))
    bench.search(25)
    said = [e.why for e in bench.of(Simulated)]
    assert said[0] == "the simulators have not been checked yet"
    assert any("within the tolerated ε = 1000%" in why for why in said)


def test_a_region_where_the_simulators_err_is_profiled_though_they_are_believed_elsewhere(tmp_path):
    """Checks of pp 4 went wrong, those of everything else did not."""
    known = history(300)
    bench = Bench(tmp_path, known, hyper=Hyper(tau=1000, window=20))
    guard = bench.evaluator._guard
    for _ in range(18):
        guard.check(1.0, 1.0, {"pp": 1})
    for _ in range(2):
        guard.check(2.0, 1.0, {"pp": 4})
    new = set(bench.space.configurations()) - {m.configuration for m in known} - {bench.evaluator.default}
    by_id = sorted(new, key=lambda c: c.id)
    configurations = [c for pp in (1, 4) for c in [c for c in by_id if c.knobs["pp"] == pp][:10]]
    measurements, switched = bench.evaluate(configurations, 1)
    assert not switched
    for m in measurements:
        assert m.fidelity == ("measured" if m.configuration.knobs["pp"] == 4 else "predicted")
    assert {m.fidelity for m in measurements} == {"measured", "predicted"}


def test_what_other_jobs_measured_predicts_for_a_job_without_rows(tmp_path):
    job = job_of("tiny-gpt-cpu")
    other = msgspec.structs.replace(job, model=msgspec.structs.replace(job.model, hidden=192))
    bench = Bench(tmp_path, stand_in=False, past=[(other, history(80))])
    alone = Bench(tmp_path, stand_in=False)
    codes = bench.space.feasible.codes[::50]
    truth = np.array(
        [step_time(bench.space.feasible.configuration(i)) for i in range(0, len(bench.space.feasible), 50)]
    )

    def off(found):
        predictors = found.evaluator.predictors(found.space)
        best = predictors.get("ensemble") or next(iter(predictors.values()))  # of one member there is no ensemble
        return np.abs(best(codes) / truth - 1).mean()

    assert off(bench) < 0.5 * off(alone)
