"""Where two things are equal, none is there, or a number is met exactly: what the searches do at their edges."""

import inspect
import math
from typing import Any

import numpy as np
import pytest
from test_autoscout_by_hand import measured, searching, simulator
from test_belief_by_definition import CODES as TOLD
from test_belief_by_definition import ENCODING, knob
from test_belief_by_definition import drawn as of_24
from test_candidates_by_hand import CODES as ROWS
from test_candidates_by_hand import SPACE, bowl, model, numbered
from test_paper_by_hand import GRID, algorithm, contest_of, of, sparse_space
from test_prior_means_by_hand import LOG, POOL, saying
from test_sequential_by_hand import driven, pool
from test_surrogate_by_definition import told

from autoscout.search import candidates
from autoscout.search.autoscout import AutoScout
from autoscout.search.belief import feasibility
from autoscout.search.belief.by_value import by_value
from autoscout.search.belief.encoding import Encoding
from autoscout.search.belief.feasibility import Feasibility
from autoscout.search.belief.outlook import worth
from autoscout.search.belief.posterior import Posterior, Prior
from autoscout.search.belief.ranking import Ranking
from autoscout.search.hyper import DefaultHyper
from autoscout.search.paper import ToldCost
from autoscout.search.proposers import DenseArm, Proposal, SparseArm
from autoscout.search.strategy import Search, strategy
from autoscout.search.structure_tree import Tree
from autoscout.search.tournament import orderings
from autoscout.space.graph import Space
from kb.journal import Decided
from kb.records import Measurement, Objective, Value


class Always(np.random.Generator):
    """Its random shares are all the same."""

    def __init__(self, share: float) -> None:
        super().__init__(np.random.PCG64(0))
        self.share = share

    def random(self, *given: Any, **named: Any) -> Any:
        size = given[0] if given else named.get("size")
        return self.share if size is None else np.full(size, self.share)


# ---- candidates and proposers ---------------------------------------------------------------------------------------


def test_a_space_with_as_many_rows_as_are_listed_is_listed(monkeypatch):
    monkeypatch.setattr(candidates, "_LISTED", 72)
    codes, value = candidates.favourites(SPACE, bowl, np.random.default_rng(0))
    assert len(codes) == 72
    assert value.tolist() == sorted(bowl(ROWS))


def test_a_beam_s_patience_begins_anew_with_every_gain(monkeypatch):
    """Of twelve switches the first ones that are on count: each round gains one at least, and after the last gain three
    rounds more are waited for."""
    monkeypatch.setattr(candidates, "_ALIKE", 2)
    monkeypatch.setattr(candidates, "_PATIENCE", 1)
    best: list[float] = []

    def leading(at: np.ndarray) -> np.ndarray:
        value = 6.0 - np.minimum(np.cumprod(at, axis=1).sum(axis=1), 6)
        best.append(min([*best, *value.tolist()]))
        return value

    wide = Space([numbered(0, 1, name=f"k{i}") for i in range(12)], [], {})
    _, value = candidates.beam(wide, leading, np.random.default_rng(3), np.zeros((1, 12), np.int16), 1)
    assert value[0] == 0.0
    gained = [b for a, b in zip([math.inf, *best], best, strict=False) if b < a]
    assert len(gained) >= 3
    assert best == [*gained, 0.0]  # one round in vain


def proposed(arm: SparseArm | DenseArm, made: Any, beside: np.ndarray) -> Proposal | None:
    return arm.propose(made, made.gain, beside)


NAMES = [knob.name for knob in SPACE.knobs]


def test_steps_end_where_gains_do():
    """A gain of exactly zero counts for the tree and for steps, a smaller one does not."""
    base = ROWS[0]
    beside = int(next(r for r in range(72) if (ROWS[r] != base).sum() == 1 and (ROWS[r, :2] == base[:2]).all()))
    found = proposed(DenseArm(NAMES), model({beside: 0.0}), base)
    assert found is not None
    assert (found.row, found.gain) == (beside, 0.0)
    assert proposed(DenseArm(NAMES), model({beside: -0.5}), base) is None
    assert DenseArm(NAMES).coordinates() == {}
    tree = proposed(SparseArm([0, 1], 0.1), model({3: 0.0, 9: -1e-9}), ROWS[:1])
    assert tree is not None
    assert tree.row == 3


# ---- what rivals share ----------------------------------------------------------------------------------------------


