"""What the default search makes of simulators that are right, wrong or say nothing, and of what fails; and that it
looks at nothing but the knobs: not at their names, nor at the order in which a table has its rows."""

import itertools
import time
from pathlib import Path

import numpy as np
import pytest

from autoscout.job.load import read_job, with_budget
from autoscout.search.belief.bending import bent, unbent
from autoscout.search.belief.chances import Chances
from autoscout.search.belief.encoding import Encoding
from autoscout.search.belief.foreseen import Foreseen
from autoscout.search.candidates import as_costs
from autoscout.search.pool import CandidatePool
from autoscout.search.strategy import strategy
from autoscout.space.graph import Space
from kb.journal import Decided
from kb.records import AutoscoutError, Configuration, Measurement, Objective, Value

LEVELS = {"a": [1, 2, 4, 8], "b": [1, 2, 4, 8, 16], "c": [0, 1], "d": [1, 2, 3, 4, 5], "e": [0, 1], "f": [8, 16, 32]}
ROWS = [dict(zip(LEVELS, values, strict=True)) for values in itertools.product(*LEVELS.values())]


def cost(row) -> float:
    """A queue that runs over where a · b is small, a ridge along a = b, and steps."""
    load = 6 / (row["a"] * row["b"])
    ridge = abs(np.log2(row["a"]) - np.log2(row["b"]) + row["c"]) * 0.2
    return float(1 + ridge + 0.1 * row["d"] + 0.05 * row["e"] * row["f"] / 8 + 300 * max(load - 0.9, 0))


def fails(row) -> bool:
    return row["a"] * row["b"] * row["f"] > 512


def space_of(rows, names=None) -> Space:
    names = names or {n: n for n in LEVELS}
    table = [{names[n]: v for n, v in row.items()} for row in rows]
    return Space.from_table(table, [names["c"], names["e"]], [names[n] for n in "abdf"], Objective(minimize="time_s"))


def plain(configuration: Configuration, names=None) -> dict:
    back = {new: old for old, new in (names or {n: n for n in LEVELS}).items()}
    return {back[n]: v for n, v in configuration.knobs.items()}


def searched(space, steps=30, simulator=None, failing=False, names=None, seed=0) -> list[dict]:
    """The rows asked for, in order."""
    said = {} if simulator is None else {"it": simulator}
    search = strategy("autoscout", space, seed=seed, simulators=said)
    asked = []
    for _ in range(steps):
        [configuration] = search.ask()
        row = plain(configuration, names)
        asked.append(row)
        failed = failing and fails(row)
        metrics = {} if failed else {"time_s": cost(row)}
        status = "oom" if failed else "ok"
        search.tell([Measurement(configuration=configuration, name="", context="", status=status, metrics=metrics)])
    return asked


def predictor(space, of):
    """`of`: a row → what is predicted."""
    values = [tuple(k.values) for k in space.knobs]
    names = [k.name for k in space.knobs]

    def predict(codes):
        rows = ({n: v[c] for n, v, c in zip(names, values, code, strict=True)} for code in codes.tolist())
        return np.array([of(row) for row in rows], dtype=float)

    return predict


@pytest.mark.parametrize("said", [7.0, np.nan, -3.0, 0.0], ids=["constant", "NaN", "negative", "zero"])
def test_a_simulator_that_tells_nothing_changes_nothing(said):
    space = space_of(ROWS)
    assert searched(space, 15, predictor(space, lambda row: said)) == searched(space, 15)


def test_the_favourites_of_a_simulator_come_first_and_as_they_are():
    """Although what it says of a queue that runs over spans orders of magnitude, which costs are bent for."""
    space = space_of(ROWS)
    asked = searched(space, 2, predictor(space, lambda row: cost(row) ** 1.1 * 2))
    best = sorted(cost(row) for row in ROWS)[:2]
    assert [cost(row) for row in asked] == pytest.approx(best)


