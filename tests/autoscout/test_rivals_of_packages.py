"""Searches that are other people's packages, which need not be installed: what ours hands to them and takes from them,
with a stand-in for each package that remembers what it was given."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_sequential_by_hand import X, pool, row_of

from autoscout.studies.rivals import deepspeed_model, optuna_gp, optuna_tpe
from autoscout.studies.rivals.deepspeed_model import model_based


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
