"""Ideas of others: good ones are found soon, bad ones cost themselves and nothing else."""

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from autoscout.search.autoscout import AutoScout
from autoscout.search.belief.surrogate import Surrogate
from autoscout.search.pool import CandidatePool
from autoscout.search.proposed import ProposedArm
from autoscout.search.strategy import Proposed, Search, Strategy, strategy
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


@pytest.mark.parametrize(
    ("ideas", "most"), [(FAILING, 1), (SLOW, 0)], ids=["failing beside the best", "slowest of all"]
)
def test_bad_ideas_cost_themselves_at_most_and_change_nothing_else(ideas: list[dict[str, object]], most: int):
    cold, told = searched([], 15), searched(ideas, 15 + most)
    assert [arm for arm, _ in told].count(PROPOSED) == most
    assert [knobs for arm, knobs in told if arm != PROPOSED] == [knobs for _, knobs in cold]


def test_the_belief_tries_a_good_idea_before_ordinary_ones_as_soon_as_it_has_four_experiments():
    good, ordinary = {**BEST, "a": 5}, {"a": 1, "b": 6, "c": 1, "d": "y", "e": False}
    told = searched([ordinary, good], 8)
    assert next(knobs for arm, knobs in told if arm == PROPOSED) == good
    assert PROPOSED not in [arm for arm, _ in told[:4]]
    assert [arm for arm, _ in told[:6]].count(PROPOSED) >= 1


def test_a_search_without_ideas_has_no_such_arm():
    assert PROPOSED not in {arm for arm, _ in searched([], 12)}


def arm_with(*others: float) -> ProposedArm:
    arm = ProposedArm(CandidatePool(space(), np.random.default_rng(0)))
    for row, value in enumerate(others):
        arm.tell(row, value, 1.0, ours=False)
    return arm


def test_a_trial_that_wins_doubles_the_share_and_any_other_halves_it_the_more_the_longer_it_took():
    arm, seen = arm_with(1.0, 2.0, 3.0), []
    for row, (value, price) in enumerate(
        [(9.0, 1.0), (None, 1.0), (9.0, 2.0), (1.5, 1.0), (0.5, 3.0), (0.4, 1.0)], 700
    ):
        arm.tell(row, value, price, ours=True)
        seen.append(arm.share)
    assert seen == [1 / 8, 1 / 16, 1 / 64, 1 / 128, 1 / 64, 1 / 32]
    for row in range(710, 720):
        arm.tell(row, 0.4 - row / 10_000, 1.0, ours=True)
    assert arm.share == 0.5


def test_after_n_failures_an_idea_must_be_in_a_share_of_the_candidates_halved_n_times():
    value = np.arange(len(ROWS), dtype=float)
    for failures in range(4):
        arm = arm_with(1.0, 2.0, 3.0)
        for row in range(failures):
            arm.tell(row, None, 1.0, ours=True)
        arm._aside.clear()  # which ideas are similar is another test
        last = len(ROWS) - 1 - int(len(ROWS) / 4 / 2**failures)
        arm.add(last - 1, "ann", "")
        assert arm.trial(belief(), value, []) is None
        arm.add(last, "ann", "")
        assert arm.trial(belief(), value, []) is not None


def test_an_idea_earns_nothing_by_running_where_the_others_failed():
    """It did: the slowest of all were among the better half of openings that mostly failed, and four were tried."""
    arm = arm_with(1.0)
    for row in (1, 2, 3):
        arm.tell(row, None, 1.0, ours=False)
    assert arm.tell(700, 9.0, 1.0, ours=True)
    assert arm.share < 0.25
    none_ran = arm_with()
    assert not none_ran.tell(700, 9.0, 1.0, ours=True)  # the first that runs is heard
    assert none_ran.tell(701, 9.5, 1.0, ours=True)
    assert not none_ran.proven


def test_an_idea_like_one_that_failed_is_not_tried_and_another_one_is():
    arm, model, arm_rows = arm_with(1.0, 2.0, 3.0), belief(), rows_of(*ALIKE)
    for row in arm_rows:
        arm.add(row, "ann", "")
    value = np.zeros(len(ROWS))
    value[arm_rows] = 3.0, 2.0, 1.0
    first = arm.trial(model, value, [])
    assert first is not None
    assert first.row == arm_rows[0]
    assert arm.trial(model, value, [first.row]) is None  # one at a time
    arm.tell(first.row, None, 1.0, ours=True)
    second = arm.trial(model, value, [])
    assert second is not None
    assert second.row == arm_rows[2]


ALIKE = [(7, 7, 3, "z", True), (7, 7, 3, "z", False), (1, 3, 2, "x", False)]


def rows_of(*knobs: tuple[object, ...]) -> list[int]:
    found = [space().feasible.index(Configuration(dict(zip(VALUES, each, strict=True)))) for each in knobs]  # type: ignore[arg-type]
    return [row for row in found if row is not None]


def belief() -> Surrogate:
    """A stand-in whose candidates are all rows."""
    return cast(Surrogate, SimpleNamespace(candidates=np.arange(len(ROWS))))


def test_a_trial_is_the_best_idea_with_its_reason_and_none_while_a_person_holds_them():
    arm, value = arm_with(1.0, 2.0, 3.0), np.arange(len(ROWS), dtype=float)
    arm.add(row := len(ROWS) - 1, "ann", "because")
    arm.add(row - 1, "bob", "")
    trial = arm.trial(belief(), value, [])
    assert trial is not None
    assert (trial.row, trial.gain, trial.why) == (row, row, "proposed by ann: because")
    arm.held = True
    assert arm.trial(belief(), value, []) is None


def test_a_proven_idea_weighs_each_knobs_values_and_one_that_only_ran_does_not():
    arm, value = arm_with(1.0, 2.0, 3.0), np.ones(len(ROWS))
    arm.tell(700, 1.5, 1.0, ours=True)
    assert (arm.weighed(belief(), value) == 1).all()
    (right,) = rows_of(tuple(BEST.values()))
    arm.tell(right, 0.5, 1.0, ours=True)
    weights = arm.weighed(belief(), value)
    assert weights[right] == 1
    others = rows_of((5, 2, 3, "y", True), (6, 2, 3, "y", False))
    assert weights[others] == pytest.approx([0.2 / 8 / (1 + 0.2 / 8), 0.2 / 2 / (1 + 0.2 / 2)])
    for row in range(10, 20):
        arm.tell(row, 2.0, 1.0, ours=False)
    assert arm.weighed(belief(), value) == pytest.approx(weights**0.5)  # ten experiments later
    assert (arm.weighed(belief(), -value) == -1).all()


def test_an_idea_that_is_no_candidate_becomes_one():
    """Of a large space, only a part are candidates."""
    search = AutoScout(Search(space=space(), seed=1))
    for row in range(0, 700, 100):
        status, metrics = "ok", {"time_s": 1.0 + row}
        knobs = Configuration(ROWS[row])  # type: ignore[arg-type]
        search.tell([Measurement(configuration=knobs, name="x", context="x", status=status, metrics=metrics)])
    search.model.update([])
    (row,) = rows_of(tuple(BEST.values()))
    search.model._turn(np.flatnonzero(search.model.candidates != row), np.zeros(0, int))
    search.model.update([])
    assert row not in search.model.candidates
    search.propose(Proposed(configuration=Configuration(BEST), by="ann"))  # type: ignore[arg-type]
    search.model.update([])
    assert np.count_nonzero(search.model.candidates == row) == 1
    assert len(search.model.gain) == len(search.model.candidates)
