"""DeepSpeed autotuning's searches, trial by trial."""

import math

import numpy as np
import pytest
from test_sequential_by_hand import CODES, X, pool, sent

from autoscout.space.graph import Space
from autoscout.studies.rivals.deepspeed import _performances, _rank, deepspeed
from autoscout.studies.rivals.deepspeed_grid import until_no_gain
from autoscout.studies.rivals.deepspeed_staged import _column, _plainest, runs_and_pays, staged, worth_more
from kb.records import Configuration


@pytest.mark.parametrize(
    ("patience", "costs", "tried"),
    [
        (3, [5, 4, 4, 4, 4, 4, 4], 4),
        (3, [5, None, 4, None, 4, 3, 3, 3, 3], 5),
        (None, [9] * 20, 5),
        (0, [9] * 40, 32),
    ],
)
def test_no_gain_for_so_many_trials_ends_a_search(patience, costs, tried):
    made = pool()
    made.patience = patience
    given = iter([*costs, *[9] * 40])
    assert sent(until_no_gain(made, range(32)), lambda row: next(given))[0] == list(range(tried))


def test_rows_that_are_known_are_left_out_and_their_best_is_to_beat():
    made = pool({0: 2.0, 1: None})
    made.patience = 2
    given = iter([3.0, 1.9, 2.5, 2.5])
    assert sent(until_no_gain(made, range(32)), lambda row: next(given))[0] == [2, 3, 4]
    made = pool({0: 2.0})
    made.patience = 2
    given = iter([1.9, 2.5, 2.5])
    assert sent(until_no_gain(made, range(32)), lambda row: next(given))[0] == [1, 2]


@pytest.mark.parametrize(
    ("sizes", "speeds", "tried", "found"),
    [
        ([1, 2, 4], {}, [1], (0, 0)),
        ([3], {3: 1.0}, [3], (3, 3)),
        ([1, 2, 4, 8], {1: 1, 8: 0.1}, [1, 8], (1, 8)),
        ([1, 2, 3, 4, 5, 6, 7, 8], {1: 1.0, 4: 2.0, 6: 2.1}, [1, 8, 4, 6, 7], (1, 6)),
        ([1, 2, 3, 4, 5, 6, 7, 8], {1: 1.0, 4: 2.0, 6: 2.09, 7: 9.0}, [1, 8, 4, 6], (1, 6)),  # gains less than 5 %
        ([1, 2, 3, 4, 5, 6, 7, 8], {1: 1.0, 2: 1.2, 3: 1.25}, [1, 8, 4, 2, 3], (1, 3)),
        ([1, 2, 4], {1: 1.0}, [1, 4, 2], (1, 1)),
        ([1, 2], {1: 1.0}, [1, 2], (1, 1)),
    ],
)
def test_the_largest_micro_batch_that_runs_and_pays(sizes, speeds, tried, found):
    assert sent(runs_and_pays(sizes), speeds.get) == (tried, found)


def test_of_the_upper_half_at_most_three_sizes_and_the_largest_are_kept():
    assert worth_more([1, 2, 4, 8], 8) == [4, 8]
    assert worth_more([1, 2, 3, 4, 5, 6, 7, 8, 9], 8) == [4, 6, 8]
    assert worth_more([4, 5, 6], 7) == [4, 5, 6, 7]  # from 7 // 2 on
    assert worth_more(list(range(10, 21)), 20) == [10, 14, 18, 20]
    assert worth_more([1, 2], 0) == []


ZERO = Space.from_table(
    [{"stage": s, "mbs": b, "off": o} for s in (0, 1, 2) for b in (1, 2, 4, 8) for o in (0, 1)],
    ["stage", "off"],
    ["mbs"],
)


def zero_of(row: int) -> tuple[int, int, int]:
    k = ZERO.feasible.configuration(row).knobs
    return int(str(k["stage"])), int(str(k["mbs"])), int(str(k["off"]))


def staged_on(cost, patience: int | None = 0) -> list[tuple[int, int, int]]:
    made = pool(space=ZERO, default=0)
    made.patience = patience
    search = staged(made, np.random.default_rng(0))

    def told(row: int) -> float | None:
        made.learn(row, cost(*zero_of(row)))
        return made.known[row]

    return [zero_of(row) for row in sent(search, told)[0]]


