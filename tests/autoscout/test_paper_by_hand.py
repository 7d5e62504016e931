"""The published algorithm on spaces of a few rows, step by step: the dense optimizer's moves, the tree's choices, the
tournament's rounds, and what the orchestrator makes of a grid's costs."""

import math

import numpy as np
import pytest

from autoscout.search.bandit import mean_improvement
from autoscout.search.coordinates import Coordinates, next_point
from autoscout.search.hyper import PaperHyper
from autoscout.search.paper import STRATEGY, Algorithm1, Paper, ToldCost, _least
from autoscout.search.strategy import Search, strategy
from autoscout.search.structure_tree import Tree
from autoscout.search.tournament import orderings, tournament
from autoscout.space.graph import Point, Space, Structure
from autoscout.space.knob import Knob
from kb.journal import Decided, Rewarded
from kb.records import Configuration, Measurement, Objective, Value


def dense_space(**domains: int) -> Space:
    rows = [{}]
    for name, count in domains.items():
        rows = [{**row, name: v} for row in rows for v in range(count)]
    return Space.from_table(rows, [], list(domains))


def sparse_space(*rows: tuple[int, ...]) -> Space:
    return Space.from_table([dict(zip("abcd", row, strict=False)) for row in rows], list("abcd"[: len(rows[0])]), [])


# ---- the dense optimizer --------------------------------------------------------------------------------------------


def test_coordinate_steps_double_and_turn():
    space = dense_space(x=6, y=3)
    dense = Coordinates([knob.name for knob in space.dense])
    assert dense.state() == {"x": [1, 1], "y": [1, 1]}
    assert next_point(dense, space, {}, {"x": 0, "y": 1}, lambda p: False) == {"x": 1, "y": 1}
    dense.update(True)
    assert dense.state() == {"x": [1, 2], "y": [1, 1]}
    assert next_point(dense, space, {}, {"x": 1, "y": 1}, lambda p: False) == {"x": 3, "y": 1}
    dense.update(True)
    assert next_point(dense, space, {}, {"x": 3, "y": 1}, lambda p: False) == {
        "x": 5,
        "y": 1,
    }  # four steps reach the edge
    dense.update(False)
    assert dense.state() == {"y": [1, 1], "x": [-1, 1]}
    assert next_point(dense, space, {}, {"x": 3, "y": 1}, lambda p: False) == {"x": 3, "y": 2}
    dense.update(False)
    assert dense.state() == {"x": [-1, 1], "y": [-1, 1]}
    several = Coordinates(["x", "y", "z"])
    several.active = 1
    assert list(several.state()) == ["y", "z", "x"]


def test_where_a_step_is_known_a_shorter_one_and_then_the_other_way_are_tried():
    space = dense_space(x=7)
    dense = Coordinates([knob.name for knob in space.dense])
    dense.step["x"] = 2
    known: list[int] = []
    found = []
    while (moved := next_point(dense, space, {}, {"x": 3}, lambda p: p["x"] in known)) is not None:
        found.append((moved["x"], dense.direction["x"], dense.step["x"]))
        known.append(int(moved["x"]))
        dense.direction["x"], dense.step["x"] = 1, 2
    assert found == [(5, 1, 2), (4, 1, 1), (2, -1, 1)]
    assert next_point(dense, space, {}, {"x": 6}, lambda p: False) == {"x": 5}  # at the edge there is one way
    dense.direction["x"], dense.step["x"] = -1, 4
    assert next_point(dense, space, {}, {"x": 2}, lambda p: False) == {"x": 0}


def test_a_knob_with_one_value_is_passed_over():
    rows: list[dict[str, Value]] = [
        {"a": a, "x": x, "y": y} for a, x, y in ((0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 1, 1))
    ]
    space = Space.from_table(rows, ["a"], ["x", "y"])
    dense = Coordinates([knob.name for knob in space.dense])
    assert next_point(dense, space, {"a": 0}, {"x": 0, "y": 0}, lambda p: False) == {"x": 0, "y": 1}
    assert dense.active == 1
    assert next_point(dense, space, {"a": 0}, {"x": 0, "y": 0}, lambda p: True) is None


# ---- the tree -------------------------------------------------------------------------------------------------------


