"""Searches that are other people's packages, which need not be installed: what ours hands to them and takes from them,
with a stand-in for each package that remembers what it was given."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_sequential_by_hand import X, pool, row_of

from autoscout.space.graph import Space
from autoscout.studies.rivals import deepspeed_model, optuna_gp, optuna_tpe
from autoscout.studies.rivals.deepspeed_model import model_based
from autoscout.studies.rivals.hebo import hebo_gp
from autoscout.studies.rivals.kernel_tuner_bayes import kernel_tuner_bayes
from autoscout.studies.rivals.kernel_tuner_genetic import kernel_tuner_genetic
from autoscout.studies.rivals.kernel_tuner_vndx import kernel_tuner_vndx
from autoscout.studies.rivals.smac import smac3


def installed(monkeypatch, **modules: dict[str, Any]) -> None:
    """Modules by their names with _ for the dots."""
    for name, contents in modules.items():
        made = ModuleType(name.replace("__", "."))
        made.__dict__.update(contents)
        monkeypatch.setitem(sys.modules, made.__name__, made)


def driven(search, made, costs: list[float | None]) -> list[int]:
    """The rows that are yielded while these are what they cost."""
    rows = [next(search)]
    for cost in costs:
        made.learn(rows[-1], cost)
        rows.append(search.send(cost))
    return rows


# Codes that the stand-ins suggest: a valid row, one that is not (n without its switch), and a valid one.
SUGGESTED = [{"m": 1, "on": 1, "x": 2, "n": 1}, {"m": 0, "on": 0, "x": 3, "n": 2}, {"m": 0, "on": 1, "x": 0, "n": 0}]


def test_hebo_is_told_integers_categories_and_twice_the_worst_for_a_failure(monkeypatch):
    parsed, seeds, observed = [], [], []

    class Hebo:
        def __init__(self, space, scramble_seed: int) -> None:
            seeds.append(scramble_seed)

        def suggest(self, n_suggestions: int):
            assert n_suggestions == 1
            return {name: SimpleNamespace(iloc=[code, -9]) for name, code in SUGGESTED[len(observed)].items()}

        def observe(self, suggestion, costs) -> None:
            observed.append(costs.tolist())

    design = {"DesignSpace": lambda: SimpleNamespace(parse=parsed.append)}
    empty: dict[str, Any] = {}
    installed(
        monkeypatch,
        hebo=empty,
        hebo__design_space=empty,
        hebo__design_space__design_space=design,
        hebo__optimizers=empty,
        hebo__optimizers__hebo={"HEBO": Hebo},
    )
    made = pool({0: 3.0})
    rows = driven(hebo_gp(made, np.random.default_rng(4)), made, [5.0, None])
    assert rows[0] == row_of("q", 8, 3)
    assert rows[1] == made.nearest(np.array([SUGGESTED[1][k.name] for k in made.space.knobs]))
    assert rows[2] == row_of("p", 1, 1)
    assert seeds == [np.random.default_rng(4).integers(2**31)]
    assert observed == [[[5.0]], [[10.0]]]
    kinds = {each["name"]: each for each in parsed[0]}
    assert kinds["x"] == {"name": "x", "type": "int", "lb": 0, "ub": 3}
    assert kinds["m"] == {"name": "m", "type": "cat", "categories": [0, 1]}
    assert len(kinds) == 4
    constant = Space.from_table([{"a": 1, "b": 1}, {"a": 2, "b": 1}], [], ["a", "b"])
    monkeypatch.setitem(SUGGESTED[2], "a", 1)
    assert next(hebo_gp(pool(space=constant, default=0), np.random.default_rng(4))) == 1
    assert [each["name"] for each in parsed[1]] == ["a"]


def test_smac_is_told_integers_categories_and_crashes_at_twice_the_worst(monkeypatch):
    added, scenarios, told = [], [], []

    class ExhaustedError(Exception):
        pass

    class Facade:
        def __init__(self, scenario, target, initial_design: int, logging_level: bool, overwrite: bool) -> None:
            assert np.isnan(target({}))
            assert initial_design == 10
            assert (logging_level, overwrite) == (False, True)

        @staticmethod
        def get_initial_design(scenario, n_configs: int) -> int:
            return n_configs

        def ask(self):
            if len(told) == len(SUGGESTED):
                raise ExhaustedError
            return SimpleNamespace(config=SUGGESTED[len(told)])

        def tell(self, trial, value) -> None:
            told.append((value.cost, value.status))

    space = SimpleNamespace(add=added.append)
    seeds: list[int] = []
    empty: dict[str, Any] = {}
    installed(
        monkeypatch,
        ConfigSpace={
            "Categorical": lambda name, choices, default: (name, choices, default),
            "Integer": lambda name, bounds: (name, bounds),
            "ConfigurationSpace": lambda seed: (seeds.append(seed), space)[1],
        },
        smac={
            "HyperparameterOptimizationFacade": Facade,
            "Scenario": lambda space, **given: scenarios.append(given),
        },
        smac__main=empty,
        smac__main__exceptions={"ConfigurationSpaceExhaustedException": ExhaustedError},
        smac__runhistory=empty,
        smac__runhistory__dataclasses={"TrialValue": lambda cost, status: SimpleNamespace(cost=cost, status=status)},
        smac__runhistory__enumerations={"StatusType": SimpleNamespace(CRASHED="crashed", SUCCESS="success")},
    )
    made = pool({0: 3.0})
    rows = driven(smac3(made, np.random.default_rng(4)), made, [5.0, None, 4.0, 4.0])
    assert rows[0] == row_of("q", 8, 3)
    assert rows[2] == row_of("p", 1, 1)
    assert told == [(5.0, "success"), (10.0, "crashed"), (4.0, "success")]
    assert len({0, *rows}) == 6, "when it finds nothing new, what was not measured yet"
    assert ("x", (0, 3)) in added
    assert ("m", [0, 1], 0) in added
    assert len(added) == 4
    [scenario] = scenarios
    seed = np.random.default_rng(4).integers(2**31)
    assert (seeds, scenario["seed"]) == ([seed], seed)
    assert (scenario["deterministic"], scenario["n_trials"], scenario["use_default_config"]) == (True, 10**6, False)


def test_deepspeed_s_model_is_xgboost_on_scaled_rows(monkeypatch):
    trained = []

    def train(parameters, data):
        trained.append((parameters, *data))
        return SimpleNamespace(predict=lambda at: at[0][:, X])

    installed(monkeypatch, xgboost={"DMatrix": lambda *given: given, "train": train})
    made = pool({3: 2.0, 7: None, 9: 0.5})
    found = deepspeed_model.ranked(made, np.array([1, 30]))
    assert found.tolist() == made.scaled(np.array([1, 30]))[:, X].tolist()
    parameters, x, performance = trained[0]
    assert performance.tolist() == [0.25, 0.0, 1.0]
    assert x.tolist() == made.scaled(np.array([3, 7, 9])).tolist()
    assert parameters == {
        "max_depth": 3, "gamma": 0.0001, "min_child_weight": 1, "subsample": 1.0, "eta": 0.3, "lambda": 1.0,
        "alpha": 0, "objective": "rank:pairwise", "verbosity": 0, "nthread": 1,
    }  # fmt: skip
    assert deepspeed_model.ranked(pool({3: None}), np.array([1])).shape == (1,)  # nothing ran: nothing is divided by
    assert trained[1][2].tolist() == [0.0]


@pytest.mark.parametrize("seed", range(4))
def test_after_two_random_trials_the_best_ranked_is_tried_or_a_fifth_at_random(monkeypatch, seed):
    installed(
        monkeypatch,
        xgboost={
            "DMatrix": lambda *given: given,
            "train": lambda *_: SimpleNamespace(predict=lambda at: at[0][:, X]),
        },
    )
    made, rng, copy = pool({5: 1.0}), np.random.default_rng(seed), np.random.default_rng(seed)
    made.patience = 0
    search = model_based(made, rng)
    row = next(search)
    for step in range(12):
        free = np.flatnonzero(made.open)
        if step < 2 or copy.random() < 0.2:
            assert row == copy.choice(free)
        else:
            assert row == free[np.argmax(made.scaled(free)[:, X])]
        made.learn(row, 1.0)
        row = search.send(1.0)


class Trial:
    """Of Optuna's: suggests what is fixed, else what it is given."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.given, self.params, self.user_attrs = given, {}, {}

    def suggest_int(self, name: str, low: int, high: int) -> int:
        return self.suggest_categorical(name, [])

    def suggest_categorical(self, name: str, choices: list) -> Any:
        self.params[name] = self.given[name]
        return self.params[name]

    def set_user_attr(self, name: str, value: Any) -> None:
        self.user_attrs[name] = value