def test_stages_are_tuned_one_after_the_other():
    def runs(stage: int, mbs: int, off: int) -> float | None:
        return None if mbs > 2 * (stage + 1) else 10 / mbs - stage + off

    found = staged_on(runs)
    assert found[:4] == [(0, 1, 0), (0, 8, 0), (0, 4, 0), (0, 2, 0)] or found[:3] == [(0, 1, 0), (0, 8, 0), (0, 2, 0)]
    assert {f[1] for f in found if f[0] == 0 and f[2] == 1} == {1, 2}
    assert {f[1] for f in found if f[0] == 1 and f[2] == 1} == {2, 4}
    assert [f[0] for f in found] == sorted(f[0] for f in found)
    worse = staged_on(lambda s, b, o: None if b > 2 * (s + 1) else 10 / b + 9 * s + o)
    assert {f[2] for f in worse if f[0] == 1} == {0}  # no better than the stage before: no grid
    equal = staged_on(lambda s, b, o: None if b > 2 * (s + 1) else 5.0 + o)
    assert {f[2] for f in equal if f[0] == 1} == {0}
    smaller = staged_on(lambda s, b, o: None if b > 4 - 2 * s else 10 / b)
    assert {f[0] for f in smaller} == {0, 1}  # a smaller micro batch ends it all
    assert all(f[2] == 0 for f in smaller if f[0] == 1)


def test_the_plainest_row_of_each_micro_batch_and_the_columns_by_name():
    made = pool(space=ZERO, default=ZERO.feasible.index(Configuration({"stage": 1, "mbs": 2, "off": 1})) or 0)
    rows = np.array([row for row in range(24) if zero_of(row)[0] == 2])
    column = _column(made, ("none", "mbs")) or 0
    assert column == ZERO.knobs.index(ZERO.knob["mbs"])
    found = _plainest(made, rows, column)
    assert {size: zero_of(row) for size, row in found.items()} == {b: (2, b, 1) for b in (1, 2, 4, 8)}
    assert _column(made, ("none",)) is None
    assert _column(pool(), ("m",)) is None  # a name, not a number
    plain = staged(pool(dict.fromkeys(range(30))), np.random.default_rng(0))
    assert sent(plain, lambda row: 1.0)[0] == [30, 31]  # without these knobs everything in order


def test_ranking_trees_put_the_better_first():
    made = pool({1: 2.0, 4: None, 6: 0.5})
    rows, performance = _performances(made)
    assert (rows.tolist(), performance.tolist()) == ([1, 4, 6], [0.5, 0.0, 2.0])
    x = np.arange(6.0)[:, None]
    scores = _rank(x, np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), x)
    assert (np.diff(scores) >= 0).all()
    # Two rows: g = ±w, h = w (1 − w) each, with w = 1 / (1 + e^(s₁ − s₀)); a leaf adds 0.3 g / h to its own.
    pair, s = _rank(x[:2], np.array([1.0, 2.0]), x[:2]), 0.0
    for _ in range(10):
        w = 1 / (1 + math.exp(2 * s))
        s += 0.3 * w / max(w * (1 - w), 1e-6)
    assert pair == pytest.approx([-s, s])
    assert _rank(x[:2], np.array([1.0, 1.0]), x).tolist() == [0.0] * 6
    deep = _rank(np.arange(16.0)[:, None], np.arange(16.0), np.arange(16.0)[:, None])
    assert len({round(v, 9) for v in deep}) > 8  # ten trees of depth three


def test_deepspeed_explores_a_fifth():
    made, rng = pool({row: 1.0 + row % 5 for row in range(26)}), np.random.default_rng(1)
    explored: list[bool] = []

    def told(row: int) -> float:
        made.learn(row, 1.0 + float(CODES[row, X]))
        return made.known[row] or 0.0

    rows, _ = sent(deepspeed(made, rng), told)
    assert sorted(rows) == list(range(26, 32))
    for seed in range(5):
        made, rng = pool({0: 3.0, 1: 2.0}), np.random.default_rng(seed)
        row = next(deepspeed(made, rng))
        copy = np.random.default_rng(seed)
        explored.append(copy.random() < 0.2)
        known, performance = _performances(made)
        candidates = np.flatnonzero(made.open)
        scores = _rank(made.scaled(known), performance, made.scaled(candidates))
        assert row == (copy.choice(candidates) if explored[-1] else candidates[np.argmax(scores)])
    assert {True, False} == {*explored} or explored.count(True) == 0