def test_urgency_is_uct_and_an_unvisited_branch_is_worth_a_share_of_the_best():
    space = sparse_space((0, 0), (0, 1), (1, 0), (1, 1), (2, 0))
    tree = Tree(space, ["a", "b"], c_uct=0.3, unvisited=0.5)
    root = tree.root
    assert (root.visits, root.best) == (0, 0.0)
    assert Tree(space, ["a", "b"], 0.3).unvisited == 0.9
    assert tree._urgency(root, 0) == 0.0
    tree.update(0, 0.8)
    assert tree._urgency(root, 0) == 0.8  # ln 1 = 0
    tree.update(1, 0.2)
    tree.update(2, 0.4)
    assert (root.visits, root.best) == (3, 0.8)
    assert (root.children[0].visits, root.children[0].best) == (2, 0.8)
    assert tree._urgency(root, 0) == pytest.approx(0.8 + 0.3 * math.sqrt(math.log(3) / 2))
    assert tree._urgency(root, 1) == pytest.approx(0.4 + 0.3 * math.sqrt(math.log(3) / 1))
    assert tree._urgency(root, 2) == pytest.approx(0.5 * 0.8 + 0.3 * math.sqrt(math.log(3) / 1))
    # One node a visit: the second visit below a = 0 made the node of (0, 1), the first one none.
    assert list(root.children[0].children) == [1]
    leaf = root.children[0].children[1]
    assert (leaf.visits, leaf.best, leaf.rows.tolist()) == (1, 0.2, [1])
    tree.update(1, 0.6)
    assert (leaf.visits, leaf.best) == (2, 0.6)


def test_the_most_urgent_open_branch_is_taken():
    space = sparse_space((0, 0), (0, 1), (1, 0), (1, 1))
    tree, rng = Tree(space, ["a", "b"], c_uct=0.0, unvisited=0.5), np.random.default_rng(0)
    closed = np.zeros(4, dtype=bool)
    for row, reward in ((0, 0.9), (1, 0.1), (2, 0.2), (3, 0.3)):
        tree.update(row, reward)
    # Below a = 0 (best 0.9) b = 1 is worth 0.1 and b = 0, which has no node, half of 0.9.
    assert [tree.propose(closed, rng) for _ in range(8)] == [0] * 8
    closed[0] = True
    assert [tree.propose(closed, rng) for _ in range(8)] == [1] * 8
    closed[1] = True
    assert [tree.propose(closed, rng) for _ in range(8)] == [3] * 8
    closed[:] = True
    assert tree.propose(closed, rng) is None


def test_a_rollout_is_uniform_or_as_near_as_it_can_be():
    space = sparse_space(*((a, b, c) for a in (0, 1) for b in (0, 1) for c in (0, 1)))
    tree, closed = Tree(space, ["a", "b", "c"], 0.0), np.zeros(8, dtype=bool)
    tree.update(0, 0.5)
    closed[0] = True  # a = 0 has a node and is open below: 0.5 against 0.45
    drawn = [tree.propose(closed, np.random.default_rng(seed)) for seed in range(40)]
    assert set(drawn) == {1, 2, 3}
    near = {tree.propose(closed, np.random.default_rng(seed), like=7) for seed in range(20)}
    assert near == {1, 3}  # the branch b is drawn, and below b = 0 row 1 is the nearest to (1, 1, 1), below b = 1 row 3
    fresh = Tree(space, ["a", "b", "c"], 0.0)
    assert {fresh.propose(closed, np.random.default_rng(seed)) for seed in range(60)} == {1, 2, 3, 4, 5, 6, 7}


# ---- the tournament -------------------------------------------------------------------------------------------------


def contest_of(trees, rewards, closed=None, like=None):
    """(the trees' places in the order of proposals, winner's place, rounds)"""
    closed = np.zeros(len(trees[0].root.rows), dtype=bool) if closed is None else closed
    contest, order = tournament(trees, np.random.default_rng(0), closed, like), []
    try:
        tree, row = next(contest)
        while True:
            order.append(trees.index(tree))
            closed[row] = True
            tree, row = contest.send(rewards[trees.index(tree)])
    except StopIteration as end:
        winner, rounds = end.value
    return order, trees.index(winner), rounds


def test_of_five_trees_two_and_then_one_stay():
    space = sparse_space(*((a, b) for a in range(6) for b in range(6)))
    trees = [Tree(space, ["a", "b"], 0.1) for _ in range(5)]
    order, winner, rounds = contest_of(trees, [0.1, 0.5, 0.5, 0.4, 0.2])
    assert order == [0, 1, 2, 3, 4, 2, 1]
    assert winner == 1  # of equals the first
    assert [(r.number, r.rewards, r.kept) for r in rounds] == [
        (0, [0.1, 0.5, 0.5, 0.4, 0.2], [1, 2]),
        (1, [0.5, 0.5], [0]),
    ]
    assert [len(r.orderings) for r in rounds] == [5, 2]
    assert contest_of([trees[0]], [0.0]) == ([], 0, [])