def test_optuna_is_told_costs_failures_at_the_worst_and_what_was_tried_in_place_of_its_suggestions(monkeypatch):
    told, levels, queue = [], [], []
    invalid, valid = {"m": 1, "on": 1, "x": 2, "n": 9}, {"m": 1, "on": 1, "x": 2, "n": 2}

    def tell(trial: Trial, *value: float, **state: str) -> None:
        told.append((trial.params, value, state, trial.user_attrs))

    study = SimpleNamespace(ask=lambda: Trial(queue.pop() if queue else invalid), tell=tell, enqueue_trial=queue.append)
    installed(
        monkeypatch,
        optuna={
            "logging": SimpleNamespace(set_verbosity=levels.append, ERROR="error"),
            "create_study": lambda sampler: study,
            "trial": SimpleNamespace(TrialState=SimpleNamespace(FAIL="fail")),
        },
    )
    made = pool({5: 3.0})
    rows = driven(optuna_tpe.by_trials(made, None), made, [2.0, None])
    assert rows == [row_of("q", 8, 9)] * 3
    not_tried = (invalid, (), {"state": "fail"}, {})
    assert told == [
        not_tried,
        (valid, (2.0,), {}, {"failed": False}),
        not_tried,
        (valid, (3.0,), {}, {"failed": True}),
        not_tried,
    ]
    assert levels == ["error"]
    assert [optuna_tpe.broken(SimpleNamespace(user_attrs=attrs)) for *_, attrs in (told[1], told[3])] == [
        (0.0,),
        (1.0,),
    ]


