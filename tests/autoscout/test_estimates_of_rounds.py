"""Every estimate between a run's lines and the verdict, on constant, zero, huge, tiny, single and missing values."""

import itertools
import math
import re

import msgspec
import numpy as np
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from landscape import failed, job_of, measured, space_of

from autoscout.running import early
from autoscout.search.belief.ranking import Ranking
from autoscout.space.explain import completed
from autoscout.targets.command import measurement
from autoscout.targets.command.reading import MetricReader
from autoscout.tuning.anchors import Anchors
from autoscout.tuning.confirm import finalists, verdict
from autoscout.tuning.disturbances import Disturbances
from autoscout.tuning.periods import Periods
from autoscout.tuning.rounds import confirmed
from autoscout.tuning.trial import Trial
from kb.journal import Confirmed
from kb.records import MetricSource, Objective

JOB, SPACE = job_of("tiny-gpt-cpu"), space_of("tiny-gpt-cpu")
DEFAULT = SPACE.reference
OTHERS = [completed(SPACE, {"pp": 2, "mbs": 2}, DEFAULT), completed(SPACE, {"pp": 4}, DEFAULT)]
# What clocks and logs do: any float that counts as a cost, extremes, and the same value again.
COSTS = st.one_of(st.sampled_from([1e-150, 1e-9, 1.0, 1e9, 1e150]), st.floats(1e-150, 1e150))
SAID = st.one_of(COSTS, st.sampled_from([0.0, -1.0, math.nan, math.inf, -math.inf, 5e-324, 1e-300, 1e300, 1.7e308]))


def took(configuration, seconds):
    if seconds is None:
        return failed(SPACE, configuration, "infrastructure")
    return msgspec.structs.replace(measured(SPACE, configuration), metrics={"step_time_s": seconds})


def verdict_of(done, anchors, run) -> Confirmed:
    """The rounds of a session after `done`; `run` measures a configuration."""
    running = confirmed(JOB, SPACE, SPACE, done, DEFAULT, anchors, lambda note: None, lambda _: False)
    wanted = next(running)
    while True:
        try:
            wanted = running.send(run(wanted.configuration))
        except StopIteration as end:
            return end.value


def finite(found) -> bool:
    """Whether all numbers of a record are, in its words, too."""
    said = msgspec.to_builtins(found)
    numbers = [v for v in said.values() if isinstance(v, float)]
    return all(map(math.isfinite, numbers)) and not re.search(r"\b(nan|inf)\b", str(said.get("sentence")))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=9), st.integers(0, 9))
def test_lines_that_arrive_together_share_the_time_since_those_before(groups, alone):
    """A crowded machine lets a run's reader look seldom: what it finds is the mean time all the same."""
    numbers, number = MetricReader(MetricSource(between=r"step: (\d+)")), 0
    groups = [*([1] * alone), *groups]
    for at, group in enumerate(groups, 1):
        lines = [f"step: {number + i}\n" for i in range(group)]
        numbers.read("".join(lines).encode(), float(at))
        number += group
    assert len(numbers.values) == sum(groups[1:])
    assert math.isclose(sum(numbers.values), len(groups) - 1)
    assert all(value > 0 for value in numbers.values)


def test_a_session_on_a_crowded_machine_proves_what_runs_told_in_pieces():
    """The reader of the output gets to run four times a run only; each time it finds all the lines since."""
    rng, seconds = np.random.default_rng(0), {DEFAULT.id: 1.3, OTHERS[0].id: 1.0, OTHERS[1].id: 1.25}

    def told(configuration):
        numbers = MetricReader(MetricSource(between=r"iteration: (\d+) / "))
        looks = [0.0, *np.sort(rng.uniform(0, 40, 3)).tolist(), 40.0]
        for before, at in itertools.pairwise(looks):
            first, last = (math.floor(t / seconds[configuration.id]) for t in (before, at))
            numbers.read("".join(f"iteration: {i} / 99 |\n" for i in range(first, last)).encode(), at)
        job = msgspec.structs.replace(JOB, launch=msgspec.structs.replace(JOB.launch, warmup=0))
        found = measurement.readings(job, {"step_time_s": numbers.values})
        return msgspec.structs.replace(measured(SPACE, configuration), metrics=found.metrics)

    anchors = Anchors(JOB, DEFAULT)
    done = [told(c) for c in (DEFAULT, *OTHERS)]
    anchors.tell(done[0], 0)
    found = verdict_of(done, anchors, told)
    assert found.winner == OTHERS[0]
    assert finite(found)