def test_the_best_is_the_cheapest_and_of_equals_the_first():
    assert pool({4: 0.5, 2: 0.0}).best == 2
    assert pool({4: 0.0, 2: -0.5}).best == 2
    assert pool({4: 1.0, 2: 1.0, 7: None}).best == 4


def test_known_rows_in_a_row_are_counted_anew_after_one_that_is_not():
    counts: list[int] = []

    def search(pool, rng):
        yield 5
        yield 5
        yield 6
        while True:
            counts.append(len(pool.known))
            yield 5

    driven(search, {}, 4)
    # Two known ones before row 6 do not count: then 15 · 30/32 = 14.06 may come, and the fifteenth is replaced.
    assert counts.count(2) == 15


def test_a_row_of_a_space_of_one_is_no_search():
    alone = Space.from_table([{"x": 1}], [], ["x"])
    made = pool(space=alone, default=0)
    assert made.distance(np.array([0])).tolist() == [0.0]
    assert made.scaled().tolist() == [[0.0]]


# ---- the published algorithm ----------------------------------------------------------------------------------------


def test_the_cheapest_of_the_paper_s_is_the_first_of_equals():
    search = algorithm()
    assert search.best is None
    for a, cost in ((0, None), (1, 0.5), (2, 0.0), (3, 0.0)):
        search.known[of(a, 0).id] = ToldCost(of(a, 0), cost)
    assert search.best is not None
    assert search.best.configuration == of(2, 0)


def test_two_hundred_draws_look_for_what_is_new():
    search, copy = algorithm(), np.random.default_rng(8)
    for c in GRID.configurations():
        search.known[c.id] = ToldCost(c, 1.0)
    search.rng = np.random.default_rng(8)
    assert search._fresh() is None
    for _ in range(200):
        GRID.sample(copy)
    assert search.rng.random() == copy.random()


def test_a_proposal_is_like_the_base_where_a_share_below_near_is_drawn():
    search = algorithm(k=1, near=0.5)
    tree = Tree(GRID, ["a"], search.hyper.c_uct)
    search.rng = Always(0.5)
    asked: list[int | None] = []
    plain = tree.propose

    def propose(closed, rng, like=None):
        asked.append(like)
        return plain(closed, rng, like)

    tree.propose = propose  # type: ignore[method-assign]
    search._next_structure(tree, {"a": 0})
    search.rng = Always(0.49)
    search._next_structure(tree, {"a": 0})
    assert asked == [None, GRID.row({"a": 0})]
    search.closed[:] = True
    assert search._next_structure(tree, {"a": 0}) == ({"a": 0}, "every combination of sparse knobs was tried")


def test_favourites_of_the_simulators_are_profiled_cheapest_first():
    search = algorithm(top_k=2, k=0)
    costs = {(0, 0): 3.0, (1, 0): 1.0, (2, 0): 2.0, (3, 0): None, (0, 1): 1.0}
    for (a, x), cost in costs.items():
        search.known[of(a, x).id] = ToldCost(of(a, x), cost, simulated=True)
    search.known[of(1, 1).id] = ToldCost(of(1, 1), 0.1)
    switching, asked = search._switch_to_profiling(), []
    batch = next(switching)
    try:
        while True:
            asked += batch
            batch = switching.send([ToldCost(c, 1.0) for c in batch])
    except StopIteration:
        pass
    assert asked == [of(1, 0), of(0, 1)]  # of equals the first; what was measured is none of them
    assert {c.id for c in (of(1, 1), of(1, 0), of(0, 1))} == set(search.known)
    assert search._restart
    assert search.closed.tolist() == [GRID.structure(row)["a"] in (0, 1) for row in range(4)]
    told = [e for e in search.events if isinstance(e, Decided)]
    assert {(e.phase, e.arm, e.why) for e in told} == {("search", "SPARSE", "one of the simulators' favourites")}


def test_trees_propose_forwards_and_backwards_in_turn():
    space = sparse_space(*((a, b) for a in range(6) for b in range(6)))
    trees = [Tree(space, ["a", "b"], 0.1) for _ in range(8)]
    order, winner, rounds = contest_of(trees, [0.1, 0.9, 0.2, 0.8, 0.3, 0.7, 0.6, 0.4])
    assert order == [*range(8), 6, 5, 3, 1, 1, 3]
    assert [r.kept for r in rounds] == [[1, 3, 5, 6], [0, 1], [0]]
    assert winner == 1


def test_ten_orderings_for_each_that_is_wanted_are_drawn_at_most():
    rng, copy = np.random.default_rng(2), np.random.default_rng(2)
    assert orderings(sparse_space((0, 0), (1, 0)), 4, [], rng) == [["a"]]
    for _ in range(40):
        copy.permutation(["a"])
    assert rng.random() == copy.random()


