"""What the rivals share, by hand: the pool of rows that they search, and the driver that measures what they yield."""

import numpy as np
import pytest

from autoscout.search.sequential import Pool, Search, Sequential, _scale
from autoscout.space.graph import Space
from autoscout.space.knob import Knob
from kb.journal import Decided
from kb.records import Configuration, Measurement, Objective, Value


def table(objective: Objective | None = None) -> Space:
    """32 rows: a name, a switch that brings a number with it, and a number."""
    rows: list[dict[str, Value]] = [
        {"m": m, "on": on, "x": x} | ({"n": n} if on else {})
        for m in ("p", "q")
        for on in (False, True)
        for x in (1, 2, 8, 16)
        for n in ((1, 3, 9) if on else (0,))
    ]
    return Space.from_table(rows, ["m", "on"], ["x", "n"], objective or Objective(minimize="s"))


SPACE = table()
CODES = SPACE.feasible.codes
M, ON, X, N = (SPACE.knobs.index(SPACE.knob[name]) for name in ("m", "on", "x", "n"))


def row_of(m: str, x: int, n: int | None = None) -> int:
    knobs: dict[str, Value] = {"m": m, "on": n is not None, "x": x}
    row = SPACE.feasible.index(Configuration(knobs if n is None else {**knobs, "n": n}))
    assert row is not None
    return row


def pool(known: dict[int, float | None] | None = None, space: Space = SPACE, default: int = 5) -> Pool:
    made = Pool(space, space.feasible.configuration(default))
    for row, cost in (known or {}).items():
        made.learn(row, cost)
    return made


def sent(search, costs) -> tuple[list[int], object]:
    """What a coroutine yields when it is sent these, and what it returns."""
    found = []
    try:
        row = next(search)
        while True:
            found.append(row)
            row = search.send(costs(row))
    except StopIteration as end:
        return found, end.value


# ---- what they share ------------------------------------------------------------------------------------------------


def test_a_pool_knows_what_was_measured():
    made = pool({3: 2.0, 4: None, 9: 1.5})
    assert (len(made), made.default, made.best, made.patience) == (32, 5, 9, None)
    assert np.flatnonzero(~made.open).tolist() == [3, 4, 9]
    assert [part.tolist() for part in made.costs(2.0)] == [[3, 4, 9], [2.0, 4.0, 1.5]]
    assert [part.tolist() for part in pool({1: None}).costs(1.2)] == [[1], [1.2]]
    assert pool({1: None}).best is None
    assert made.candidates(np.random.default_rng(0), 29).tolist() == np.flatnonzero(made.open).tolist()
    some = made.candidates(np.random.default_rng(0), 28)
    assert len({*some.tolist()}) == 28
    assert made.open[some].all()
    assert Pool(SPACE, Configuration({"m": "z"})).default == 0


def test_distances_are_steps_of_numbers_and_one_for_another_choice():
    here = CODES[row_of("p", 2, 3)]
    far = pool().distance(here)
    assert far[row_of("p", 2, 3)] == 0.0
    assert far[row_of("q", 2, 3)] == 1.0
    assert far[row_of("p", 16, 3)] == pytest.approx(2 / 3)
    assert far[row_of("p", 1, 9)] == pytest.approx(1 / 3 + 1 / 2)
    assert far[row_of("p", 2)] == 2.0  # off, and its number with it
    off = pool().distance(CODES[row_of("p", 2)])
    assert off[row_of("p", 2, 3)] == 2.0
    assert off[row_of("q", 8)] == pytest.approx(1 + 1 / 3)
    assert pool().nearest(np.array([0, 1, 1, -1])[np.argsort([M, ON, X, N])]) in range(32)
    assert pool().nearest(CODES[17]) == 17


