"""What a search chooses from and who proposes it, by hand: the pool of rows, samples and moves, the beam over a
simulator's predictions, candidates that are renewed, and the proposers over gains that are given."""

import math

import numpy as np
import pytest

from autoscout.search import candidates, pool
from autoscout.search.belief import renewal
from autoscout.search.belief.encoding import Encoding
from autoscout.search.belief.renewal import Renewal
from autoscout.search.belief.surrogate import Surrogate
from autoscout.search.candidates import _finite, _fresh, _open, around, as_costs, beam, favourites, spread, towards
from autoscout.search.hyper import DefaultHyper
from autoscout.search.pool import CandidatePool, code_of
from autoscout.search.proposers import DenseArm, Proposal, SparseArm, by_model
from autoscout.space.graph import Space
from autoscout.space.knob import Knob
from kb.records import Configuration, Objective, Value

ROWS: list[dict[str, Value]] = [
    {"a": a, "b": b, "x": x, "y": y} for a in ("p", "q", "r") for b in (0, 1) for x in range(4) for y in range(3)
]
SPACE = Space.from_table(ROWS, ["a", "b"], ["x", "y"])
CODES = SPACE.feasible.codes
A, B, X, Y = (SPACE.knobs.index(SPACE.knob[name]) for name in "abxy")


def numbered(*values: Value, name: str = "k") -> Knob:
    return Knob(name=name, kind="dense", layer="", values=values, meaning="", sets="k")


def row_of(a: str, b: int, x: int, y: int) -> int:
    row = SPACE.feasible.index(Configuration({"a": a, "b": b, "x": x, "y": y}))
    assert row is not None
    return row


# ---- the pool -------------------------------------------------------------------------------------------------------


def test_a_value_s_code_is_its_place_or_that_of_the_nearest_number():
    assert [code_of(numbered(1, 4, 16), v) for v in (None, 4, 5, 2.5, 11, 99)] == [-1, 1, 1, 0, 2, 2]
    assert code_of(numbered("a", "b"), "c") == -1
    assert code_of(numbered("a", 7), True) == -1
    assert [code_of(numbered(False, True), v) for v in (True, 1)] == [1, -1]
    assert [code_of(numbered(0, 1), v) for v in (True, 1)] == [-1, 1]


def test_a_pool_that_lists_all():
    listed = CandidatePool(SPACE, np.random.default_rng(0), listed=72)
    assert (listed.complete, len(listed), listed.every) == (True, 72, 72)
    assert listed.levels() is listed.codes
    assert sorted(listed.sparse.tolist()) == sorted([A, B])
    assert sorted(listed.dense.tolist()) == sorted([X, Y])
    row = row_of("q", 1, 2, 0)
    assert listed.configuration(row) == Configuration({"a": "q", "b": 1, "x": 2, "y": 0})
    assert listed.row(listed.configuration(row)) == row
    assert listed.taken_in(Configuration({"a": "z"})) is None
    near = listed.near(row).tolist()
    differing = (CODES[row] != CODES).sum(axis=1)
    assert near == [*np.flatnonzero(differing == 1), *np.flatnonzero(differing == 2)]
    assert len(near) == (2 + 1 + 3 + 2) + (2 + 6 + 4 + 3 + 2 + 6)


def test_a_pool_that_samples_grows_at_its_end(monkeypatch):
    monkeypatch.setattr(pool, "_SAMPLE", 4)
    monkeypatch.setattr(pool, "_NEAR", 3)
    sampled = CandidatePool(SPACE, np.random.default_rng(0), listed=71)
    assert (sampled.complete, sampled.every) == (False, 72)
    assert 1 < len(sampled) <= 8
    assert len({row.tobytes() for row in sampled.codes}) == len(sampled)
    before = sampled.codes.copy()
    fresh = next(i for i in range(72) if not (before == CODES[i]).all(axis=1).any())
    assert sampled.add(CODES[[fresh, fresh]]).tolist() == [len(before)] * 2
    assert sampled.add(before[[1, 0]]).tolist() == [1, 0]
    assert sampled.codes[:-1].tolist() == before.tolist()
    assert sampled.codes[-1].tolist() == CODES[fresh].tolist()
    other = next(i for i in range(72) if not (sampled.codes == CODES[i]).all(axis=1).any())
    configuration = SPACE.feasible.configuration(other)
    assert sampled.row(configuration) is None
    assert sampled.taken_in(configuration) == len(before) + 1 == sampled.row(configuration)
    assert sampled.taken_in(Configuration({"a": "p", "b": 0, "x": 9, "y": 0})) is None
    assert sampled.encode(configuration).tolist() == CODES[other].tolist()
    levels = sampled.levels()
    assert levels.shape == (4, 4)
    assert [sorted({*levels[:, i].tolist()}) for i in (A, B, X, Y)] == [[0, 1, 2], [0, 1], [0, 1, 2, 3], [0, 1, 2]]
    assert len(sampled.near(0)) <= 3


