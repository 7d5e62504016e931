"""The small parts of the search against values worked out by hand: the bandit, when a search ends, several objectives,
expected improvement, bent costs, and how strategies are written and found."""

import importlib.metadata
import math
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from autoscout.search import strategy
from autoscout.search.bandit import UCB1
from autoscout.search.belief.bending import bent, unbent
from autoscout.search.belief.encoding import Encoding
from autoscout.search.earlier import Past
from autoscout.search.hyper import DefaultHyper, Hyper, PaperHyper
from autoscout.search.hypervolume import improvement
from autoscout.search.stopping import Stopping
from autoscout.search.strategy import Kind, Search, Strategy, kind_of, made, register, sampled, usable
from autoscout.search.trade import Trade
from autoscout.space.graph import Space
from autoscout.space.knob import Knob
from autoscout.studies.rivals import gaussian
from autoscout.studies.rivals.gaussian import Refitted, expected_improvement, most_promising
from kb.journal import Outlook, Rewarded
from kb.records import AutoscoutError, Configuration, Measurement, Objective

SQUARE = Space.from_table([{"x": x, "y": y} for x in (1, 2) for y in (1, 2)], [], ["x", "y"])


# ---- the bandit -----------------------------------------------------------------------------------------------------


def test_the_index_of_an_arm_after_one_pull_has_no_bonus_and_the_other_comes_first():
    bandit = UCB1(c0=0.5, gamma=0.9)
    assert bandit.index(0) == {"SPARSE": math.inf, "DENSE": math.inf}
    bandit.update("SPARSE", 0.25)
    assert bandit.index(1) == {"SPARSE": 0.25, "DENSE": math.inf}  # ln 1 = 0
    assert bandit.select(1) == "DENSE"
    assert bandit.state() == {"SPARSE": [1.0, 0.25], "DENSE": [0.0, 0.0]}
    bandit.age()
    assert bandit.n == {"SPARSE": 0.9, "DENSE": 0.0}
    assert bandit.index(1)["SPARSE"] == 0.25  # fewer than one pull in all: ln 0.9 < 0 counts as 0
    bandit.update("DENSE", 0.0)  # 1.9 in all
    bonus = 0.5 * 0.9**2 * math.sqrt(math.log(1.9) / 0.9)
    assert bandit.index(2)["SPARSE"] == pytest.approx(0.25 + bonus)


def test_a_promise_counts_as_much_as_the_arm_kept_of_its_promises():
    bandit = UCB1(c0=0.01, gamma=0.5, arms=("A", "B"))
    # Before anything is known: promises as they are, and the same bonus for both.
    first = bandit.expecting({"A": 0.1, "B": 0.2}, 2.0)
    bonus = 0.01 * math.sqrt(math.log(2) / 2)  # 0.2 · 0.2 is more than c0
    assert first == pytest.approx({"A": 0.1 + bonus, "B": 0.2 + bonus})
    bandit.update("A", 0.02, promised=0.1)  # keeps a fifth
    bandit.update("A", 0.9, promised=0.1)  # nine times as much, of which three count
    bandit.update("B", 0.5)  # promised nothing: nothing was kept
    assert bandit.kept == pytest.approx({"A": 3.2, "B": 0.0})
    assert bandit.q == pytest.approx({"A": 0.92, "B": 0.5})
    found = bandit.expecting({"A": 0.03, "B": 0.01}, 2.0)
    c0 = 0.2 * 0.03  # a fifth of the best promise is less than 0.01
    assert found == pytest.approx(
        {
            "A": 0.03 * (3.2 + 2) / (2 + 2) + c0 * math.sqrt(math.log(5) / 4),
            "B": 0.01 * (0.0 + 2) / (1 + 2) + c0 * math.sqrt(math.log(5) / 3),
        }
    )
    bandit.age()
    assert bandit.n == {"A": 1.0, "B": 0.5}
    assert bandit.kept == pytest.approx({"A": 1.6, "B": 0.0})
    assert bandit.q == pytest.approx({"A": 0.46, "B": 0.25})


def test_a_weak_prior_leaves_what_is_weaker_alone():
    bandit = UCB1(c0=0.5, gamma=0.9)
    bandit.q, bandit.n = {"SPARSE": 3.0, "DENSE": 1.0}, {"SPARSE": 4.0, "DENSE": 2.0}
    bandit.weaken(2.0)
    assert bandit.n == {"SPARSE": 2.0, "DENSE": 2.0}
    assert bandit.q == {"SPARSE": 1.5, "DENSE": 1.0}


# ---- the end of a search --------------------------------------------------------------------------------------------


