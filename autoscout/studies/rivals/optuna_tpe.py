"""Optuna's tree-structured Parzen estimator (TPE), define-by-run: conditional, multivariate, grouped, with constant
liar. Except for the grouping, these are Optuna 5's defaults.

A trial suggests one knob after another, skipping knobs that are inactive given the previous suggestions. Numbers are
suggested by their index in the domain. If a suggestion is invalid, the nearest valid configuration is reported as a
separate trial, so that every reported cost was measured. A failed run gets the worst cost and breaks a constraint."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from autoscout.search.sequential import Pool, Search, rival
from autoscout.space.codes import INACTIVE

_FAILED = "failed"


def optuna_tpe(pool: Pool, rng: np.random.Generator) -> Search:
    import warnings

    import optuna  # type: ignore[import-not-found]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # hides warnings about experimental options
        sampler = optuna.samplers.TPESampler(
            multivariate=True,
            group=True,
            constant_liar=True,
            constraints_func=broken,
            seed=int(rng.integers(2**31)),
        )
    return by_trials(pool, sampler)


def broken(trial: Any) -> tuple[float]:
    """Optuna's constraint: above 0 if the run failed."""
    return (float(trial.user_attrs[_FAILED]),)


def by_trials(pool: Pool, sampler: Any, distinct: bool = False) -> Search:
    """Uses any Optuna sampler as a search. `distinct`: replace a suggestion that was measured before by the nearest
    unmeasured configuration."""
    import optuna  # type: ignore[import-not-found]

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=sampler)
    while True:
        trial = study.ask()
        row, taken = _define_by_run(pool, trial)
        if distinct and not pool.open[row]:
            far = np.where(pool.open, pool.distance(pool.codes[row]), np.inf)
            taken = _parameters(pool, int(np.argmin(far)))
        if taken != trial.params:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)  # samplers ignore failed trials
            study.enqueue_trial(taken)
            trial = study.ask()
            row, _ = _define_by_run(pool, trial)
        cost = yield row
        trial.set_user_attr(_FAILED, cost is None)
        study.tell(trial, float(pool.costs(1.0)[1].max()) if cost is None else cost)


def _define_by_run(pool: Pool, trial: Any) -> tuple[int, dict[str, Any]]:
    """Returns (the row that a trial's suggestions lead to, the parameters that represent this row)."""
    rows, taken = np.arange(len(pool)), {}
    for j, knob in enumerate(pool.space.knobs):
        column = pool.codes[rows, j]
        offered = np.unique(column)
        active = offered[offered != INACTIVE]
        if pool.levels[j] < 2 and len(offered) == 1:
            continue
        code, acts = INACTIVE, len(active) == len(offered)
        if not acts and len(active):
            acts = taken[f"{knob.name} acts"] = trial.suggest_categorical(f"{knob.name} acts", [False, True])
        if acts:
            if knob.kind == "dense":
                wanted = trial.suggest_int(knob.name, 0, pool.levels[j] - 1)
            else:
                wanted = trial.suggest_categorical(knob.name, list(range(pool.levels[j])))
            code = wanted if wanted in active else int(active[np.argmin(np.abs(active - wanted))])
            taken[knob.name] = code
        rows = rows[column == code]
    return int(rows[0]), taken


def _parameters(pool: Pool, row: int) -> dict[str, Any]:
    """The parameters of a trial whose suggestions lead to `row`."""
    codes = {knob.name: code for knob, code in zip(pool.space.knobs, pool.codes[row].tolist(), strict=True)}
    has = {**codes, **{f"{name} acts": code != INACTIVE for name, code in codes.items()}}
    like_it = SimpleNamespace(
        suggest_int=lambda name, low, high: has[name], suggest_categorical=lambda name, choices: has[name]
    )
    return _define_by_run(pool, like_it)[1]


STRATEGY = rival("optuna-tpe", optuna_tpe, packages=("optuna",), how="pip install 'autoscout[rivals]'")
