"""Other people's searches, function by function against values worked out by hand."""

import itertools
import math

import numpy as np
import pytest
from autoscout_flexllmgen import by_linear_program
from autoscout_flexllmgen.offloading import GB, Generation, Machine, evaluate, solve
from scipy.stats import norm
from test_sequential_by_hand import CODES, ON, SPACE, M, N, X, pool, row_of, sent

from autoscout.search.sequential import Pool
from autoscout.space.graph import Space
from autoscout.space.knob import Knob
from autoscout.studies.rivals import ants, botorch, gp_ei, grid, metis, staged, udo
from autoscout.studies.rivals.bayes import bayes
from autoscout.studies.rivals.cherrypick import cherrypick
from autoscout.studies.rivals.gaussian import Refitted, expected_improvement, most_promising
from autoscout.studies.rivals.gaussian_map import MapGP
from autoscout.studies.rivals.genetic import _cross, _fitness, _mutate, _select
from autoscout.studies.rivals.optuna_tpe import _define_by_run, _parameters
from kb.records import Configuration, Objective, Value


def test_grid_s_stages_and_micro_batch():
    rows: list[dict[str, Value]] = [{"tp": t, "pp": p, "mbs": b} for t in (1, 2) for p in (1, 2, 4) for b in (1, 2)]
    space = Space.from_table(rows, ["tp", "pp"], ["mbs"])
    made = pool(space=space, default=0)
    columns = space.feasible.columns()
    assert grid._stages(made).tolist() == (columns["tp"] * columns["pp"]).tolist()
    assert grid._micro_batch(made) == space.knobs.index(space.knob["mbs"])
    first = next(j for j, knob in enumerate(SPACE.knobs) if knob.kind == "sparse")
    assert grid._stages(pool()).tolist() == CODES[:, first].tolist()
    dense = next(j for j, knob in enumerate(SPACE.knobs) if knob.kind == "dense")
    assert grid._micro_batch(pool()) == dense
    names = Space.from_table([{"a": "u"}, {"a": "v"}], ["a"], [])
    assert grid._micro_batch(pool(space=names, default=0)) == 0
    asked = [
        space.feasible.configuration(r).knobs for r in sent(grid.grid(made, np.random.default_rng(0)), lambda r: 1.0)[0]
    ]
    assert [(int(str(k["tp"])) * int(str(k["pp"])), k["mbs"]) for k in asked[:2]] == [(1, 1), (1, 2)]


def test_grid_stops_growing_on_a_plateau_and_keeps_three():
    rows: list[dict[str, Value]] = [{"s": s, "mbs": b, "o": o} for s in (0, 1) for b in range(1, 7) for o in (0, 1)]
    space = Space.from_table(rows, ["s", "o"], ["mbs"])
    cost = {1: 9.0, 2: None, 3: 7.0, 4: 6.0, 5: 0.95 * 6.0, 6: 5.65}

    def of(row: int) -> float | None:
        return cost[int(str(space.feasible.configuration(row).knobs["mbs"]))]

    made = pool(space=space, default=0)
    asked = [space.feasible.configuration(r).knobs for r in sent(grid.grid(made, np.random.default_rng(0)), of)[0]]
    first = [k["mbs"] for k in asked if k["s"] == 0]
    assert first[:6] == [1, 2, 3, 4, 5, 6]  # 0.95 times is enough to go on, and then there is no larger one
    assert sorted(int(str(b)) for b in first[6:12]) == [4, 4, 5, 5, 6, 6]
    assert len(asked) == 2 * (6 + 6) + 24


def test_ants_walk_along_their_trails(monkeypatch):
    trails = [np.full(levels + 1, 0.1) for levels in pool().levels]
    trails[M][1], trails[ON][0], trails[X][2] = 0.2, 0.3, 0.5
    monkeypatch.setattr(ants, "_GREEDINESS", 1.0)
    assert ants._walk(pool(), trails, np.random.default_rng(0)) == row_of("q", 8)
    monkeypatch.setattr(ants, "_GREEDINESS", 0.0)
    rng = np.random.default_rng(0)
    walks = CODES[[ants._walk(pool(), trails, rng) for _ in range(600)]]
    assert np.mean(walks[:, M] == 1) == pytest.approx(2 / 3, abs=0.06)
    assert np.mean(walks[:, X] == 2) == pytest.approx(5 / 8, abs=0.06)