def test_inactive_knobs_are_absent():
    space = Space.from_table([{"s": False}, {"s": True, "n": 1}, {"s": True, "n": 2}], ["s"], ["n"])
    found = CandidatePool(space, np.random.default_rng(0))
    assert {tuple(found.configuration(row).knobs) for row in range(3)} == {("s",), ("s", "n")}


# ---- samples and the beam -------------------------------------------------------------------------------------------


def test_moves_and_samples():
    moved = around(SPACE, CODES[[0, 30]])
    assert moved.dtype == np.int16
    assert len(moved) == 16
    assert all((moved[:8] != CODES[0]).sum(axis=1) == 1)
    assert all((moved[8:] != CODES[30]).sum(axis=1) == 1)
    assert around(SPACE, CODES[:0]).shape == (0, 4)
    drawn = spread(SPACE, 5, np.random.default_rng(1))
    rng = np.random.default_rng(1)
    assert drawn.tolist() == [*SPACE.sample_many(5, rng).tolist(), *SPACE.sample_varied(5, rng).tolist()]


def test_draws_lean_towards_the_values_of_what_is_good():
    good = CODES[[row_of("q", 1, 2, 0), row_of("q", 0, 2, 1)]]
    drawn = towards(SPACE, good, 2000, np.random.default_rng(0))
    share = {(i, code): np.mean(drawn[:, i] == code) for i in (A, B, X) for code in range(4)}
    q, two = SPACE.knob["a"].values.index("q"), 2
    # 0.8 of what is good, 0.2 evenly over the values and "inactive", which is not valid here.
    assert share[A, q] == pytest.approx((0.8 + 0.05) / (0.8 + 0.15), abs=0.03)
    assert share[X, two] == pytest.approx((0.8 + 0.04) / (0.8 + 0.16), abs=0.03)
    assert share[B, 0] == pytest.approx(0.5, abs=0.04)
    even = towards(SPACE, good, 2000, np.random.default_rng(0), even=1.0)
    assert np.mean(even[:, A] == q) == pytest.approx(1 / 3, abs=0.04)


def test_costs_of_a_metric():
    said = np.array([2.0, 0.0, -1.0, np.nan, np.inf])
    fast, slow = Objective(minimize="s"), Objective(maximize="r")
    assert as_costs(fast, lambda codes: said)(CODES) == pytest.approx(said, nan_ok=True)
    assert as_costs(slow, lambda codes: said)(CODES) == pytest.approx(
        [0.5, np.inf, np.inf, np.nan, np.inf], nan_ok=True
    )
    assert _finite(said).tolist() == [2.0, 0.0, -1.0, np.inf, np.inf]


def test_favourites_of_a_small_space_are_all_of_it_in_order():
    cost = np.arange(72)[::-1] // 2 * 1.0
    cost[5] = np.nan
    place = {row.tobytes(): c for row, c in zip(CODES, cost, strict=True)}
    codes, value = favourites(
        SPACE, lambda at: np.array([place[row.tobytes()] for row in at]), np.random.default_rng(0)
    )
    assert value[:71].tolist() == sorted(np.delete(cost, 5).tolist())
    assert value[71] == np.inf
    assert codes[:2].tolist() == CODES[[70, 71]].tolist()  # of equals the first


def bowl(at: np.ndarray) -> np.ndarray:
    return 1.0 + abs(at[:, X] - 2.0) + abs(at[:, Y] - 1.0) + 0.5 * (at[:, A] != 1) + 0.25 * at[:, B]