def said(chance: float, gain: float) -> Outlook:
    return Outlook(step=1, chance=chance, gain=gain, ahead=10)


def test_a_search_is_settled_when_two_outlooks_in_a_row_leave_next_to_nothing():
    stopping = Stopping(Hyper(settled=0.05))
    other = Rewarded(step=1, costs=[], delta_sparse=0.0, delta_dense=0.0, interaction=None, arms={})
    for events, settled in (
        ([said(0.04, 0.0024)], False),
        ([other], False),
        ([said(0.04, 0.0024)], True),
        ([said(0.05, 0.0)], False),  # as likely as that is too likely
        ([said(0.04, 0.0024)], False),
        ([said(0.0, 0.0025)], False),  # as much as that is too much
        ([said(0.04, 0.0024), said(0.04, 0.0024)], True),
        ([said(0.0, 0.0)], True),
    ):
        stopping.heard(events)
        assert stopping.settled == settled


def test_a_search_has_converged_after_its_patience_without_one_percent():
    stopping = Stopping(Hyper(patience=2))
    assert (stopping.stale, stopping.converged) == (0, False)
    stopping.measured(None)
    assert stopping.stale == 1
    stopping.found(100.0)
    assert stopping.stale == 0
    stopping.measured(99.0)  # exactly one percent is none
    assert (stopping.stale, stopping.converged) == (1, False)
    stopping.measured(101.0)
    assert (stopping.stale, stopping.converged) == (2, True)
    stopping.measured(98.9)
    assert (stopping.stale, stopping.converged) == (0, False)
    stopping.measured(98.5)  # better than the best, by less than a percent of where it stood
    assert stopping.stale == 1


def test_a_strategy_that_knows_its_own_end_does_not_converge():
    stopping = Stopping(Hyper(patience=1), finite=True)
    stopping.measured(None)
    assert not stopping.converged
    assert Stopping(Hyper(patience=0)).converged


# ---- several objectives ---------------------------------------------------------------------------------------------


def test_several_objectives_take_turns_with_the_first_once_something_was_told():
    objective = Objective(minimize="a_s", also=["maximize b", "minimize c"])
    space = Space.from_table([{"x": x} for x in range(5)], [], ["x"], objective)
    trade = Trade(objective, Encoding(space.knobs, space.feasible.codes))
    assert (trade.first, trade.why) == (True, "")
    trade.turn(first=False)
    assert trade.first
    trade.tell(3, [1.0, 4.0, 5.0])
    trade.tell(3, [1.0, 16.0, 5.0])
    trade.turn(first=False)
    assert (trade.first, trade.why) == (False, "largest expected gain of hypervolume of a_s, b, c")
    assert trade._costs() == pytest.approx(np.array([[0.0, math.log(8), math.log(5)]]))
    trade.turn(first=True)
    assert trade.why == ""


def test_the_front_and_the_latest_rows_are_held():
    objective = Objective(minimize="a_s", also=["minimize b"])
    space = Space.from_table([{"x": x} for x in range(400)], [], ["x"], objective)
    trade = Trade(objective, Encoding(space.knobs, space.feasible.codes))
    for row in range(200):
        trade.tell(row, [1.0, 1.0] if row == 7 else [2.0 + row, 3.0])
    assert trade.held().tolist() == [7, *range(50, 200)]


# ---- expected improvement and bent costs ----------------------------------------------------------------------------


@pytest.mark.parametrize("of", [expected_improvement, improvement])
@pytest.mark.parametrize(("mean", "sd", "best"), [(0.0, 1.0, 0.0), (1.3, 0.5, 1.0), (-0.4, 2.0, 0.7)])
def test_expected_improvement_is_the_integral(of, mean, sd, best):
    integral, _ = quad(lambda f: (best - f) * norm.pdf(f, mean, sd), best - 40, best, limit=200, points=[mean, best])
    assert of(np.array([mean]), np.array([sd]), best)[0] == pytest.approx(integral, rel=1e-6)


def test_the_most_promising_is_the_least_unlikely_where_nothing_is_promised():
    mean, sd = np.array([0.9, 0.5, 0.6]), np.array([0.1, 0.1, 0.3])
    assert most_promising(mean, sd, 0.5) == 2  # 0.3 (φ(⅓) − ⅓ Φ(−⅓)) = 0.0763 > 0.1 φ(0) = 0.0399
    assert most_promising(np.array([90.0, 50.0, 60.0]), np.full(3, 0.01), 1.0) == 1