def test_what_a_genetic_algorithm_is_made_of():
    assert (_fitness(None), _fitness(2.0)) == (math.inf, 2.0)
    rng = np.random.default_rng(0)
    chosen = [_select([(3.0, 7), (1.0, 8), (2.0, 9)], rng) for _ in range(900)]
    assert [chosen.count(row) / 900 for row in (7, 8, 9)] == pytest.approx([1 / 27, 19 / 27, 7 / 27], abs=0.05)
    children = np.array([_cross(np.zeros(50), np.ones(50), rng) for _ in range(40)])
    assert children.mean() == pytest.approx(0.5, abs=0.05)
    mutated = np.array([_mutate(np.full(50, -1), [4] * 50, rng) for _ in range(80)])
    assert np.mean(mutated >= 0) == pytest.approx(0.1, abs=0.02)
    assert {*mutated.ravel().tolist()} == {-1, 0, 1, 2, 3}


def test_a_node_of_udo_is_worth_its_upper_bound_and_what_its_value_earned_anywhere():
    tree = udo.UdoTree(CODES, np.arange(32), [M, X])
    node = udo.UdoNode(M, [0, 1])
    assert (node.visits, node.n, node.sums, node.squares) == (0, {0: 0, 1: 0}, {0: 0.0, 1: 0.0}, {0: 0.0, 1: 0.0})
    node.visits, node.n[0] = 5, 2
    tree.update([(node, 0)], 0.5)
    tree.update([(node, 0)], 0.7)
    other = udo.UdoNode(M, [0])
    tree.update([(other, 0)], 0.1)
    assert tree.actions == {(M, 0): (3, pytest.approx(1.3))}
    mean, variance = 0.6, (0.25 + 0.49) / 2 - 0.36
    weight = math.sqrt(50 / (3 * 2 + 50))
    mixed = (1 - weight) * mean + weight * 1.3 / 3
    bound = math.sqrt(2 * variance * math.log(5) / 2) + 3 * 0.3 * math.log(5) / 2
    assert tree._value(node, 0) == pytest.approx(mixed + bound)
    node.n[1], node.sums[1], node.squares[1] = 4, 2.0, 1.0  # no variance, and nothing is known of it elsewhere
    assert tree._value(node, 1) == pytest.approx(0.5 + 3 * 0.3 * math.log(5) / 4)
    assert tree._ucb_v(node, np.random.default_rng(0)) == 0
    node.n[1] = 0
    assert tree._ucb_v(node, np.random.default_rng(0)) == 1


def test_udo_orders_its_settings_by_least_change():
    heavy = CODES[:, [M, ON]]
    rows = [row_of("p", 1), row_of("q", 1, 1), row_of("q", 1), row_of("p", 1, 1)]
    chosen = [([], np.array([row])) for row in rows]
    order = [int(at[0]) for _, at in udo._least_changes(heavy, chosen)]
    assert order == [rows[0], rows[2], rows[1], rows[3]]


def test_features_of_the_gaussian_process_are_scaled_and_constant_ones_left_out():
    found = gp_ei.features(pool())
    rows = [row_of("q", 8, 3), row_of("p", 1)]
    expected = {
        M: [[0, 1], [1, 0]],
        ON: [[0, 1], [1, 0]],
        X: [[3 / 4], [0]],
        N: [[0.5, 0], [0, 1]],  # and whether it is inactive
    }
    assert found[rows] == pytest.approx(np.hstack([np.array(expected[j], dtype=float) for j in range(4)]))
    zero = Space.from_table([{"x": v} for v in (0, 5, 20)], [], ["x"])
    assert gp_ei.features(pool(space=zero, default=0))[:, 0] == pytest.approx([0, 0.25, 1])
    one = Space.from_table([{"x": 1}], [], ["x"])
    assert gp_ei.features(pool(space=one, default=0)).tolist() == [[0.0]]