@pytest.mark.parametrize("start", [1, 3])
def test_a_beam_climbs_to_the_best_from_wherever_it_starts(monkeypatch, start):
    asked: list[int] = []

    def costs(at: np.ndarray) -> np.ndarray:
        asked.append(len(at))
        return bowl(at)

    codes, value = beam(SPACE, costs, np.random.default_rng(0), CODES[:1], start)
    assert value[0] == 1.0
    assert value.tolist() == sorted(value)
    assert bowl(codes) == pytest.approx(value)
    assert len({row.tobytes() for row in codes}) == len(codes) == sum(asked)
    assert codes.tolist().count(CODES[0].tolist()) == 1
    monkeypatch.setattr(candidates, "_LISTED", 71)
    monkeypatch.setattr(candidates, "_START", start)
    again, _ = favourites(SPACE, bowl, np.random.default_rng(0), CODES[:1])
    assert len(again) > 10
    monkeypatch.setattr(candidates, "_ROUNDS", 1)
    once, _ = beam(SPACE, bowl, np.random.default_rng(0), CODES[:1], 1)
    assert len(once) <= 3 + 16  # the start and what is around its two best of one layout
    nowhere, value = beam(SPACE, lambda at: np.full(len(at), np.nan), np.random.default_rng(0), None, 2)
    assert np.isinf(value).all()
    assert len(nowhere) <= 4


def test_a_beam_gives_up_after_three_rounds_without_a_gain(monkeypatch):
    rounds: list[int] = []

    def flat(at: np.ndarray) -> np.ndarray:
        rounds.append(len(at))
        return np.ones(len(at))

    monkeypatch.setattr(candidates, "_ALIKE", 100)
    wide = Space([numbered(0, 1, name=f"k{i}") for i in range(12)], [], {})
    beam(wide, flat, np.random.default_rng(0), None, 1)
    assert len(rounds) == 1 + 3  # the start, a first round, and two more before the third in vain


def test_at_most_two_of_a_layout_and_48_in_all_are_gone_on_from(monkeypatch):
    value = np.array([3.0, 1.0, 2.0, 5.0, 4.0, np.inf])
    codes = np.array([[0, i] for i in (0, 1, 2)] + [[1, i] for i in (3, 4, 5)], dtype=np.int16)
    order = np.argsort(value)
    assert _open(codes, value, order, [0], set()) == [1, 2, 4, 3]
    assert _open(codes, value, order, [0], {codes[2].tobytes()}) == [1, 4, 3]
    assert _open(codes, value, order, [], set()) == [1, 2]
    assert _open(codes, value, order, [0, 1], set()) == [1, 2, 0, 4, 3]
    monkeypatch.setattr(candidates, "_BEAM", 3)
    assert _open(codes, value, order, [0, 1], {codes[1].tobytes()}) == [2, 0]


def test_rows_are_fresh_once():
    known = {CODES[1].tobytes()}
    assert _fresh(CODES[[0, 1, 0, 2]], known).tolist() == CODES[[0, 2]].tolist()
    assert _fresh(CODES[[0, 1, 2]], known).tolist() == []


# ---- candidates that are renewed ------------------------------------------------------------------------------------


def sampled_pool(monkeypatch) -> CandidatePool:
    monkeypatch.setattr(pool, "_SAMPLE", 10)
    return CandidatePool(SPACE, np.random.default_rng(0), listed=1)


def test_where_knobs_are_few_what_is_near_is_drawn_evenly():
    """Six knobs are redrawn on average: of five all are, none of them more than that."""
    wide = Space([numbered(*range(12), name=f"k{i}") for i in range(5)], [], {})
    some = CandidatePool(wide, np.random.default_rng(0), listed=1)
    renewed = Renewal(some, np.random.default_rng(1))
    renewed._rounds = 2
    drawn = renewed.rows(np.array([0]), np.zeros(0, dtype=int))[:150]
    assert np.mean(some.codes[drawn] == some.codes[0]) == pytest.approx(1 / 12, abs=0.04)