@given(st.sampled_from(["step_time_s", "step_time_ms", "tokens_per_s", "iterations_per_s"]), st.data())
def test_whatever_a_run_says_its_metrics_are_numbers_and_its_step_takes_time(name, data):
    metric = data.draw(st.sampled_from(["step_time_s", "tokens_per_s"]))
    objective = Objective(minimize=metric) if "time" in metric else Objective(maximize=metric)
    launch = msgspec.structs.replace(JOB.launch, metrics={name: "."})
    job = msgspec.structs.replace(JOB, objective=objective, launch=launch)
    values = {name: data.draw(st.lists(SAID, max_size=6)), "loss": data.draw(st.lists(SAID, max_size=2))}
    found = measurement.readings(job, values)
    assert all(math.isfinite(v) for v in found.metrics.values())
    assert all(v > 0 for v in (*found.metrics.values(), *found.iterations_s))
    costs = measurement.costs(job, values)
    bar = early.Bar(data.draw(COSTS), data.draw(st.floats(0, 10)))
    early.hopeless(costs, bar)
    early.known_well(costs, 4, 0.1, 9.0, bar)
    assert all(0 <= v < math.inf for v in early.conditions(costs, True).values())


@settings(max_examples=60, phases=(Phase.generate,))
@given(st.data())
def test_whatever_rounds_measure_they_end_in_a_verdict_of_numbers(data):
    usual = data.draw(COSTS)  # most often everything takes exactly as long
    cost = st.one_of(st.just(usual), st.none(), COSTS)
    anchors = Anchors(JOB, DEFAULT)
    for at in range(data.draw(st.integers(0, 3))):
        anchors.tell(took(DEFAULT, data.draw(cost)), at)
    sure = st.one_of(st.just(math.inf), st.floats(0, 999))
    believed = {c.id: (data.draw(st.floats(0, 999)), data.draw(sure)) for c in (*OTHERS, DEFAULT)}
    trial = Trial(
        finalists=[c.id for c in OTHERS],
        reference=DEFAULT.id,
        limit=data.draw(st.integers(2, 7)),
        anchors=anchors.costs,
        believed=believed,
    )
    by_id = {c.id: c for c in (*OTHERS, DEFAULT)}
    rounds, costs = [], []
    while active := trial.active(costs):
        rounds.append([took(by_id[name], data.draw(cost)) for name in trial.order(costs, active)])
        costs.append([(m.configuration.id, m.metrics["step_time_s"]) for m in rounds[-1] if m.status == "ok"])
    found = verdict(JOB, SPACE, trial, rounds, DEFAULT, today=OTHERS[0])
    assert found is None or finite(found), found


@settings(max_examples=8, phases=(Phase.generate,))
@given(st.data())
def test_whatever_a_search_measured_its_finalists_are_measured_again(data):
    usual = data.draw(COSTS)
    cost = st.one_of(st.just(usual), st.none(), COSTS)
    sampled = [SPACE.sample(np.random.default_rng(i)) for i in range(6)]
    searched = {c.id: c for c in (*OTHERS, *sampled) if c != DEFAULT}
    done = [took(DEFAULT, usual), *(took(c, data.draw(cost)) for c in searched.values())]
    rows = [(m.configuration, m.metrics.get("step_time_s")) for m in done]
    assert DEFAULT in finalists(JOB, Ranking(SPACE, rows), DEFAULT, done)
    anchors = Anchors(JOB, DEFAULT)
    found = verdict_of(done, anchors, lambda c: took(c, data.draw(st.one_of(st.just(usual), COSTS))))
    assert finite(found), found


@given(st.lists(st.one_of(st.none(), COSTS), max_size=5), st.lists(COSTS, max_size=5))
def test_what_an_earlier_period_measured_is_a_number_today(then, now):
    configurations = [DEFAULT, *OTHERS]
    before = [("then", took(configurations[i % 3], c)) for i, c in enumerate(then)]
    periods = Periods(JOB, before)
    for i, c in enumerate(now):
        periods.tell(took(configurations[i % 3], c))
    for session, m in before:
        assert all(map(math.isfinite, periods.as_today(session, m).metrics.values()))


@given(st.lists(st.fixed_dictionaries({}, optional={"foreign_cpu_share": SAID, "throttled": SAID}), max_size=8))
def test_whatever_the_machine_says_of_itself_a_disturbed_run_is_repeated_once(said):
    kept = Disturbances()
    for conditions in said:
        m = msgspec.structs.replace(took(DEFAULT, 1.0), conditions=conditions)
        if kept.again("search", m):
            purpose, counts = kept.settled("repeat", m)
            assert (purpose, counts.status) == ("search", "ok")
