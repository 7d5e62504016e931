"""Other people's searches at their edges: shares that are met exactly, what failed, what is not there, and blocks."""

import math

import numpy as np
import pytest
from test_rivals_by_hand import Suggested
from test_search_ties import Always
from test_sequential_by_hand import CODES, ON, M, X, pool, row_of

from autoscout.space.graph import Space
from autoscout.space.knob import Knob
from autoscout.studies.rivals import ants, gp_ei, grid, metis, udo
from autoscout.studies.rivals.deepspeed import deepspeed
from autoscout.studies.rivals.gaussian import Refitted
from autoscout.studies.rivals.gaussian_map import MapGP
from autoscout.studies.rivals.genetic import _cross, _mutate, genetic
from autoscout.studies.rivals.optuna_tpe import _define_by_run
from kb.records import Value


def test_shares_that_are_met_exactly_are_not_reached():
    """A parent, a mutation, a greedy step or an exploration is taken where a random share is below its own."""
    assert _cross(np.zeros(3), np.ones(3), Always(0.5)).tolist() == [1, 1, 1]
    assert _mutate(np.full(3, 7), [2, 2, 2], Always(0.1)).tolist() == [7, 7, 7]
    trails = [np.full(levels + 1, 1e-9) for levels in pool().levels]
    trails[M][0] = trails[ON][0] = 1.0
    trails[X][:4] = 0.4, 0.3, 0.2, 0.1  # the first is the strongest; half of all strength ends within the second
    assert ants._walk(pool(), trails, Always(0.49)) == row_of("p", 1)
    assert ants._walk(pool(), trails, Always(0.5)) == row_of("p", 2)
    made = pool({row: 1.0 + float(CODES[row, X]) for row in range(0, 30, 3)})
    greedy = next(deepspeed(made, Always(0.2)))
    assert greedy == next(deepspeed(made, Always(0.9)))


def test_a_generation_is_the_two_best_and_eighteen_children():
    """Twenty rows first, the default before the others; children of a population without spread are its rows again."""
    asked = []
    search = genetic(pool(), Always(0.9))  # no mutation, all of the father's
    row = next(search)
    for _ in range(20 + 18 + 18):
        asked.append(row)
        row = search.send(float(row))
    assert asked[0] == 5
    first = asked[:20]
    assert len({*first[1:]}) == 19
    assert set(asked[20:38]) <= set(first)
    assert set(asked[38:]) <= {*asked[20:38], *sorted(first)[:2]}


@pytest.mark.parametrize(
    ("default", "costs", "rewards"),
    [
        (2.0, [2.0, 6.0, None, 2.0], [0.5, 0.25, 0.0, 0.5, 0.5]),
        (None, [None, 4.0, 12.0, None], [0.0, 0.5, 0.25, 0.0, 0.5]),  # the first that runs is what others are held to
        (1.0, [None, None, None, None], [0.0] * 5),
    ],
)
def test_udo_s_reward_is_half_for_the_default_and_nothing_for_a_failure(monkeypatch, default, costs, rewards):
    """Those of a setting's four light ones, and then the best of them for the setting itself."""
    seen: list[float] = []

    class Noted(udo.UdoTree):
        def update(self, path, reward) -> None:
            seen.append(reward)
            super().update(path, reward)

    monkeypatch.setattr(udo, "UdoTree", Noted)
    search = udo.udo(pool({5: default}), np.random.default_rng(0))
    next(search)
    for cost in costs:
        search.send(cost)
    assert seen == rewards


def test_a_value_of_udo_s_that_was_told_nowhere_is_worth_its_own_mean():
    tree = udo.UdoTree(CODES, np.arange(32), [M, X])
    node = udo.UdoNode(M, [0, 1])
    node.visits, node.n[0], node.sums[0], node.squares[0] = 4, 2, 0.8, 0.32
    assert tree._value(node, 0) == pytest.approx(0.4 + 3 * 0.3 * math.log(4) / 2)


def plan(name: str, kind: str, layer: str, sets: str = "other") -> Knob:
    return Knob(name=name, kind=kind, layer=layer, values=(1, 2), meaning="", sets=sets)  # type: ignore[arg-type]


def test_metis_plans_what_splits_the_model_and_which_devices_are_used():
    planned = [
        metis._planned(plan("tp", "dense", "other")),
        metis._planned(plan("a100", "sparse", "devices")),
        metis._planned(plan("x", "dense", "other", "pipeline_model_parallel_layout")),
    ]
    assert planned == [True] * 3
    assert not metis._planned(plan("power", "dense", "devices"))
    assert not metis._planned(plan("zero", "sparse", "parallelism"))
    assert all(metis._planned(plan(name, "sparse", "")) for name in ("pp", "dp", "mbs", "micro_batch"))


def test_without_simulators_metis_prefers_what_splits_least():
    rows: list[dict[str, Value]] = [{"a": 0, "tp": 4}, {"a": 1, "tp": 2}, {"a": 2}]
    space = Space.from_table(rows, ["a", "tp"], [])
    made = pool(space=space, default=0)
    split = {row: metis._estimates(made, np.array([row])).tolist() for row in range(3)}
    for row, [estimate] in split.items():
        assert estimate == space.feasible.configuration(row).knobs.get("tp", 1)  # where it is off the model is whole
    assert metis._estimates(pool(), np.arange(3)).tolist() == [1.0, 1.0, 1.0]
    alone = Space.from_table([{"x": 1}, {"x": 2}], [], ["x"])
    assert metis._plans(pool(space=alone, default=1)).tolist() == [1, 0]  # all knobs, the default first


