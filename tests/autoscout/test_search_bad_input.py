"""What a search is given that makes little sense: it goes on, or ends, and never breaks."""

import itertools

import numpy as np
import pytest

from autoscout import Study
from autoscout.search.strategy import strategy
from autoscout.space.graph import Space
from autoscout.studies.bench.landscape import Landscape
from autoscout.studies.bench.run import BenchSettings, run
from kb.records import AutoscoutError, Configuration, Measurement, Objective, Value

ROWS: list[dict[str, Value]] = [
    {"a": a, "b": b, "c": c} for a, b, c in itertools.product([1, 2, 4, 8], [1, 2, 3, 4, 5, 6], [0, 1])
]


def space(rows) -> Space:
    return Space.from_table(rows, ["c"], ["a", "b"], Objective(minimize="time_s"))


def measured(configuration: Configuration, value: float) -> Measurement:
    return Measurement(configuration=configuration, name="", context="", status="ok", metrics={"time_s": value})


def of(configuration: Configuration) -> float:
    a, b, c = (float(configuration.knobs[name]) for name in "abc")
    return 1 + abs(np.log2(a) - 2) + 0.2 * abs(b - 4) + c


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_a_metric_without_a_logarithm_counts_as_a_failure_and_is_never_recommended(bad):
    search = strategy("autoscout", space(ROWS), seed=1)
    asked = []
    for _ in range(30):
        [configuration] = search.ask()
        asked.append(configuration)
        search.tell([measured(configuration, bad if configuration.knobs["a"] == 4 else of(configuration))])
    assert len({c.id for c in asked}) == 30
    chosen = search.recommend()
    assert chosen is not None
    assert chosen.knobs["a"] != 4


@pytest.mark.parametrize("bad", [0.0, -1.0])
def test_where_every_metric_is_bad_nothing_is_recommended(bad):
    search = strategy("autoscout", space(ROWS), seed=1)
    for _ in range(12):
        search.tell([measured(c, bad) for c in search.ask()])
    assert search.recommend() is None


@pytest.mark.parametrize("budget", [1, 2, 3, 5])
@pytest.mark.parametrize("name", ["autoscout", "paper"])
def test_a_budget_smaller_than_the_opening_is_kept_and_its_best_recommended(name, budget):
    rows = space(ROWS)
    truth = np.array([of(rows.feasible.configuration(i)) for i in range(len(ROWS))])
    status = np.full(len(ROWS), "ok", dtype=object)
    land = Landscape(name="small", space=rows, metric="time_s", goal="min", truth=truth, status=status)
    found, told = run(land, name, 0, BenchSettings(budget=budget))
    assert found.evaluations == budget
    assert found.recommended is not None
    assert found.recommended.value in [cost for _, cost in told]


@pytest.mark.parametrize("said", [None, 2.0, np.nan])
def test_a_space_of_one_is_measured_once_and_recommended(said):
    told = {} if said is None else {"it": lambda codes: np.full(len(codes), said)}
    search = strategy("autoscout", space(ROWS[:1]), seed=0, simulators=told)
    [only] = search.ask()
    search.tell([measured(only, 2.0)])
    assert search.ask() == []
    assert search.recommend() == only


# ---- the same through a Study, journal and final rounds included ----------------------------------------------------


def studied(folder, **more) -> Study:
    return Study(space(ROWS), minimize="time_s", kb=folder / "kb.db", seed=2, on_note=lambda _: None, **more)


def driven(study: Study, known=of) -> list[Configuration]:
    """Measures all that a study asks for; what has no value fails."""
    asked = []
    while study.wants_more():
        for configuration in study.ask():
            asked.append(configuration)
            value = known(configuration)
            if value is None:
                study.tell(configuration, failed="error")
            else:
                study.tell(configuration, {"time_s": value})
    return asked


SIMULATORS = {
    "constant": lambda knobs: 3.0,
    "nan": lambda knobs: float("nan"),
    "negative": lambda knobs: -of(Configuration(dict(knobs))),
    "anti-correlated": lambda knobs: 9.0 / of(Configuration(dict(knobs))),
}


@pytest.mark.parametrize("which", SIMULATORS)
def test_a_study_with_a_simulator_that_makes_no_sense_ends_with_the_best(which, tmp_path):
    study = studied(tmp_path, profiles=40, simulators={which: SIMULATORS[which]})
    driven(study)
    assert study.best().value == pytest.approx(min(of(Configuration(row)) for row in ROWS))


@pytest.mark.parametrize("budget", [1, 3])
def test_a_study_of_a_budget_smaller_than_the_opening_ends_with_its_best(budget, tmp_path):
    study = studied(tmp_path, profiles=budget)
    asked = driven(study)
    assert len({c.id for c in asked}) == budget
    assert study.best().value == pytest.approx(min(of(c) for c in asked))


def test_a_study_of_a_space_of_one_measures_it_and_says_so(tmp_path):
    study = Study(space(ROWS[:1]), minimize="time_s", kb=tmp_path / "kb.db")
    asked = driven(study)
    assert {c.id for c in asked} == {Configuration(ROWS[0]).id}
    assert study.best().configuration == ROWS[0]


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan])
def test_a_study_refuses_a_metric_without_a_logarithm_in_a_sentence_and_goes_on(bad, tmp_path):
    study = studied(tmp_path, profiles=8)
    [first] = study.ask()
    with pytest.raises(AutoscoutError, match="is not a valid result; if the run failed, report it with failed"):
        study.tell(first, {"time_s": bad})
    study.tell(first, {"time_s": of(first)})
    driven(study, lambda c: None if c.knobs["a"] == 4 else of(c))
    assert study.best().configuration["a"] != 4
