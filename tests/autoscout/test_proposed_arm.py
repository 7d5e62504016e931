"""Ideas of others: good ones are found soon, bad ones cost themselves and nothing else."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from autoscout.search.proposed import ProposedArm
from autoscout.search.strategy import Proposed, Strategy, strategy
from autoscout.space.graph import Space
from kb.journal import PROPOSED, Decided
from kb.records import Configuration, Measurement, Objective

VALUES = {"a": range(8), "b": range(8), "c": range(4), "d": ["x", "y", "z"], "e": [False, True]}
ROWS = [dict(zip(VALUES, row, strict=True)) for row in itertools.product(*VALUES.values())]
BEST = {"a": 6, "b": 2, "c": 3, "d": "y", "e": True}


def space() -> Space:
    columns = {name: [row[name] for row in ROWS] for name in VALUES}
    return Space.from_table(columns, ["d", "e"], ["a", "b", "c"], Objective(minimize="time_s"))


def cost(knobs: dict[str, object]) -> float | None:
    """None: it fails, which all neighbours of the best do that have another `d`."""
    apart = sum(abs(knobs[k] - BEST[k]) for k in "abc")  # type: ignore[operator]
    if knobs["d"] != "y" and apart <= 3:
        return None
    return 1 + 0.15 * apart + 0.4 * (knobs["d"] != "y") + 0.3 * (not knobs["e"])


def searched(ideas: list[dict[str, object]], count: int, seed: int = 1) -> list[tuple[str, dict[str, object]]]:
    """(arm, knobs) of each experiment."""
    proposed = [Proposed(configuration=Configuration(k), by="ann", why="") for k in ideas]  # type: ignore[arg-type]
    search: Strategy = strategy("autoscout", space(), seed=seed, proposed=proposed)
    found: list[tuple[str, dict[str, object]]] = []
    for _ in range(count):
        (asked,) = search.ask()
        (decided,) = [e for e in search.drain() if isinstance(e, Decided)]
        found.append((decided.arm, dict(asked.knobs)))
        value = cost(asked.knobs)  # type: ignore[arg-type]
        status, metrics = ("oom", {}) if value is None else ("ok", {"time_s": value})
        search.tell([Measurement(configuration=asked, name="x", context="x", status=status, metrics=metrics)])
    return found


def near(wanted: Callable[[dict[str, object]], bool]) -> list[dict[str, object]]:
    apart = [sum(row[k] != BEST[k] for k in row) for row in ROWS]
    return [ROWS[i] for i in np.argsort(apart, kind="stable") if wanted(ROWS[i])][:6]


FAILING = near(lambda row: cost(row) is None)
SLOW = sorted((row for row in ROWS if cost(row)), key=lambda row: -(cost(row) or 0))[:6]


@pytest.mark.parametrize("ideas", [FAILING, SLOW], ids=["failing beside the best", "slowest of all"])
def test_bad_ideas_cost_themselves_and_change_nothing_else(ideas: list[dict[str, object]]):
    cold, told = searched([], 15), searched(ideas, 16)
    assert [arm for arm, _ in told].count(PROPOSED) == 1
    assert [knobs for arm, knobs in told if arm != PROPOSED] == [knobs for _, knobs in cold]


def test_a_good_idea_after_an_ordinary_one_is_tried_soon():
    good, ordinary = {**BEST, "a": 5}, {"a": 3, "b": 4, "c": 1, "d": "y", "e": False}
    told = searched([ordinary, good], 6)
    assert [knobs for arm, knobs in told if arm == PROPOSED] == [ordinary, good]


def test_a_search_without_ideas_has_no_such_arm():
    assert PROPOSED not in {arm for arm, _ in searched([], 12)}


def arm_with(*others: float) -> ProposedArm:
    from autoscout.search.pool import CandidatePool

    arm = ProposedArm(CandidatePool(space(), np.random.default_rng(0)))
    for row, value in enumerate(others):
        arm.tell(row, value, 1.0, ours=False)
    return arm


def test_who_is_always_wrong_has_one_trial_in_a_hundred_experiments_after_the_first_two():
    arm, trials = arm_with(1.0, 2.0, 3.0), 0
    far = np.random.default_rng(1).permutation(len(ROWS))
    for step, row in enumerate(far[:200]):
        arm.add(int(far[-1 - step]), "ann", "")
        if (idea := arm.first([])) is not None:
            trials += 1
            assert arm.tell(idea.row, None, 1.0, ours=True)
        elif row > 2:
            arm.tell(int(row), 1.5, 1.0, ours=False)
    assert 2 <= trials <= 4


def test_a_trial_that_wins_earns_credit_and_one_that_takes_long_costs_more():
    won, lost, dear = (arm_with(1.0, 2.0, 3.0) for _ in range(3))
    assert not won.tell(700, 0.5, 1.0, ours=True)
    assert lost.tell(700, 9.0, 1.0, ours=True)
    assert dear.tell(700, 9.0, 3.0, ours=True)
    assert won.credit > 1.75 > lost.credit > dear.credit


def test_an_idea_earns_nothing_by_running_where_the_others_failed():
    """It did: the slowest of all were among the better half of openings that mostly failed, and four were tried."""
    arm = arm_with(1.0)
    for row in (1, 2, 3):
        arm.tell(row, None, 1.0, ours=False)
    assert arm.tell(700, 9.0, 1.0, ours=True)
    assert arm.credit < 1.75
    none_ran = arm_with()
    assert not none_ran.tell(700, 9.0, 1.0, ours=True)  # the first that runs is heard
    assert none_ran.tell(701, 9.5, 1.0, ours=True)


def test_an_idea_like_one_that_failed_is_not_tried_and_another_one_is():
    arm = arm_with(1.0, 2.0, 3.0)
    arm.credit = 3.0
    knobs = [(7, 7, 3, "z", True), (7, 7, 3, "z", False), (1, 3, 2, "x", False)]
    rows = [space().feasible.index(Configuration(dict(zip(VALUES, each, strict=True)))) for each in knobs]
    first, alike, other = (row for row in rows if row is not None)
    for each in (first, alike, other):
        arm.add(each, "ann", "")
    arm.tell(first, None, 1.0, ours=True)
    assert arm.trials([]) == [other]