def test_a_tournament_on_a_space_that_ends_goes_to_the_first():
    space = sparse_space((0, 0), (0, 1), (1, 0))
    trees = [Tree(space, ["a", "b"], 0.1) for _ in range(4)]
    order, winner, rounds = contest_of(trees, [0.1, 0.2, 0.3, 0.4])
    assert (order, winner, rounds) == ([0, 1, 2], 0, [])


def test_orderings_bring_each_layer_to_the_front_once():
    knobs = [("a", "one"), ("b", "two"), ("c", "one"), ("d", "three"), ("e", "two")]
    space = Space(
        [
            Knob(name=n, kind="sparse", layer=layer, values=(0,) if n == "d" else (0, 1), meaning="", sets=n)
            for n, layer in knobs
        ],
        [],
        {},
    )
    rng = np.random.default_rng(0)
    assert orderings(space, 2, [], rng) == [["a", "c", "b", "e"], ["b", "e", "a", "c"]]
    assert orderings(space, 2, [["e", "e", "x"]], rng) == [["e", "a", "b", "c"], ["a", "c", "b", "e"]]
    many = orderings(space, 5, [], rng)
    assert len({tuple(o) for o in many}) == 5
    assert all(sorted(o) == ["a", "b", "c", "e"] for o in many)
    [one] = orderings(space, 0, [["e"]], np.random.default_rng(1))
    assert one == np.random.default_rng(1).permutation(["a", "b", "c", "e"]).tolist()
    assert orderings(sparse_space((0, 0), (1, 0)), 4, [], rng) == [["a"]]  # there is no other


# ---- the orchestrator -----------------------------------------------------------------------------------------------


GRID = Space.from_table([{"a": a, "x": x} for a in range(4) for x in range(5)], ["a"], ["x"])
CORNERS: list[tuple[Structure, Point]] = [({"a": a}, {"x": x}) for a in (0, 1) for x in (0, 1)]


def of(a: int, x: int) -> Configuration:
    return Configuration({"a": a, "x": x})


def algorithm(**hyper) -> Algorithm1:
    return Algorithm1(GRID, of(0, 0), [], 0, PaperHyper(**hyper))


def test_improvements_are_means_over_what_is_known():
    assert mean_improvement([(4.0, 3.0)], 0.0) == 0.25
    assert mean_improvement([(4.0, 5.0), (2.0, 1.0)], 0.0) == pytest.approx((-0.25 + 0.5) / 2)
    assert _least([None, 3.0, 2.0]) == 2.0
    assert _least([None, None]) is None


def test_rewards_are_a_half_for_the_default():
    search = algorithm()
    assert search._reward(3.0) == 0.0  # nothing to hold it against
    search.reference = 2.0
    assert (search._reward(2.0), search._reward(6.0), search._reward(None)) == (0.5, 0.25, 0.0)


@pytest.mark.parametrize(
    ("costs", "base", "control"),
    [
        ([4.0, 3.0, 2.0, 1.0], (1, 1), (1, 1)),
        ([1.0, 1.15, 1.15, 9.0], (0, 0), (1, 1)),  # just within the limit
        ([1.0, 1.16, 1.0, 9.0], (0, 0), (1, 0)),
        ([1.1, 1.0, 1.2, None], (0, 1), (0, 0)),
        ([None, 1.1, 1.3, 1.0], (1, 1), (0, 1)),
        ([None, None, 2.0, None], (1, 0), (1, 0)),
        ([None, None, None, None], (0, 0), (0, 0)),
    ],
)
def test_the_best_corner_becomes_the_base_and_what_is_hopeless_no_control(costs, base, control):
    found = algorithm()._advance(CORNERS, costs)
    assert found == (({"a": base[0]}, {"x": base[1]}), ({"a": control[0]}, {"x": control[1]}))


def test_a_grid_is_logged_with_its_interaction():
    search = algorithm()
    search.step = 7
    search._log_rewards([4.0, 3.0, 2.0, 1.5], 0.25, 0.5)
    search._log_rewards([4.0, 3.0, None, 1.5], 0.25, 0.5)
    with_it, without = (e for e in search.events if isinstance(e, Rewarded))
    assert with_it.interaction == ((4.0 - 2.0) - (3.0 - 1.5)) / 4.0
    assert (with_it.step, with_it.delta_sparse, with_it.delta_dense) == (7, 0.25, 0.5)
    assert without.interaction is None