def test_optuna_is_not_asked_for_what_has_one_value():
    rows: list[dict[str, Value]] = [{"a": 1, "b": 7}, {"a": 2, "b": 7}]
    space = Space.from_table(rows, ["a"], ["b"])
    made, trial = pool(space=space, default=0), Suggested(a=1)
    assert space.feasible.configuration(_define_by_run(made, trial)[0]).knobs["a"] == 2
    assert trial.asked == {"a": [0, 1]}
    space = Space.from_table([{"a": 1, "b": 7}, {"a": 1}], ["a"], ["b"])  # its one value or none
    for acts in (False, True):
        trial = Suggested(b=0, **{"b acts": acts})
        found = space.feasible.configuration(_define_by_run(pool(space=space, default=0), trial)[0])
        assert ("b" in found.knobs) is acts
        assert trial.asked["b acts"] == [False, True]


def test_what_gp_ei_ranks_is_the_same_in_blocks_and_goes_by_nearness_where_nothing_is_promised(monkeypatch):
    made = pool()
    table = gp_ei.features(made)
    rows = np.array([0, 9, 20, 31])
    fitted = MapGP()
    fitted.fit(table[rows], np.array([0.3, 0.1, 0.9, 0.5]))
    whole = gp_ei._order(made, table, fitted, 0.1, np.arange(32))
    monkeypatch.setattr(gp_ei, "_AT_ONCE", 5)
    assert gp_ei._order(made, table, fitted, 0.1, np.arange(32)).tolist() == whole.tolist()
    mean, sd = fitted.predict(table)
    hopeless = gp_ei._order(made, table, fitted, -1e4, np.arange(32))
    z = (-1e4 - mean) / sd
    assert z[hopeless].tolist() == sorted(z, reverse=True)


def test_gp_ei_ranks_the_pool_again_when_its_candidates_are_used_up(monkeypatch):
    monkeypatch.setattr(gp_ei, "_CANDIDATES", 1)
    monkeypatch.setattr(gp_ei, "_FIRST", 2)
    made = pool()
    search = gp_ei.gp_pool(made, np.random.default_rng(0))
    row = next(search)
    seen = []
    for cost in (1.0, 2.0, None, None, 1.5):  # after a failure there is nothing to refit on
        seen.append(row)
        made.learn(row, cost)
        row = search.send(cost)
    assert len({*seen, row}) == 6


def test_two_that_ran_are_enough_for_gp_ei_and_one_is_not(monkeypatch):
    """Before, rows are drawn at random; what was known before counts."""
    made, rng = pool(dict.fromkeys(range(6)) | {6: 1.0}), np.random.default_rng(4)
    assert next(gp_ei.gp_pool(made, rng)) == np.random.default_rng(4).choice(np.flatnonzero(made.open))
    made = pool(dict.fromkeys(range(4)) | {6: 1.0, 7: 2.0})
    table = gp_ei.features(made)
    row = next(gp_ei.gp_pool(made, np.random.default_rng(4)))
    noted = made.open.copy()
    assert noted[row]
    assert row != np.random.default_rng(4).choice(np.flatnonzero(made.open))
    assert table.shape[0] == 32


def test_a_gaussian_process_of_rivals_returns_to_the_mean_and_its_spread():
    """Costs are normalized: far from all that was measured stands their mean, with their spread."""
    from sklearn.gaussian_process.kernels import RBF

    fitted = Refitted(RBF(0.1, "fixed"))
    y = np.array([3.0, 5.0, 10.0])
    fitted.fit(np.array([[0.0], [1.0], [2.0]]), y)
    mean, sd = fitted.predict(np.array([[50.0], [1.0]]))
    assert mean == pytest.approx([6.0, 5.0])
    assert sd[0] == pytest.approx(y.std())
    assert sd[1] == pytest.approx(1e-4 * y.std(), rel=0.01)  # √1e-8 of it


def test_an_invalid_choice_goes_to_the_nearest_valid_one():
    rows: list[dict[str, Value]] = [{"a": 0, "b": "s"}, {"a": 0, "b": "v"}, {"a": 1, "b": "t"}, {"a": 1, "b": "u"}]
    space = Space.from_table(rows, ["a", "b"], [])
    names = list(space.knob["b"].values)
    ends = [name for name in ("s", "v") if name in names]
    made = pool(space=space, default=0)
    for name in ("t", "u"):
        wanted = names.index(name)
        nearest = min(ends, key=lambda end: abs(names.index(end) - wanted))
        found = space.feasible.configuration(_define_by_run(made, Suggested(a=0, b=wanted))[0]).knobs
        assert found == {"a": 0, "b": nearest}


def test_a_stage_of_grid_s_is_one_where_a_split_is_off():
    rows: list[dict[str, Value]] = [{"a": 0, "tp": 4, "pp": 2}, {"a": 1, "tp": 2}, {"a": 2, "pp": 4}]
    space = Space.from_table(rows, ["a", "tp", "pp"], [])
    stages = grid._stages(pool(space=space, default=0))
    for row, stage in enumerate(stages.tolist()):
        knobs = space.feasible.configuration(row).knobs
        assert stage == float(str(knobs.get("tp", 1))) * float(str(knobs.get("pp", 1)))
