"""The parts of Algorithm 1, each against the page that it comes from."""

import math

import numpy as np
import pytest
from landscape import measured, space_of, step_time
from threadpoolctl import threadpool_info, threadpool_limits

from autoscout.search.bandit import UCB1, mean_improvement
from autoscout.search.coordinates import Coordinates, next_point
from autoscout.search.hyper import PaperHyper
from autoscout.search.paper import Algorithm1, ToldCost
from autoscout.search.strategy import strategy
from autoscout.search.structure_tree import Tree
from autoscout.search.tournament import orderings, tournament
from autoscout.space.graph import Point
from kb.journal import Decided, Rewarded, TournamentRanked


def test_ucb1_is_equation_1():
    bandit = UCB1(c0=0.5, gamma=0.9)
    assert bandit.select(0) == "SPARSE"
    for arm, reward in (("SPARSE", 0.2), ("DENSE", 0.1), ("SPARSE", 0.0)):
        bandit.update(arm, reward)
    expected = {
        "SPARSE": 0.1 + 0.5 * 0.9**4 * math.sqrt(math.log(3) / 2),
        "DENSE": 0.1 + 0.5 * 0.9**4 * math.sqrt(math.log(3) / 1),
    }
    assert bandit.index(4) == pytest.approx(expected)
    assert bandit.select(4) == "DENSE"


def test_weak_priors_keep_the_means():
    bandit = UCB1(c0=0.5, gamma=0.9)
    for _ in range(10):
        bandit.update("SPARSE", 0.3)
    bandit.update("DENSE", 0.1)
    bandit.weaken(2.0)
    assert bandit.state() == {"SPARSE": [2.0, pytest.approx(0.3)], "DENSE": [1.0, pytest.approx(0.1)]}


def test_difference_of_differences():
    """Both columns and both rows of the grid are averaged; a failed candidate brings nothing, a failed base no news."""
    assert mean_improvement([(1.0, 0.8), (2.0, 1.0)], 0.0) == pytest.approx((0.2 + 0.5) / 2)
    assert mean_improvement([(1.0, None), (2.0, 1.0)], 0.0) == pytest.approx(0.25)
    assert mean_improvement([(None, 1.0)], 0.0) == 0.0


def test_a_tree_visits_every_structure_once_in_any_ordering():
    space = space_of("smallest-cpu")
    rng = np.random.default_rng(0)
    for ordering in orderings(space, 6, [], rng):
        tree = Tree(space, ordering, c_uct=0.05)
        closed = np.zeros(len(space.structures), dtype=bool)
        for _ in range(len(closed)):
            row = tree.propose(closed, rng)
            assert row is not None
            assert not closed[row]
            closed[row] = True
            tree.update(row, float(rng.random()))
        assert tree.propose(closed, rng) is None


def test_a_tree_goes_where_the_reward_is():
    space = space_of("tiny-gpt-cpu")
    rng = np.random.default_rng(0)
    tree = Tree(space, [k.name for k in space.sparse], c_uct=0.05)
    closed = np.zeros(len(space.structures), dtype=bool)
    proposed = []
    for _ in range(30):
        row = tree.propose(closed, rng)
        assert row is not None
        closed[row] = True
        proposed.append(space.structure(row)["cp"])
        tree.update(row, 0.9 if proposed[-1] == 2 else 0.1)
    share = np.mean([space.structure(i)["cp"] == 2 for i in range(len(closed))])
    assert proposed.count(2) / 30 > 1.5 * share


def test_a_rollout_like_the_base_changes_as_little_as_possible():
    space = space_of("tiny-gpt-cpu")
    base = space.row(space.split(space.reference)[0])
    assert base is not None
    closed = np.zeros(len(space.structures), dtype=bool)
    closed[base] = True
    for seed in range(5):
        tree = Tree(space, ["ar", *(k.name for k in space.sparse if k.name != "ar")], c_uct=0.05)
        row = tree.propose(closed, np.random.default_rng(seed), like=base)
        assert row is not None
        assert (
            1 <= int((space.structures[row] != space.structures[base]).sum()) <= 2
        )  # ar full also activates ar_method