@pytest.mark.parametrize("ours", [optuna_gp.optuna_gp, optuna_tpe.optuna_tpe])
def test_optuna_s_samplers_are_made_with_a_seed_of_ours(monkeypatch, ours):
    made: list[dict[str, Any]] = []
    installed(
        monkeypatch,
        optuna={
            "exceptions": SimpleNamespace(ExperimentalWarning=UserWarning),
            "samplers": SimpleNamespace(
                GPSampler=lambda **given: made.append(given), TPESampler=lambda **given: made.append(given)
            ),
        },
    )
    ours(pool(), np.random.default_rng(4))
    seed = int(np.random.default_rng(4).integers(2**31))
    gp = ours is optuna_gp.optuna_gp
    kind = {"deterministic_objective": False} if gp else {"multivariate": True, "group": True, "constant_liar": True}
    assert made == [{**kind, "seed": seed, "constraints_func": optuna_tpe.broken}]


class Budget:
    """Of Kernel Tuner's."""

    def __init__(self, max_fevals: int) -> None:
        self.most, self.spent = max_fevals, 0

    def add_evaluations(self, n: int) -> None:
        self.spent += n


def test_kernel_tuner_s_loops_get_the_valid_configurations_and_a_runner_that_asks_us(monkeypatch):
    runs: list[tuple[Any, Any, list]] = []

    def tune(space, runner, settings) -> None:
        """Asks for two, one of them again, and is over."""
        runner.add_strategy_time(1.0)
        found = runner.run([space.list[3], list(space.list[7])], settings) + runner.run([space.list[3]], settings)
        runs.append((space, settings, found))

    def searchspace(*nothing: None, from_cache: dict[str, dict]):
        names, listed = from_cache["tune_params"], from_cache["cache"].values()
        assert nothing == (None, None, None)
        return SimpleNamespace(tune_params=names, list=[tuple(each[name] for name in names) for each in listed])

    options = type("Options", (dict,), {"__getattr__": dict.__getitem__})
    empty: dict[str, Any] = {}
    installed(
        monkeypatch,
        kernel_tuner=empty,
        kernel_tuner__interface={"Options": options},
        kernel_tuner__searchspace={"Searchspace": searchspace},
        kernel_tuner__util={"TuningBudget": Budget, "RuntimeFailedConfig": lambda: "failed"},
        kernel_tuner__strategies=empty,
        **{
            f"kernel_tuner__strategies__{n}": {"tune": tune}
            for n in ("gen_hybrid_vndx", "genetic_algorithm", "bayes_opt")
        },
    )
    made = pool()
    search = kernel_tuner_vndx(made, np.random.default_rng(4))
    rows = driven(search, made, [2.0, None, 2.0])
    space, settings, found = runs[0]
    assert found == [{"cost": 2.0}, {"__error__": "failed"}, {"cost": 2.0}]
    assert rows == [3, 7, 3, 3]  # and the loop begins anew, as there are more
    codes = {knob.name: sorted({*made.codes[:, j].tolist()}) for j, knob in enumerate(made.space.knobs)}
    assert space.tune_params == codes == {"m": [0, 1], "on": [0, 1], "x": [0, 1, 2, 3], "n": [-1, 0, 1, 2]}
    assert space.list == [tuple(row) for row in made.codes.tolist()]
    assert settings.strategy_options == {"budget": 10**9, "max_fevals": 32}
    assert (settings.budget.most, settings.budget.spent) == (32, 2)
    assert (settings.objective, settings.objective_higher_is_better, settings.verbose) == (["cost"], [False], False)
    search.send(2.0)
    at_random = [search.send(None), search.send(2.0)][-1]  # which asked for what is known: one at random in between
    assert made.open[at_random]
    search.close()

    constant = Space.from_table([{"a": 1, "b": 1}, *({"a": a, "b": 1} for a in range(2, 9))], [], ["a", "b"])
    few = pool(space=constant, default=0)
    bayes = kernel_tuner_bayes(few, np.random.default_rng(4))
    driven(bayes, few, [1.0, None, 1.0])
    space, settings, found = runs[-1]
    assert found == [{"cost": 1.0}, {"cost": 1e20}, {"cost": 1.0}]
    assert list(space.tune_params) == ["a"]
    assert settings.strategy_options == {"method": "multi-advanced", "samplingmethod": "random", "max_fevals": 8}
    genetic = kernel_tuner_genetic(pool(), np.random.default_rng(4))
    assert next(genetic) == 3