def test_arms_take_turns_without_the_bandit_and_there_is_one_without_the_dense_optimizer():
    bandit = algorithm().bandit
    assert [algorithm(bandit=False)._arm(bandit, t) for t in (1, 2, 3)] == ["DENSE", "SPARSE", "DENSE"]
    assert [algorithm(dense=False)._arm(bandit, t) for t in (1, 2)] == ["SPARSE", "SPARSE"]
    bandit.update("SPARSE", 0.1)
    assert algorithm()._arm(bandit, 1) == "DENSE"


def walked(search: Algorithm1, cost, steps: int) -> list[tuple[Decided, Rewarded | None]]:
    run, found = search.run(), []
    try:
        batch = next(run)
        for _ in range(steps):
            batch = run.send([ToldCost(c, cost(c)) for c in batch])
    except StopIteration:
        pass
    rewards = {e.step: e for e in search.events if isinstance(e, Rewarded)}
    for event in search.events:
        if isinstance(event, Decided):
            found.append((event, rewards.get(event.step)))
    return found


def bowl(c: Configuration) -> float:
    return 1.0 + 0.5 * abs(int(str(c.knobs["a"])) - 2) + 0.2 * abs(int(str(c.knobs["x"])) - 3)


def test_the_first_decisions_of_a_search_on_a_bowl():
    """k = 0: no tournament. Near = 1: the tree's proposals are like the base."""
    search = algorithm(k=0, near=1.0)
    decided = walked(search, bowl, 200)
    (first, _), (second, reward) = decided[:2]
    assert (first.step, first.phase, first.arm, first.why) == (
        1,
        "default",
        "DEFAULT",
        "the reference, to compare with",
    )
    assert (first.configurations, first.values, first.coordinates) == ([of(0, 0)], {}, {})
    assert (second.step, second.phase, second.arm, second.why) == (2, "search", "SPARSE", "tree search")
    new = int(str(second.configurations[2].knobs["a"]))
    assert new > 0
    assert second.configurations == [of(0, 0), of(0, 1), of(new, 0), of(new, 1)]
    assert second.coordinates == {"x": [1, 1]}
    assert reward is not None
    bb, bc, cb, cc = costs = [bowl(c) for c in second.configurations]
    assert reward.costs == costs
    assert reward.delta_sparse == pytest.approx(((bb - cb) / bb + (bc - cc) / bc) / 2)
    assert reward.delta_dense == pytest.approx(((bb - bc) / bb + (cb - cc) / cb) / 2)
    assert reward.arms == {"SPARSE": [1.0, pytest.approx(max(reward.delta_sparse, 0))], "DENSE": [0.0, 0.0]}
    assert decided[2][0].arm == "DENSE"
    assert decided[2][0].why == "coordinate step"
    assert decided[-1][0].step == len(decided)
    assert len(search.known) == 20  # and then it ended by itself
    assert search.best is not None
    assert search.best.configuration == of(2, 3)
    assert [e.why for e, _ in decided if "no new neighbour" in e.why] != []
    assert {e.arm for e, _ in decided if "no new neighbour" in e.why} == {"SPARSE"}
    pulled = [(e.arm, r) for e, r in decided if r is not None]
    idle = sum(e.why.startswith("the dense knobs have no step left here: ") for e, r in decided if r is not None)
    assert idle > 0
    counts = {"SPARSE": sum(arm == "SPARSE" for arm, _ in pulled), "DENSE": sum(arm == "DENSE" for arm, _ in pulled)}
    for arm, share, pulls in (("SPARSE", "delta_sparse", 0), ("DENSE", "delta_dense", idle)):
        earned = [max(0.0, getattr(r, share)) for a, r in pulled if a == arm]
        assert pulled[-1][1].arms[arm] == [counts[arm] + pulls, pytest.approx(sum(earned) / (len(earned) + pulls))]


def test_the_arm_that_was_pulled_learns():
    """The dense optimizer turns round where a step of its own gains nothing, and not where the tree's does."""
    search = algorithm(k=0, bandit=False)
    run = search.run()
    batch = next(run)
    for _ in range(3):  # the default, a grid of the tree's, one of the dense optimizer's
        assert search.dense is None or search.dense.direction == {"x": 1}
        batch = run.send([ToldCost(c, 0.9 if c.knobs["x"] else 1.0) for c in batch])
    assert search.dense is not None
    assert (search.dense.direction, search.dense.step) == ({"x": -1}, {"x": 1})  # equal costs are no gain
    assert search.best is not None
    assert search.best.cost == 0.9