def test_the_tournament_halves_zigzags_and_shares_rewards():
    space = space_of("tiny-gpt-cpu")
    rng = np.random.default_rng(0)
    trees = [Tree(space, ordering, 0.05) for ordering in orderings(space, 4, [], rng)]
    favourite = trees[2]
    closed = np.zeros(len(space.structures), dtype=bool)
    contest = tournament(trees, rng, closed)
    order = []
    tree, row = next(contest)
    try:
        while True:
            order.append(trees.index(tree))
            closed[row] = True
            tree, row = contest.send(1.0 if tree is favourite else 0.1 * trees.index(tree))
    except StopIteration as end:
        winner, rounds = end.value
    assert winner is favourite
    assert order == [0, 1, 2, 3, 3, 2]  # the second round goes backwards
    assert [r.kept for r in rounds] == [[2, 3], [0]]
    assert all(t.root.visits == 6 for t in trees)  # also those that were eliminated learned everything


def test_orderings_begin_with_the_winners_of_earlier_jobs():
    space = space_of("smallest-cpu")
    acting = {"pp", "tp", "cp", "dp", "vpp", "overlap_p2p", "sp", "ar", "ar_method", "distopt", "overlap_grad"}
    names = {*acting, "overlap_param"}
    found = orderings(space, 4, [["ar", "unknown_knob", "tp"]], np.random.default_rng(0))
    assert found[0][:2] == ["ar", "tp"]
    assert len(found) == 4
    assert all(len(o) == len(set(o)) and set(o) <= names for o in found)
    assert len({tuple(o) for o in found}) == 4


def test_the_dense_optimizer_keeps_momentum_and_turns_round():
    space = space_of("llama-3.2-3b", limit={"a40": [0]})
    s = space.structure(
        next(
            i
            for i in range(len(space.structures))
            if space.structure(i).get("overlap_grad") and space.structure(i)["dp"] == 8
        )
    )
    dense = Coordinates([knob.name for knob in space.dense])
    dense.active = dense.names.index("ddp_bucket")
    x: Point = {"mbs": 1, "ddp_bucket": 1}
    walked = []
    for improved in (True, True, False):
        moved = next_point(dense, space, s, x, lambda p: False)
        assert moved is not None
        walked.append(moved["ddp_bucket"])
        dense.update(improved)
        if improved:
            x = moved
    assert walked == [2, 8, 128]  # one step, then two, then four of the domain 1, 2, 4, …, 256
    assert dense.direction["ddp_bucket"] == -1
    assert dense.step["ddp_bucket"] == 1
    moved = next_point(dense, space, s, x, lambda p: False)
    assert moved is not None
    assert moved["mbs"] != 1  # after a failure another coordinate


def test_the_dense_optimizer_stays_on_the_mask_and_off_known_points():
    space = space_of("tiny-gpt-cpu")
    rng = np.random.default_rng(0)
    dense = Coordinates([knob.name for knob in space.dense])
    for _ in range(100):
        s, x = space.split(space.sample(rng))
        known = space.project(s, x)
        moved = next_point(dense, space, s, x, lambda p, known=known: p == known)
        assert moved is None or (moved != known and moved == space.project(s, moved))


def test_algorithm_1_runs_in_its_order():
    """Default, tournament of K + K/2 proposals, then 2×2 grids; rewards are those of the arm that was pulled."""
    space = space_of("tiny-gpt-cpu")
    chosen = strategy("paper", space, seed=3, hyper=PaperHyper(k=4))
    for _ in range(20):
        chosen.tell([measured(space, c) for c in chosen.ask()])
    events = chosen.drain()
    phases = [e.phase for e in events if isinstance(e, Decided)]
    assert phases[:7] == ["default", *["tournament"] * 6]
    assert set(phases[7:]) == {"search"}
    assert sum(isinstance(e, TournamentRanked) for e in events) == 2
    decided = {e.step: e for e in events if isinstance(e, Decided)}
    pulls = {"SPARSE": 0, "DENSE": 0}
    for rewarded in (e for e in events if isinstance(e, Rewarded)):
        pulls[decided[rewarded.step].arm] += 1
        pulls["DENSE"] += decided[rewarded.step].why.startswith(
            "the dense knobs have no step left here"
        )  # before this grid
        assert {arm: n for arm, (n, _) in rewarded.arms.items()} == pulls
        assert len(rewarded.costs) == 4


