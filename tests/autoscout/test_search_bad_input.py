"""What a search is given that makes little sense: it goes on, or ends, and never breaks."""

import itertools

import numpy as np
import pytest

from autoscout.bench.landscape import Landscape
from autoscout.bench.run import Settings, run
from autoscout.search.strategy import strategy
from autoscout.space.graph import Space
from kb.records import Configuration, Measurement, Objective

ROWS = [{"a": a, "b": b, "c": c} for a, b, c in itertools.product([1, 2, 4, 8], [1, 2, 3, 4, 5, 6], [0, 1])]


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
    found, told = run(land, name, 0, Settings(budget=budget))
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