def test_a_gaussian_process_is_fitted_anew_when_its_data_have_grown_by_a_tenth():
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel

    x = np.linspace(0, 1, 12)[:, None]
    y = np.sin(4 * x[:, 0])
    model = Refitted(ConstantKernel(1.0) * RBF(0.1))
    kernel: Any = model.kernel
    before = kernel.theta
    assert model.fit(x[:10], y[:10])
    kernel = model.kernel
    after = kernel.theta
    assert abs(after - before).max() > 0.01
    assert not model.fit(x[:10], y[:10] ** 2)  # the same number: the hyper-parameters stay
    kernel, fitted_with = model.kernel, vars(model.model)["kernel_"]
    assert fitted_with.theta.tolist() == kernel.theta.tolist() == after.tolist()
    fitted = [model.fit(x[:n], y[:n]) for n in (10, 11, 11, 12, 10)]
    assert fitted == [False, True, False, False, False]
    assert Refitted(ConstantKernel(1.0)).fit(x[:1], y[:1])
    mean, sd = model.predict(x[[0, 3]])
    assert mean == pytest.approx(y[[0, 3]], abs=1e-4)
    assert (sd < 1e-2).all()
    assert model.fit(x, y * 0 + 5.0) is False
    mean, sd = model.predict(x[[1]])
    assert mean == pytest.approx([5.0])
    assert (sd >= 1e-12).all()
    assert gaussian.expected_improvement(mean, np.array([1e-12]), 5.0)[0] >= 0


def test_the_uncertainty_of_a_gaussian_process_is_the_function_s_and_not_a_measurement_s():
    """scikit-learn's predict adds the noise of a WhiteKernel, so that a point measured 100 times stayed promising."""
    from sklearn.gaussian_process.kernels import RBF, WhiteKernel

    x = np.repeat([[0.0], [1.0], [2.0]], 100, axis=0)
    y = 50 + 10 * (np.sin(x[:, 0]) + 0.1 * np.random.default_rng(0).normal(size=300))
    model = Refitted(RBF(1.0, "fixed") + WhiteKernel(0.1, (1e-3, 1.0)))
    model.fit(x, y)
    _, sd = model.predict(np.array([[1.0], [9.0]]))
    assert sd[0] == pytest.approx(1.0 / math.sqrt(100), rel=0.15)  # the noise of one measurement is 1.0
    assert sd[1] == pytest.approx(y.std(), rel=0.05)  # far away: the prior's


def test_costs_are_bent_above_the_best_alone():
    u = np.array([-0.5, 0.0, 0.8, 1.6, 100.0])
    v = bent(u)
    assert v == pytest.approx([-0.5, 0.0, 0.8 * (1 - math.exp(-1)), 0.8 * (1 - math.exp(-2)), 0.8])
    assert unbent(v[:4]) == pytest.approx(u[:4])
    assert unbent(np.array([0.8, 5.0])) == pytest.approx([-0.8 * math.log(0.05)] * 2)  # as far as it can be known
    assert unbent(np.array([-2.0])) == pytest.approx([-2.0])


# ---- strategies -----------------------------------------------------------------------------------------------------


def test_the_defaults_are_those_that_the_docs_give():
    text = Path("docs/lab/paper-algorithm.md").read_text()
    told = {**dict(re.findall(r"^\| `(\w+)` \| ([^| ]+) \|", text, re.MULTILINE))}
    defaults = msgspec.structs.asdict(DefaultHyper()) | msgspec.structs.asdict(PaperHyper())
    known = {name: value for name, value in told.items() if name in defaults}
    assert len(known) == 14
    assert {name: msgspec.convert(value, type(defaults[name]), strict=False) for name, value in known.items()} == {
        name: defaults[name] for name in known
    }


def test_the_defaults_that_no_table_gives():
    hyper = DefaultHyper()
    assert (hyper.settled, hyper.opening, hyper.explore, hyper.probe) == (0.05, 6, 0.003, 1.5)
    assert (hyper.failures, hyper.listed) == (0.0, 100_000)
    assert all((hyper.sparse, hyper.dense, PaperHyper().bandit, hyper.effects, hyper.simulators))


def test_a_strategy_without_a_seed_has_seed_0():
    orders = []
    for chosen in (strategy.strategy("random", SQUARE), *(strategy.strategy("random", SQUARE, s) for s in (0, 1))):
        order = []
        while batch := chosen.ask():
            order += batch
            chosen.tell([Measurement(configuration=c, name="", context="", status="error", metrics={}) for c in batch])
        orders.append(order)
    assert orders[0] == orders[1] != orders[2]


def test_a_kind_says_what_it_lacks():
    kind = Kind(name="own", make=kind_of("random").make, packages=("numpy", "no_such_a", "no_such_b"), how="ask")
    assert kind.missing == "strategy 'own' needs no_such_a and no_such_b: ask"
    plain = Kind(name="own", make=kind_of("random").make)
    assert plain.missing == ""
    flags = plain.lists, plain.asks_simulators, plain.learns, plain.several, plain.finite
    assert flags == (True, False, False, False, False)