def test_the_chance_of_running_is_a_logistic_regression_s():
    assert gp_ei._runs(pool({1: 2.0}), np.zeros((32, 1)), np.array([3, 4])).tolist() == [1.0, 1.0]
    made = pool({row: None if CODES[row, X] > 1 else 1.0 for row in range(0, 32, 2)})
    runs = gp_ei._runs(made, gp_ei.features(made), np.arange(32))
    assert (runs[CODES[:, X] == 3] < 0.1).all()
    assert (runs[CODES[:, X] == 0] > 0.9).all()


def matern(pool: Pool, scales, bounds, noise, most, least):
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    return ConstantKernel(1.0, most) * Matern(scales, bounds, nu=2.5) + WhiteKernel(noise, least)


def test_bayes_takes_one_of_three_candidates_by_what_theirs_promised():
    made, rng, copy = pool(), np.random.default_rng(2), np.random.default_rng(2)
    model = Refitted(matern(made, [1.0] * 4, (1e-2, 1e2), 1e-3, (1e-2, 1e3), (1e-9, 1.0)))
    running, gains = bayes(made, rng), np.zeros(3)
    row = next(running)
    for step in range(16):
        if step < 10:
            assert row == int(copy.integers(32))
        else:
            rows, costs = made.costs(2.0)
            model.fit(made.scaled(rows), costs)
            at = np.flatnonzero(made.open)
            mean, sd = model.predict(made.scaled(at))
            best = costs.min()
            chosen = [
                most_promising(mean, sd, best),
                np.argmin(mean - 1.96 * sd),
                np.argmax(norm.cdf((best - mean) / sd)),
            ]
            weights = np.exp(gains - gains.max())
            gains -= mean[chosen] / costs.std()
            assert row == at[chosen[copy.choice(3, p=weights / weights.sum())]]
        cost = None if row == 9 else 1.0 + CODES[row, X] + 0.3 * CODES[row, M]
        made.learn(row, cost)
        row = running.send(cost)


def test_cherrypick_begins_with_three_points_of_sobol_s():
    from scipy.stats import qmc

    made = pool()
    model = Refitted(matern(made, 0.5, (1e-2, 1e2), 1e-3, (1e-2, 1e2), (1e-6, 1.0)))
    points = qmc.Sobol(4, rng=np.random.default_rng(2)).random_base2(2)
    running = cherrypick(made, np.random.default_rng(2))
    row = next(running)
    for step in range(7):
        if step < 3:
            assert row == made.nearest(np.floor(points[step] * made.levels).astype(int))
        else:
            rows, costs = made.costs(1.2)
            model.fit(made.scaled(rows), costs)
            at = np.flatnonzero(made.open)
            assert row == at[most_promising(*model.predict(made.scaled(at)), costs.min())]
        cost = None if step == 1 else 1.0 + CODES[row, X] + 0.3 * CODES[row, M]
        made.learn(row, cost)
        row = running.send(cost)


def test_gp_ei_ranks_by_improvement_times_the_chance_of_running():
    made, rng, copy = pool(), np.random.default_rng(2), np.random.default_rng(2)
    table = gp_ei.features(made)
    model = MapGP()
    running, ran = gp_ei.gp_pool(made, rng), {}
    row = next(running)
    for step in range(12):
        at = np.flatnonzero(made.open)
        if step < 6:
            assert row == copy.choice(at)
        else:
            model.fit(table[list(ran)], np.log([*ran.values()]))
            least = model.predict(table[list(ran)])[0].min()
            mean, sd = model.predict(table[at])
            promise = expected_improvement(mean, sd, least) * gp_ei._runs(made, table, at)
            assert promise[at.tolist().index(row)] == pytest.approx(promise.max(), rel=1e-6)
            order = gp_ei._order(made, table, model, least, at)
            assert promise[order] == pytest.approx(np.sort(promise)[::-1])
        cost = None if CODES[row, X] == 3 else 1.0 + CODES[row, X] + 0.3 * CODES[row, M]
        made.learn(row, cost)
        if cost is not None:
            ran[row] = cost
        row = running.send(cost)