def test_a_climb_goes_on_from_four_bases_and_every_third_round_draws(monkeypatch):
    some = sampled_pool(monkeypatch)
    monkeypatch.setattr(renewal, "_MOVED", 1)
    renewed = Renewal(some, np.random.default_rng(1))
    best, promising = np.arange(3), np.arange(2, 9)
    found = renewed.rows(best, promising)
    assert list(renewed._around) == [0, 1, 2, 3]
    expected = {tuple(c) for row in range(4) for c in around(SPACE, some.codes[[row]]).tolist()}
    assert {tuple(some.codes[row].tolist()) for row in found} == expected
    assert renewed._around[2].tolist() == some.add(around(SPACE, some.codes[[2]])).tolist()
    renewed.rows(best, promising)
    assert list(renewed._around) == list(range(8))
    drawn = renewed.rows(best, promising)  # the third round
    assert len(drawn) == 2 * 150 + 250 + 2 * 50
    assert list(renewed._around) == list(range(8))
    near = some.codes[drawn[:150]]
    # A quarter of the weights is even over the values and "inactive": so much of a knob's draws goes elsewhere.
    moves = sum(0.25 * (n - 1) / (n + 1) / (1 - 0.25 / (n + 1)) for n in (3, 2, 4, 3))
    assert np.mean((near != some.codes[0]).sum(axis=1)) == pytest.approx(moves, abs=0.15)
    renewed.rows(best, promising)
    assert list(renewed._around) == list(range(9))
    assert len(renewed.rows(best, promising)) == 650  # nothing is left to climb
    kept = renewed.renewed(np.array([0]), np.arange(72), np.arange(72.0))
    assert kept.tolist() == list(range(72))


def test_kept_are_the_most_promising_some_by_luck_and_what_is_beside_the_best(monkeypatch):
    some = sampled_pool(monkeypatch)
    monkeypatch.setattr(renewal, "_KEPT", 3)
    monkeypatch.setattr(renewal, "_LUCK", 2)
    renewed = Renewal(some, np.random.default_rng(1))
    renewed._around = {4: np.array([50, 51, 9])}
    looked, gain = np.arange(20, 60), np.zeros(40)
    gain[[7, 8, 9]] = 1.0, 3.0, 2.0
    kept = renewed.renewed(np.array([4]), looked, gain).tolist()
    assert {7, 8, 9, 30, 31} <= {*kept}
    assert 5 <= len(kept) <= 7
    assert len(renewed.renewed(np.array([5]), looked, gain)) == 5
    assert renewed._neighbours(np.array([*range(5, 13), 4])) == []  # of the eight best


# ---- proposers ------------------------------------------------------------------------------------------------------


def model(gains: dict[int, float]) -> Surrogate:
    """Gains as given; of all other rows −1."""
    listed = CandidatePool(SPACE, np.random.default_rng(0))
    made = Surrogate(listed, Encoding(SPACE.knobs, CODES), [], DefaultHyper(), np.random.default_rng(0))
    made.candidates = np.arange(72)[::-1].copy()
    made.gain = np.array([gains.get(int(row), -1.0) for row in made.candidates])
    return made


def proposed(arm: SparseArm | DenseArm, made: Surrogate, beside: np.ndarray) -> Proposal | None:
    """What an arm proposes where all experiments cost the same."""
    return arm.propose(made, made.gain, beside)


def by_value(made: Surrogate) -> Proposal | None:
    return by_model(made, made.gain)


def test_the_largest_gain_is_the_model_s_proposal():
    proposal = by_value(model({5: 0.1, 7: 0.3, 9: 0.0}))
    assert proposal is not None
    assert (proposal.row, proposal.arm, proposal.gain, proposal.base) == (7, "MODEL", 0.3, None)
    assert proposal.why == "largest expected improvement"
    nothing = by_value(model({5: 0.0}))
    assert nothing is not None
    assert nothing.row == 5
    assert by_value(model({})) is None


def test_the_tree_follows_gain_and_curiosity_down_its_ordering():
    best, other, third = row_of("p", 0, 1, 1), row_of("q", 1, 2, 2), row_of("p", 1, 0, 0)
    gains = {best: 0.8, other: 0.6, third: 0.1}
    visited = CODES[[best] * 5]
    greedy = proposed(SparseArm([A, B], 0.0), model(gains), visited)
    assert greedy is not None
    assert (greedy.row, greedy.arm, greedy.gain, greedy.why) == (best, "SPARSE", 0.8, "tree: a p → b 0")
    # a = p: 1 + c √(ln 6 / 6); a = q: 0.75 + c √(ln 6 / 1): equal at c = 0.25 / (√ln 6 (1 − √⅙)) = 0.3157
    for c, row in ((0.31, best), (0.32, other)):
        found = proposed(SparseArm([A, B], c), model(gains), visited)
        assert found is not None
        assert found.row == row
    by_b = proposed(SparseArm([B, A], 0.32), model(gains), visited)
    assert by_b is not None
    assert by_b.row == other
    assert by_b.why == "tree: b 1 → a q"
    only = proposed(SparseArm([A], 0.0), model({other: 0.0}), CODES[:0])
    assert only is not None
    assert (only.row, only.gain, only.why) == (other, 0.0, "tree search")
    assert proposed(SparseArm([A], 0.0), model({}), visited) is None