@pytest.mark.parametrize("kind", [Hyper, Search, Kind, Past])
def test_what_a_search_is_made_of_is_given_by_name_and_stays(kind):
    assert kind.__struct_config__.frozen
    with pytest.raises(TypeError, match="Extra positional"):
        kind("anything")


def test_what_every_kind_of_ours_says_of_itself():
    ours = kind_of("autoscout")
    assert (ours.lists, ours.asks_simulators, ours.learns, ours.several, ours.finite) == (
        False,
        True,
        True,
        True,
        False,
    )
    assert [name for name in strategy.names() if kind_of(name).finite] == [
        "deepspeed-grid", "deepspeed-model", "deepspeed-random", "deepspeed-staged", "expert", "metis",
    ]  # fmt: skip
    assert strategy.names()[:2] == ["autoscout", "paper"]
    assert all(kind_of(name).lists for name in strategy.names() if name != "autoscout")


def test_errors_are_one_sentence(monkeypatch):
    monkeypatch.setattr(strategy, "_registered", {})
    with pytest.raises(AutoscoutError, match=r"^strategy 'grids' is unknown; did you mean 'grid'\?$") as unknown:
        kind_of("grids")
    assert unknown.value.exit_code == 2
    make = kind_of("random").make
    register(Kind(name="mine", make=make, packages=("no_such",), how="ask"))
    assert strategy.names()[-1] == "mine"
    with pytest.raises(AutoscoutError, match="strategy 'mine' needs no_such: ask") as lacking:
        usable("mine")
    assert lacking.value.exit_code == 2
    with pytest.raises(
        AutoscoutError, match="a strategy named 'grid' exists already; choose a different name"
    ) as taken:
        register(Kind(name="grid", make=make))
    assert taken.value.exit_code == 2
    with pytest.raises(AutoscoutError, match=r"strategy 'x' \(no\.such\) cannot be loaded: No module named 'no'"):
        strategy._loaded("x", "no.such")
    with pytest.raises(AutoscoutError, match=r"\.rivals\.grid declares no strategy 'x': STRATEGY is Kind\("):
        strategy._loaded("x", "autoscout.studies.rivals.grid")


def test_a_package_may_not_take_one_of_our_names(monkeypatch):
    entry = importlib.metadata.EntryPoint("paper", "their.package", strategy.GROUP)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [entry])
    with pytest.raises(AutoscoutError, match=r"their\.package adds a strategy 'paper', but that name is") as error:
        strategy._modules.__wrapped__()
    assert error.value.exit_code == 2


def test_a_space_that_cannot_be_listed_is_sampled_for_those_that_need_a_list():
    knobs = [
        Knob(name=f"k{i}", kind="dense", layer="", values=tuple(range(10)), meaning="", sets="") for i in range(12)
    ]
    huge, listing = Space(knobs, [], {}), kind_of("random")
    assert not huge.enumerable
    assert sampled(listing, SQUARE) == ""
    assert sampled(kind_of("autoscout"), huge) == ""
    said = "'random' needs a list of all configurations, so it searches a random 20,000 of 1,000,000,000,000"
    assert sampled(listing, huge) == said
    seen: list[Space] = []

    def make(search: Search) -> Strategy:
        seen.append(search.space)
        return kind_of("random").make(msgspec.structs.replace(search, space=SQUARE, default=None))

    default, told = (Configuration({knob.name: v for knob in knobs}) for v in (0, 9))
    before = Measurement(configuration=told, name="", context="", status="ok", metrics={})
    search = Search(space=huge, default=default, told=[before])
    made(Kind(name="own", make=make, lists=False), search)
    made(Kind(name="own", make=make), msgspec.structs.replace(search, space=SQUARE))
    made(Kind(name="own", make=make), search)
    assert seen[0] is huge
    assert seen[1] is SQUARE
    expected = huge.sampled(20_000, np.random.default_rng((0, 2)), including=[default, told])
    assert seen[2].feasible.codes.tolist() == expected.feasible.codes.tolist()
    assert seen[2].is_valid(default)
    assert seen[2].is_valid(told)


def test_without_a_default_the_first_is_drawn_by_the_seed():
    known = SQUARE.feasible.configuration(1)
    assert Search(space=SQUARE, default=known).first() is known
    for seed in range(6):
        drawn = SQUARE.sample(np.random.default_rng((seed, 1)))
        assert Search(space=SQUARE, seed=seed).first() == drawn