def test_a_grid_costs_at_most_two_new_experiments_after_the_first():
    space = space_of("tiny-gpt-cpu")
    chosen = strategy("paper", space, seed=0)
    known, new = set(), []
    for _ in range(40):
        batch = chosen.ask()
        new.append(len([c for c in batch if c.id not in known]))
        known |= {c.id for c in batch}
        chosen.tell([measured(space, c) for c in batch])
    assert max(new[8:]) <= 2
    assert min(new) >= 1


def simulate(search, run, batch, steps):
    """Answers `steps` batches with predictions that are half of the truth."""
    for _ in range(steps):
        batch = run.send([ToldCost(c, step_time(c) / 2, simulated=True) for c in batch])
    return batch


def test_after_the_fidelity_switch_the_favourites_come_first_and_predictions_are_forgotten():
    space = space_of("tiny-gpt-cpu")
    search = Algorithm1(space, space.reference, [], 0, PaperHyper(top_k=3))
    run = search.run()
    batch = simulate(search, run, next(run), 30)
    predicted = sorted((t for t in search.known.values()), key=lambda t: t.cost or 0.0)
    last = {c.id: ToldCost(c, step_time(c) / 2, simulated=True) for c in batch}
    favourites = [t.configuration.id for t in sorted([*predicted, *last.values()], key=lambda t: t.cost or 0.0)]
    favourites = list(dict.fromkeys(favourites))[:3]
    search.switched = True
    batch = run.send(list(last.values()))
    asked = []
    for _ in range(3):
        asked += [c.id for c in batch]
        batch = run.send([ToldCost(c, step_time(c)) for c in batch])
    assert asked == favourites
    assert all(not t.simulated for t in search.known.values())
    assert search.best is not None
    assert search.best.cost == min(step_time(t.configuration) for t in search.known.values())


def test_after_the_fidelity_switch_the_tree_is_searched_again():
    """Structures that were only simulated are open again, and the tree that was learned proposes them."""
    space = space_of("smallest-cpu")
    search = Algorithm1(space, space.reference, [], 0, PaperHyper())
    run = search.run()
    batch = simulate(search, run, next(run), 120)
    assert search.closed.all()
    search.switched = True
    for _ in range(20):
        batch = run.send([ToldCost(c, step_time(c)) for c in batch])
    reasons = [e.why for e in search.events if isinstance(e, Decided)][-10:]
    assert "tree search" in reasons


def test_a_switch_during_the_tournament_is_noticed_there():
    space = space_of("tiny-gpt-cpu")
    search = Algorithm1(space, space.reference, [], 0, PaperHyper(top_k=2))
    run = search.run()
    batch = simulate(search, run, next(run), 4)
    search.switched = True
    run.send([ToldCost(c, step_time(c) / 2, simulated=True) for c in batch])
    assert search.switched is False
    assert all(not t.simulated for t in search.known.values())


def test_the_search_computes_in_one_thread_and_leaves_everybody_else_theirs():
    def threads() -> set[int]:
        return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}

    seen: list[set[int]] = []

    def simulator(codes: np.ndarray) -> np.ndarray:
        seen.append(threads())
        return np.ones(len(codes))

    space = space_of("tiny-gpt-cpu")
    with threadpool_limits(2, user_api="blas"):
        outside = threads()
        chosen = strategy("autoscout", space, simulators={"flat": simulator})
        chosen.ask()
        assert threads() == outside == {2}
    assert seen
    assert set().union(*seen) == {1}