# ---- beliefs --------------------------------------------------------------------------------------------------------


def test_a_belief_without_axes_has_one_length_that_nothing_depends_on():
    alone = Encoding([knob("x", 1, 2)], np.array([[1]]))
    made = Posterior(alone, Prior())
    assert len(made.log_theta) == 5
    rows = alone.rows(np.array([[1], [1], [1]]))
    made.fit(rows, np.array([0.1, -0.1, 0.05]), np.zeros((3, 0)), np.zeros(0), iterations=3)
    pairs = made._pairs(rows, np.zeros((3, 0)), np.zeros(0), 0.0)
    assert pairs.gaps.tolist() == [[0.0] * 3]
    assert math.isfinite(made.evidence)


def test_a_doubted_measurement_is_believed_less():
    rows = [(POOL.configuration(row), float(np.exp(LOG[row]))) for row in (3, 17, 29, 41, 50)]
    plain = {b.configuration.id: b.deviation for b in Ranking(POOL.space, rows).believed}
    doubted = Ranking(POOL.space, rows, {rows[1][0].id: 2.0})
    found = {b.configuration.id: b.deviation for b in doubted.believed}
    assert found[rows[1][0].id] > 1.5 * plain[rows[1][0].id]


def test_rows_told_since_are_taken_in_when_those_far_from_the_boundary_are_dropped(monkeypatch):
    monkeypatch.setattr(feasibility, "_HELD", 10)
    rows, _, _ = of_24(17, 5)
    ran = (TOLD[rows, 0] < 2) | (TOLD[rows, 3] < 0)
    learned = Feasibility(ENCODING)
    assert learned._across.shape == (0, 0)
    every = learned.features(ENCODING.rows(TOLD))
    learned.tell(learned.features(ENCODING.rows(TOLD[rows[:12]])), ran[:12])
    learned.watch(every)
    learned.fit()
    learned.chance(np.ones(24))
    assert learned._across.shape == (12, 24)
    learned.tell(learned.features(ENCODING.rows(TOLD[rows[12:]])), ran[12:])
    kept = np.sort(np.argsort(np.abs(learned._logit), kind="stable")[:10])
    assert {*kept.tolist()} & {12, 13, 14, 15, 16} != set()
    learned.fit()
    assert len(learned._across) == (kept < 12).sum()
    fresh = Feasibility(ENCODING)
    fresh.tell(fresh.features(ENCODING.rows(TOLD[rows[kept]])), ran[kept])
    fresh.watch(every)
    fresh.fit()
    assert learned.chance(np.ones(24)) == pytest.approx(fresh.chance(np.ones(24)), abs=5e-3)
    unwatched = Feasibility(ENCODING)
    unwatched.tell(unwatched.features(ENCODING.rows(TOLD[rows])), ran)
    unwatched.watch(every)
    unwatched.fit()  # nothing was asked of it: no covariances to drop
    assert unwatched._across.shape == (0, 24)
    # The mode, where the slope of the posterior is zero.
    k = feasibility._covariance(*[fresh.features(ENCODING.rows(TOLD[rows[kept]]))] * 2).astype(float)
    pull = ran[kept] - 1 / (1 + np.exp(-fresh._logit))
    assert fresh._logit == pytest.approx(1 + k @ pull, abs=1e-3)


# ---- the default search ---------------------------------------------------------------------------------------------


def test_a_misleading_simulator_is_doubted_on_every_second_step_while_points_are_left():
    search = searching(simulators={"sim": saying(np.exp(-LOG))}, hyper=DefaultHyper(opening=4))
    expected = search.model.members[1].mean.expected(np.arange(60))
    told: list[Decided] = []
    for _ in range(12):
        [c] = search.ask()
        told += [e for e in search.drain() if isinstance(e, Decided)]
        search.tell([measured(c)])
    far = [d for d in told if d.why == "far from all configurations tried so far"]
    assert {d.phase for d in far} == {"opening"}
    assert all(d.step % 2 == 0 for d in far)
    assert len(far) == 3
    assert search._apart == 0
    rows = [int(POOL.row(d.configurations[0]) or 0) for d in far]
    for row in (rows[0], rows[2]):  # the first and the third of the quarter that is predicted best
        assert expected[row] <= np.quantile(expected, 0.4)