def test_metis_plans_over_what_splits_the_model():
    rows: list[dict[str, Value]] = [
        {"tp": t, "pp": p, "other": o} for t in (1, 2, 4) for p in (1, 2) for o in (0, 1, 2)
    ]
    space = Space.from_table(rows, ["tp", "pp"], ["other"], Objective(maximize="r"))
    made = pool(space=space, default=space.feasible.index(Configuration({"tp": 2, "pp": 1, "other": 1})) or 0)
    plans = metis._plans(made)
    at = [space.feasible.configuration(int(r)).knobs for r in plans]
    assert len(plans) == 6
    assert {k["other"] for k in at} == {1}
    assert at[0] == {"tp": 2, "pp": 1, "other": 1}
    assert metis._estimates(made, plans).tolist() == [float(str(k["tp"])) * float(str(k["pp"])) for k in at]
    made.simulators = {
        "up": lambda codes: np.array([5.0, 4, 3, 2, 1, 0]),
        "says little": lambda codes: np.array([np.nan, 9.0, 8, 7, 6, 10]),
    }
    # More is better: ranks 0 … 5 by the first; the second puts 10 first and what it cannot say last.
    ranks = np.array([[0, 1, 2, 3, 4, 5], [5, 1, 2, 3, 4, 0]])
    assert metis._estimates(made, plans).tolist() == ranks.mean(axis=0).tolist()
    by_kind = metis._plans(pool())
    assert len(by_kind) == 4  # the sparse knobs where none of these is there


class Suggested:
    """A trial of Optuna's that suggests what it is given."""

    def __init__(self, **values) -> None:
        self.values, self.asked = values, {}

    def suggest_int(self, name: str, low: int, high: int) -> int:
        self.asked[name] = (low, high)
        return self.values[name]

    def suggest_categorical(self, name: str, choices: list):
        self.asked[name] = choices
        return self.values[name]


def test_a_trial_s_suggestions_lead_to_a_valid_row():
    off = Suggested(m=1, on=0, x=2)
    assert _define_by_run(pool(), off)[0] == row_of("q", 8)
    assert off.asked == {"m": [0, 1], "on": [0, 1], "x": (0, 3)}  # n is inactive and not suggested
    on = Suggested(m=0, on=1, x=0, n=2)
    assert _define_by_run(pool(), on)[0] == row_of("p", 1, 9)
    assert on.asked["n"] == (0, 2)
    rows: list[dict[str, Value]] = [
        {"s": "a", "x": 1},
        {"s": "b", "x": 4},
        {"s": "b", "x": 2},
        {"s": "c"},
        {"s": "c", "x": 4},
    ]
    space = Space.from_table(rows, ["s"], ["x"])
    made = pool(space=space, default=0)

    def led(**values) -> dict[str, Value]:
        return space.feasible.configuration(_define_by_run(made, Suggested(**values))[0]).knobs

    assert led(s=0, x=2) == {"s": "a", "x": 1}  # the nearest that is valid
    assert led(s=1, x=0) == {"s": "b", "x": 2}
    assert led(s=2, x=0, **{"x acts": False}) == {"s": "c"}
    assert led(s=2, x=0, **{"x acts": True}) == {"s": "c", "x": 4}
    for other in (made, pool()):  # and any row has suggestions that lead to it, which are what such a trial keeps
        for row in range(len(other)):
            wanted = _parameters(other, row)
            assert _define_by_run(other, Suggested(**wanted)) == (row, wanted)


def offloading(**attributes: float) -> Pool:
    """Eight policies of each of four blocks."""
    shares = {"w_gpu": (0, 40), "w_cpu": (60, 100), "c_gpu": (0,), "c_cpu": (100,), "h_gpu": (0, 100)}
    knobs = [
        Knob(name=name, kind="dense", layer="", values=values, meaning="", sets="")
        for name, values in {**shares, "gpu_batch": (4, 16), "gpu_batches": (1, 4)}.items()
    ]
    return pool(space=Space(knobs, [], attributes), default=0)