def test_visits_count_below_the_branch_that_was_taken():
    """Under a = p nothing was visited with b = 0 but once; elsewhere b = 0 was, often."""
    here, there = row_of("p", 0, 0, 0), row_of("p", 1, 0, 0)
    visited = CODES[[row_of("q", 0, 0, 0)] * 8 + [row_of("p", 1, 1, 1)]]
    found = proposed(SparseArm([A, B], 1.0), model({here: 0.5, there: 0.5}), visited)
    assert found is not None
    assert found.row == here


def test_an_inactive_knob_is_off_and_four_levels_are_named():
    rows: list[dict[str, Value]] = [{"s": 0}, {"s": 1, "n": 1}, {"s": 1, "n": 2}]
    space = Space.from_table(rows, ["s", "n"], [])
    listed = CandidatePool(space, np.random.default_rng(0))
    made = Surrogate(listed, Encoding(space.knobs, listed.codes), [], DefaultHyper(), np.random.default_rng(0))
    made.candidates = np.arange(3)
    off = next(row for row in range(3) if "n" not in listed.configuration(row).knobs)
    made.gain = np.where(made.candidates == off, 1.0, 0.5)
    columns = [space.knobs.index(space.knob[name]) for name in ("n", "s")]
    found = proposed(SparseArm(columns, 0.0), made, listed.codes[:0])
    assert found is not None
    assert found.why == "tree: n off"
    flat = Space([numbered(0, 1, name=n) for n in "abcde"], [], {})
    every = CandidatePool(flat, np.random.default_rng(0))
    made = Surrogate(every, Encoding(flat.knobs, every.codes), [], DefaultHyper(), np.random.default_rng(0))
    made.candidates, made.gain = np.arange(32), np.where(np.arange(32) == 0, 1.0, 0.5)
    found = proposed(SparseArm(list(range(5)), 0.0), made, every.codes[:0])
    assert found is not None
    assert found.why == "tree: a 0 → b 0 → c 0 → d 0"


def test_the_dense_arm_steps_beside_its_base_and_keeps_its_momentum():
    base = CODES[row_of("p", 0, 1, 1)]
    one, two, far = row_of("p", 0, 2, 1), row_of("p", 0, 3, 1), row_of("p", 0, 2, 2)
    gains = {one: 0.2, two: 0.4, far: 0.9, row_of("q", 0, 1, 1): 0.9, row_of("p", 0, 1, 0): 0.0}
    names = [knob.name for knob in SPACE.knobs]
    arm = DenseArm(names)
    found = proposed(arm, model(gains), base)
    assert found is not None
    assert (found.row, found.arm, found.gain, found.why) == (two, "DENSE", 0.4, "coordinate step")
    assert arm.coordinates() == {}
    arm.update(CODES[row_of("p", 0, 0, 1)], base, improved=True)  # one step of x up
    assert arm.coordinates() == {"x": [1, 2]}
    onward = proposed(arm, model(gains), base)
    assert onward is not None
    assert (onward.row, onward.why) == (two, "coordinate step with momentum")
    assert onward.gain == 0.4
    arm.update(CODES[two], CODES[one], improved=True)
    assert arm.coordinates() == {"x": [-1, 2]}
    elsewhere = proposed(arm, model(gains), base)  # x = −1 is nowhere
    assert elsewhere is not None
    assert elsewhere.why == "coordinate step"
    arm.update(CODES[one], CODES[two], improved=False)
    assert arm.coordinates() == {}
    arm.update(base, CODES[far], improved=True)  # two knobs at once
    assert arm.coordinates() == {}
    assert proposed(arm, model({far: 0.9}), base) is None
    only = proposed(arm, model({row_of("p", 0, 1, 0): 0.0}), base)
    assert only is not None
    assert only.gain == 0.0
    assert math.isfinite(only.gain)