def test_the_best_or_what_there_is():
    search = algorithm()
    assert search._best_or({"a": 3}, {"x": 2}) == ({"a": 3}, {"x": 2})
    search.known = {c.id: ToldCost(c, cost) for c, cost in ((of(0, 1), None), (of(1, 2), 2.0), (of(2, 1), 1.5))}
    assert search._best_or({"a": 3}, {"x": 2}) == ({"a": 2}, {"x": 1})


def test_the_values_beside_a_decision_are_the_indices_of_arms_that_were_pulled():
    decided = walked(algorithm(k=0), bowl, 4)
    assert decided[1][0].values == {}
    assert list(decided[2][0].values) == ["ucb_SPARSE"]
    assert list(decided[3][0].values) == ["ucb_SPARSE", "ucb_DENSE"]
    before = decided[2][1]
    assert before is not None
    sparse, dense = (before.arms[arm] for arm in ("SPARSE", "DENSE"))
    bonus = 0.5 * 0.95**3 * math.sqrt(math.log(2) / 1)
    assert decided[3][0].values == pytest.approx({"ucb_SPARSE": sparse[1] + bonus, "ucb_DENSE": dense[1] + bonus})


def test_a_tournament_s_reasons_name_three_knobs():
    space = sparse_space(*((a, b, c, d) for a in (0, 1) for b in (0, 1) for c in (0, 1) for d in (0, 1)))
    default = space.feasible.configuration(0)
    search = Algorithm1(space, default, [["d", "c", "b", "a"]], 0, PaperHyper(k=2))
    run = search.run()
    batch = next(run)
    for _ in range(2):
        batch = run.send([ToldCost(c, 1.0) for c in batch])
    told = [e for e in search.events if isinstance(e, Decided)]
    assert [(e.phase, e.arm, len(e.configurations)) for e in told[1:]] == [("tournament", "SPARSE", 1)] * 2
    assert told[1].why == "tree that branches on d → c → b …"
    assert search.closed.sum() == 2


def test_a_fresh_configuration_is_random_and_at_last_the_only_one_left():
    search = algorithm()
    everything = list(GRID.configurations())
    for c in everything[:-1]:
        search.known[c.id] = ToldCost(c, None)
    assert search._fresh() == everything[-1]
    search.known[everything[-1].id] = ToldCost(everything[-1], 1.0)
    assert search._fresh() is None
    search.known.clear()
    drawn = GRID.sample(np.random.default_rng(5))
    search.rng = np.random.default_rng(5)
    assert search._fresh() == drawn


# ---- as a strategy --------------------------------------------------------------------------------------------------


def measured(c: Configuration, value: float, fidelity: str = "measured") -> Measurement:
    return Measurement(
        configuration=c,
        name="",
        context="",
        status="ok",
        metrics={"s": value},
        fidelity=fidelity,  # type: ignore
    )


def test_a_batch_that_is_told_in_part_is_asked_for_the_rest():
    space = Space.from_table(
        [{"a": a, "x": x} for a in range(4) for x in range(5)], ["a"], ["x"], Objective(minimize="s")
    )
    chosen = STRATEGY.make(Search(space=space, default=of(0, 0), hyper=PaperHyper(k=0)))
    assert isinstance(chosen, Paper)
    assert chosen.recommend() is None
    assert chosen.ask() == [of(0, 0)]
    assert chosen.ask() == [of(0, 0)]
    chosen.tell([measured(of(3, 3), 0.1)])  # nobody asked for it
    assert chosen.ask() == [of(0, 0)]
    chosen.tell([measured(of(0, 0), 2.0, "predicted")])
    batch = chosen.ask()
    assert len(batch) == 4
    assert chosen.search.known[of(0, 0).id].simulated
    chosen.tell([measured(c, 1.0) for c in batch[:3]])
    assert chosen.ask() == batch[3:]
    chosen.tell([measured(batch[3], 0.5)])
    chosen.ask()
    assert not chosen.search.known[of(0, 0).id].simulated
    assert chosen.recommend() == batch[3]
    assert len([e for e in chosen.drain() if isinstance(e, Decided)]) == 3
    assert chosen.drain() == []
    assert not chosen.search.switched
    chosen.switch_to_profiling()
    assert chosen.search.switched


def test_a_space_of_one_is_asked_for_once():
    alone = Space.from_table([{"a": 0, "x": 0}], ["a"], ["x"], Objective(minimize="s"))
    chosen = strategy("paper", alone)
    chosen.tell([measured(c, 1.0) for c in chosen.ask()])
    while batch := chosen.ask():
        chosen.tell([measured(c, 1.0) for c in batch])
    assert chosen.ask() == []