MODEL = {"layers": 48, "hidden": 7168, "ffn": 4 * 7168, "heads": 56}


def test_flexllmgen_tries_what_is_nearest_to_the_fastest_solutions_first():
    made = offloading(**MODEL, longest_input=512, longest=544, memory_gib=15.0)
    generation = Generation(prompt=512, tokens=32, layers=48, hidden=7168, ffn=4 * 7168, heads=56)
    machine = Machine(gpu=15.0 * GB)
    assert by_linear_program._asked(made) == (generation, machine)
    columns, found = made.space.feasible.columns(), []
    for batch, batches in itertools.product((4, 16), (1, 4)):
        solution = solve(generation, machine, batch, batches)
        if solution is None:
            continue
        rows = [r for r in range(len(made)) if (columns["gpu_batch"][r], columns["gpu_batches"][r]) == (batch, batches)]
        names = {"w_gpu": "wg", "w_cpu": "wc", "c_gpu": "cg", "c_cpu": "cc", "h_gpu": "hg"}
        far = {r: sum(abs(columns[k][r] - 100 * solution[s]) for k, s in names.items()) for r in rows}
        speed = float(evaluate(generation, machine, batch, batches, solution)["output_tokens_per_s"])
        found.append((-speed, sorted(rows, key=lambda r: far[r])[:3]))
    assert len(found) >= 2
    expected = [row for _, rows in sorted(found) for row in rows]
    assert by_linear_program._solved(made) == expected
    made.learn(expected[0], 1.0)
    asked, _ = sent(by_linear_program.by_linear_program(made, np.random.default_rng(3)), lambda row: 1.0)
    order = np.random.default_rng(3).permutation(len(made)).tolist()
    assert asked == [*expected[1:], *order]


def test_where_flexllmgen_knows_no_model_or_knobs_the_order_is_random():
    whole = {**MODEL, "longest_input": 512, "longest": 544, "memory_gib": 15.0}
    for lacking in ({**whole, "layers": 0}, {**whole, "longest": 513}):
        made = offloading(**lacking)
        assert by_linear_program._asked(made) is None
        assert by_linear_program._solved(made) == []
    assert by_linear_program._asked(offloading(**{**whole, "longest": 514})) is not None
    asked, _ = sent(by_linear_program.by_linear_program(pool(), np.random.default_rng(3)), lambda row: 1.0)
    assert asked == np.random.default_rng(3).permutation(32).tolist()


def test_staged_sweeps_go_from_parallelism_to_the_scheduler_with_the_best_so_far():
    knobs = [
        Knob(name=name, kind="dense", layer=layer, values=(0, 1, 2), meaning="", sets="")
        for name, layer in (("seqs", "schedule"), ("tp", "parallelism"), ("flag", "kernels"))
    ]
    space = Space(knobs, [], {})
    made = pool(space=space, default=0)
    made.learn(0, 10.0)
    search = staged.staged(made, np.random.default_rng(0))
    row, asked = next(search), []
    for _ in range(6):
        knob = {n: int(str(v)) for n, v in space.feasible.configuration(row).knobs.items()}
        asked.append((knob["tp"], knob["seqs"], knob["flag"]))
        cost = 10.0 - knob["tp"] - 3 * knob["seqs"]
        made.learn(row, cost)
        row = search.send(cost)
    assert sorted(asked[:2]) == [(1, 0, 0), (2, 0, 0)]
    assert sorted(asked[2:4]) == [(2, 1, 0), (2, 2, 0)]
    assert sorted(asked[4:]) == [(2, 2, 1), (2, 2, 2)]


def test_botorch_finds_the_best_of_a_bowl():
    pytest.importorskip("botorch")
    made = pool()
    made.learn(0, 2.0 + abs(CODES[0, X] - 2))
    running, costs = botorch.botorch_ei(made, np.random.default_rng(0)), []
    row = next(running)
    for _ in range(15):
        cost = None if CODES[row, M] else 1.0 + abs(CODES[row, X] - 2)
        made.learn(row, cost)
        costs.append(cost)
        row = running.send(cost)
    assert 1.0 in costs