@pytest.mark.parametrize("objective", [Objective(minimize="time_s"), Objective(maximize="rows_per_s")])
@pytest.mark.parametrize("name", ["autoscout", "metis"])
def test_what_is_predicted_to_fail_comes_last_in_either_direction(objective, name):
    rows = [{"tp": 2**i} for i in range(6)]
    space = Space.from_table(rows, ["tp"], [], objective)
    good = 3.0 if objective.minimize else 1 / 3.0
    said = predictor(space, lambda row: np.inf if row["tp"] > 4 else good)
    costs = as_costs(objective, said)(np.arange(6)[:, None])
    assert np.isposinf(costs[[k for k in range(6) if int(space.of_codes([k]).knobs["tp"]) > 4]]).all()
    search = strategy(name, space, default=space.feasible.configuration(0), simulators={"it": said})
    asked = []
    for _ in range(3):
        [configuration] = search.ask()
        asked.append(configuration.knobs["tp"])
        metrics = {objective.metric: good}
        search.tell([Measurement(configuration=configuration, name="", context="", status="ok", metrics=metrics)])
    assert all(tp <= 4 for tp in asked), asked


def test_a_simulator_that_takes_the_best_for_the_worst_is_seen_through():
    space, best = space_of(ROWS), min(cost(row) for row in ROWS)
    asked = searched(space, 60, predictor(space, lambda row: 1 / cost(row)))
    assert min(cost(row) for row in asked) <= 1.05 * best


def test_where_a_simulator_errs_the_search_looks_elsewhere_too():
    """Its favourites are all alike: what is beside them does not show that it is wrong of the rest."""
    space, best = space_of(ROWS), min(cost(row) for row in ROWS)
    asked = searched(space, 45, predictor(space, lambda row: cost(row) * (4 if row["a"] == row["b"] else 1)))
    assert min(cost(row) for row in asked) <= 1.05 * best


def test_fewer_experiments_fail_than_at_random():
    """Although the best configurations are those beside what fails."""
    space = space_of(ROWS)
    share = np.mean([fails(row) for row in ROWS])
    failed = [np.mean([fails(row) for row in searched(space, 40, failing=True, seed=seed)]) for seed in range(2)]
    assert np.mean(failed) < share


def test_a_search_becomes_careful_by_and_by():
    """Each failure beyond the budget doubles the exponent, and no chance is a cliff."""
    encoding = Encoding(space_of(ROWS).knobs, space_of(ROWS).feasible.codes)
    chances = Chances(encoding, [], 0.1, Foreseen(CandidatePool(space_of(ROWS), np.random.default_rng(0)), {}))
    runs, gain = np.array([1.0, 0.9, 0.79]), np.ones(3)
    weighed = [chances.weighed(gain, runs, 20, failed) for failed in (0, 2, 3, 4, 20)]
    exponents = [np.log(w[1]) / np.log(0.9) for w in weighed]
    assert exponents == pytest.approx([2, 2, 4, 8, 32])
    for exponent, weights in zip(exponents, weighed, strict=True):
        assert weights == pytest.approx(runs**exponent)


def test_a_job_may_say_how_much_may_fail(tmp_path):
    text = Path("fixtures/jobs/smallest-cpu.toml").read_text()
    assert "[budget]" in text
    job = tmp_path / "job.toml"
    job.write_text(text.replace("[budget]", "[budget]\nfailures = 0.1"))
    assert with_budget(read_job(job), 7, None).budget.failures == 0.1
    job.write_text(text.replace("[budget]", "[budget]\nfailures = 3"))
    assert read_job(job).budget.failures == 3
    job.write_text(text.replace("[budget]", "[budget]\nfailures = 1.5"))
    with pytest.raises(AutoscoutError, match=r"budget\.failures = 1\.5 must be a share"):
        read_job(job)