def test_a_measurement_s_doubt_reaches_the_belief():
    search = searching()
    sure, doubted = measured(POOL.configuration(7)), measured(POOL.configuration(9))
    doubted.conditions["doubt"] = 0.3
    search.tell([sure, doubted])
    assert (search.model.doubts.get(7, 0.0), search.model.doubts[9]) == (0.0, 0.3)


def test_all_rows_of_a_space_are_told_before_it_ends():
    search = searching(default=None, simulators=simulator(), hyper=DefaultHyper(simulators=False))
    search.pending = dict.fromkeys(range(59))
    search._worthwhile = False
    assert search._open_rows().tolist() == [59]
    assert search.ask() == [POOL.configuration(59)]
    assert search.ask() == []


def test_the_uncertainty_beside_a_decision_is_its_own():
    search, seen = searching(), 0
    for _ in range(14):
        [c] = search.ask()
        for d in search.drain():
            if isinstance(d, Decided) and d.values:
                at = search.model.candidates.tolist().index(POOL.row(c) or 0)
                assert d.values["uncertainty"] == float(search.model.deviation[at])
                seen += 1
        search.tell([measured(c)])
    assert seen >= 3


def test_where_most_failed_the_half_with_the_better_chances_may_run():
    """The median itself, the least of that half, too."""
    search = searching()
    rows = np.arange(0, 60, 4)
    runs = LOG[rows] <= np.quantile(LOG[rows], 0.3)
    search.tell(
        [measured(POOL.configuration(int(r)), "ok" if ok else "error") for r, ok in zip(rows, runs, strict=True)]
    )
    odd = np.arange(59)
    may = search._may_run(odd, np.median)
    found = search.model.chances.chance(odd, np.ones(59))
    assert float(np.median(found)) < 0.5
    assert may.tolist() == (found >= np.median(found)).tolist()
    assert may.sum() == 30


def test_what_fails_as_often_as_it_runs_is_not_tried_first():
    search = searching(default=None, simulators=simulator())
    mean = next(m.mean for m in search.model.members if m.mean.foresees)
    mean.fails = np.where(np.arange(60) < 20, 0.49, 0.5)
    assert search._open_rows().tolist() == list(range(20))


def test_without_knobs_of_its_kind_an_arm_proposes_nothing():
    rows: list[dict[str, Value]] = [{"x": x, "y": y} for x in range(6) for y in range(6)]
    for sparse, dense, lacking in ((["x", "y"], [], "DENSE"), ([], ["x", "y"], "SPARSE")):
        space = Space.from_table(rows, sparse, dense, Objective(minimize="s"))
        search = AutoScout(Search(space=space))
        for row in range(0, 30, 5):
            c = space.feasible.configuration(row)
            search.tell([Measurement(configuration=c, name="", context="", status="ok", metrics={"s": 1.0 + row % 4})])
        search.model.update([])
        arms = [p.arm for p in search._proposals()]
        assert lacking not in arms
        assert "MODEL" in arms


def test_a_search_is_of_one_at_a_time_with_seed_0_unless_it_is_told_otherwise():
    plain = Search(space=SPACE)
    assert (plain.batch, plain.seed, plain.patience, plain.default) == (1, 0, None, None)
    assert inspect.signature(strategy).parameters["seed"].default == 0


def test_a_gain_that_is_exactly_what_hardly_pays_is_not_worthwhile():
    def first_choice(explore: float) -> tuple[float, bool]:
        search = searching(hyper=DefaultHyper(opening=4, explore=explore))
        for _ in range(4):
            [c] = search.ask()
            search.tell([measured(c)])
        search.drain()
        search.ask()
        [d] = [e for e in search.drain() if isinstance(e, Decided)]
        return max(v for name, v in d.values.items() if name.startswith("gain_")), search._worthwhile

    gain, _ = first_choice(0.003)
    assert first_choice(gain) == (gain, False)
    assert first_choice(gain * 0.99) == (gain, True)


def test_what_runs_as_often_as_it_fails_counts_as_usable():
    model = told()
    model.update([])
    model.runs = np.full(len(model.candidates), 0.5)
    free = ~np.isin(model.candidates, model.rows)
    here, _ = worth(model)
    for column, axis in enumerate(POOL.space.knobs):
        for code, value in enumerate(by_value(model)[axis.name]):
            there = POOL.codes[model.candidates[free], column] == code
            measured_there = POOL.codes[model.rows, column] == code
            least = min([*model.mean[free][there], *here[measured_there]])
            assert value.cost == pytest.approx(math.exp(model.log_cost(float(least)) - float(model.logs.min())))