def test_values_are_scaled_and_what_is_inactive_counts_as_what_it_amounts_to():
    scaled = pool().scaled(np.array([row_of("q", 8, 3), row_of("p", 1)]))
    assert scaled[:, X] == pytest.approx([7 / 15, 0.0])
    assert scaled[:, N] == pytest.approx([0.25, 0.0])
    assert scaled[:, M].tolist() == [1.0, 0.0]
    assert pool().scaled().shape == (32, 4)

    def knob(*values: Value, off: Value | None = None) -> Knob:
        return Knob(name="k", kind="dense", layer="", values=values, meaning="", sets="", off=off)

    assert _scale(knob(2, 4, 10, off=4)) == pytest.approx([0, 0.25, 1, 0.25])
    assert _scale(knob(2, 4, 10, off=20)).tolist()[-1] == 1.0
    assert _scale(knob(2, 4, 10, off=0)).tolist()[-1] == 0.0
    assert _scale(knob("a", "b", "c", off="a")) == pytest.approx([0, 0.5, 1, 0])
    assert _scale(knob(7)).tolist() == [0.0, 0.0]


def measured(c: Configuration, cost: float | None) -> Measurement:
    metrics = {} if cost is None else {"s": cost}
    return Measurement(configuration=c, name="", context="", status="error" if cost is None else "ok", metrics=metrics)


def driven(search, costs: dict[int, float | None], steps: int, **given) -> tuple[Sequential, list[int]]:
    made = Sequential("mine", search, SPACE, SPACE.feasible.configuration(5), 0, **given)
    asked = []
    for _ in range(steps):
        for c in made.ask():
            asked.append(SPACE.feasible.index(c))
            made.tell([measured(c, costs.get(asked[-1], 1.0))])
    return made, asked


def test_the_driver_measures_the_default_and_then_what_is_new():
    heard: list[float | None] = []

    def search(pool, rng):
        for row in (5, 7, 7, 5, 8):
            heard.append((yield row))

    made, asked = driven(search, {5: 3.0, 7: None, 8: 2.0}, 9)
    assert asked == [5, 7, 8]
    assert heard == [3.0, None, None, 3.0, 2.0]
    assert made.recommend() == SPACE.feasible.configuration(8)
    events = [e for e in made.drain() if isinstance(e, Decided)]
    assert [(e.step, e.phase, e.arm, e.why) for e in events] == [
        (1, "default", "MINE", "the reference, to compare with"),
        (2, "search", "MINE", "proposed by mine"),
        (3, "search", "MINE", "proposed by mine"),
    ]
    assert made.drain() == []


def test_asked_again_it_names_the_same_and_others_results_are_not_its_own():
    def search(pool: Pool, rng: np.random.Generator) -> Search:
        yield 6

    made = Sequential("mine", search, SPACE, SPACE.feasible.configuration(5), 0, patience=4)
    assert made.pool.patience == 4
    assert made.recommend() is None
    assert made.ask() == made.ask() == [SPACE.feasible.configuration(5)]
    assert len(made.drain()) == 1
    made.tell([measured(SPACE.feasible.configuration(9), 0.5)])
    assert not made.pool.known
    made.tell([measured(SPACE.feasible.configuration(5), 0.5)])
    made.tell([measured(SPACE.feasible.configuration(5), 0.1)])  # told already
    assert made.pool.known == {5: 0.5}
    made.switch_to_profiling()
    assert (made.pool.known, made.recommend()) == ({}, None)
    assert made.ask() == [SPACE.feasible.configuration(5)]


def test_after_fifteen_known_rows_a_random_one_is_measured():
    counts: list[int] = []

    def search(pool, rng):
        while True:
            counts.append(len(pool.known))
            yield 5

    _, asked = driven(search, {}, 4)
    assert len({*asked}) == 4
    # 15 · 31/32 = 14.5 known ones may come in a row, then the fifteenth is replaced; 15 · 30/32 = 14.06 …
    assert [counts.count(n) for n in (1, 2, 3)] == [15, 15, 14]
    assert driven(search, {}, 40)[1] != []
    assert len(driven(search, {}, 40)[1]) == 32