def test_very_many_measurements_are_held_in_bounds():
    """The work of a step does not grow with what was measured before; the best stays."""
    space = space_of(ROWS)
    told = [
        Measurement(configuration=c, name="", context="", status="ok", metrics={"time_s": cost(plain(c))})
        for c in map(space.feasible.configuration, range(0, len(ROWS), 2))
    ]
    search = strategy("autoscout", space, told=told)
    search.ask()
    held = search.model.rows  # type: ignore[attr-defined]
    assert len(told) == 600
    assert len(held) <= 300
    assert min(cost(plain(space.feasible.configuration(int(r)))) for r in held) == min(
        cost(plain(m.configuration)) for m in told
    )


def test_bent_costs_come_back():
    u = np.array([-0.3, 0.0, 0.2, 0.7])
    assert unbent(bent(u)) == pytest.approx(u)
    assert bent(np.array([1e3])) == pytest.approx(0.8)


# ---- what a search must not look at -----------------------------------------------------------------------------


def test_names_of_knobs_do_not_matter():
    names = {"a": "zz", "b": "tp", "c": "yes", "d": "a", "e": "b", "f": "c"}
    assert searched(space_of(ROWS, names), 20, names=names) == searched(space_of(ROWS), 20)


def test_the_order_of_a_table_s_rows_does_not_matter():
    rng = np.random.default_rng(0)
    mixed = [ROWS[i] for i in rng.permutation(len(ROWS))]
    by_cost = sorted(ROWS, key=cost)
    first = searched(space_of(ROWS), 20)
    assert searched(space_of(mixed), 20) == first
    assert searched(space_of(by_cost), 20) == first


def test_rows_that_come_twice_do_not_matter():
    assert searched(space_of([*ROWS, *ROWS[::3]]), 20) == searched(space_of(ROWS), 20)


def test_costs_that_are_dealt_out_at_random_are_not_foreseen():
    """Whoever looked at anything but what it was told would find the better ones sooner."""
    rng, levels = np.random.default_rng(3), {n: {v: i for i, v in enumerate(values)} for n, values in LEVELS.items()}
    place = rng.permutation(len(ROWS)).reshape([len(values) for values in LEVELS.values()])
    found = []
    for seed in range(4):
        search = strategy("autoscout", space_of(ROWS), seed=seed)
        for _ in range(30):
            [configuration] = search.ask()
            row = plain(configuration)
            rank = int(place[tuple(levels[n][row[n]] for n in LEVELS)])
            found.append(rank / len(ROWS))
            metrics = {"time_s": 1 + 2 * rank / len(ROWS)}
            search.tell([Measurement(configuration=configuration, name="", context="", status="ok", metrics=metrics)])
    error = np.sqrt(1 / 12 / len(found))
    assert abs(np.mean(found) - 0.5) < 4 * error


def test_where_next_to_nothing_is_promised_a_search_looks_wider():
    """All that is left to gain beside the best layout's best is noise; the others are not given up for that."""
    levels = {"layout": range(4), "batch": [2**i for i in range(9)], "chunk": range(6), "blocks": range(6)}
    rows = [dict(zip(levels, values, strict=True)) for values in itertools.product(*levels.values())]
    space = Space.from_table(rows, ["layout"], ["batch", "chunk", "blocks"], Objective(minimize="time_s"))
    search, wider, layouts = strategy("autoscout", space, seed=1), [], []
    for _ in range(60):
        [configuration] = search.ask()
        layout, batch, chunk, blocks = (float(configuration.knobs[name]) for name in levels)
        off = abs(np.log2(batch) - (1 if layout == 3 else 6))
        metrics = {"time_s": float((1.5 - 0.15 * layout) * (1 + 0.6 * off**1.5) + 0.01 * (chunk + blocks))}
        search.tell([Measurement(configuration=configuration, name="", context="", status="ok", metrics=metrics)])
        why = [event.why for event in search.drain() if isinstance(event, Decided)]
        wider.append(any("a wider search" in each for each in why))
        layouts.append(layout)
    assert any(wider)
    assert not any(one and next_one for one, next_one in itertools.pairwise(wider))
    best = search.recommend()
    assert best is not None
    elsewhere = [layout != best.knobs["layout"] for layout in layouts]
    assert np.mean(np.array(elsewhere)[wider]) > np.mean(np.array(elsewhere)[20:][~np.array(wider)[20:]])


def test_what_was_measured_before_is_taken_in_with_work_that_grows_as_its_rows():
    names = ["a", "b", "c"]
    products = itertools.product(range(1, 17), repeat=3)
    table: list[dict[str, Value]] = [dict(zip(names, values, strict=True)) for values in products]
    space = Space.from_table(table, [], names, Objective(minimize="time_s"))

    def seconds(n: int) -> float:
        told = [
            Measurement(configuration=c, name="", context="", status="ok", metrics={"time_s": 1 + float(c.knobs["a"])})
            for c in (space.feasible.configuration(row) for row in range(n))
        ]
        begun = time.process_time()
        strategy("autoscout", space, seed=0, told=told)
        return time.process_time() - begun

    seconds(100)
    assert seconds(4_000) < 8 * seconds(1_000)


def longest_step(told: int, times: int = 1, simulators: int = 1) -> float:
    """CPU seconds, of the first six, of a search that knows so many configurations, measured so many times each; the
    best of two."""
    levels = {"a": 8, "b": 8, "c": 8, "d": 4, "e": 3, "f": 2}
    products = itertools.product(*map(range, levels.values()))
    rows: list[dict[str, Value]] = [dict(zip(levels, values, strict=True)) for values in products]
    space = Space.from_table(rows, ["f"], list("abcde"), Objective(minimize="time_s"))
    space.capacities = {"devices": 80.0}

    def seconds_of(row):
        return 1 + 0.1 * abs(row["a"] - row["b"]) + 0.05 * row["c"] * row["f"] + 0.02 * row["d"] + 0.03 * row["e"]

    def measurement(configuration: Configuration) -> Measurement:
        row = {name: int(value) for name, value in configuration.knobs.items()}
        peak = 20.0 * 2 ** ((row["a"] + row["c"] + row["e"]) / 7)
        metrics = {"time_s": float(seconds_of(row)), "peak_memory_gib": peak} if peak < 80 else {}
        status = "ok" if metrics else "oom"
        return Measurement(configuration=configuration, name="", context="", status=status, metrics=metrics)

    def said(power: int):
        return lambda codes: seconds_of({k.name: c for k, c in zip(space.knobs, codes.T, strict=True)}) ** (1 + power)

    predictors = {f"it{i}": said(i) for i in range(simulators)}
    known = np.random.default_rng(0).choice(len(rows), told, replace=False)
    measured = [measurement(space.feasible.configuration(int(row))) for row in known] * times
    longest = []
    for _ in range(2):
        search, spent = strategy("autoscout", space, told=measured, simulators=predictors), []
        for _ in range(6):
            begun = time.process_time()
            [configuration] = search.ask()
            spent.append(time.process_time() - begun)
            search.tell([measurement(configuration)])
        longest.append(max(spent))
    return min(longest)


def test_a_step_takes_no_longer_with_ten_times_the_measurements():
    """Memory, costs and what a simulator said of them: each fit, and each look at the candidates, is bounded. Rows that
    were measured again and again are one."""
    longest_step(60)
    some = longest_step(400)
    assert longest_step(4_000) < 2.5 * some
    assert longest_step(400, times=10) < 2.5 * some


@pytest.mark.thorough
def test_a_step_takes_hardly_longer_with_four_times_the_simulators():
    """Of many hypotheses each step fits some, and the next steps go on."""
    assert longest_step(400, simulators=4) < 1.8 * longest_step(400)
