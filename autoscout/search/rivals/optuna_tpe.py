"""Optuna's tree-structured Parzen estimator, define-by-run: conditional, multivariate and grouped.

A trial suggests knob after knob; a knob that is inactive under what was suggested before is not suggested, and an
invalid suggestion goes to the nearest valid value. Numbers are suggested by their index in the domain.
"""

import numpy as np

from autoscout.search.sequential import Pool, Search, rival
from autoscout.space.codes import INACTIVE


def optuna_tpe(pool: Pool, rng: np.random.Generator) -> Search:
    import warnings

    import optuna  # type: ignore[import-not-found]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(multivariate=True, group=True, seed=int(rng.integers(2**31)))
    return by_trials(pool, sampler)


def by_trials(pool: Pool, sampler) -> Search:
    """Any Optuna sampler as a search; a failed run is a failed trial."""
    import optuna  # type: ignore[import-not-found]

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=sampler)
    while True:
        trial = study.ask()
        cost = yield _define_by_run(pool, trial)
        if cost is None:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            study.tell(trial, cost)


def _define_by_run(pool: Pool, trial) -> int:
    """The row that a trial's suggestions lead to."""
    rows = np.arange(len(pool))
    for j, knob in enumerate(pool.space.knobs):
        column = pool.codes[rows, j]
        offered = np.unique(column)
        active = offered[offered != INACTIVE]
        if pool.levels[j] < 2 and len(offered) == 1:
            continue
        code = INACTIVE
        if len(active) == len(offered) or (
            len(active) and trial.suggest_categorical(f"{knob.name} acts", [False, True])
        ):
            if knob.kind == "dense":
                wanted = trial.suggest_int(knob.name, 0, pool.levels[j] - 1)
                code = int(active[np.argmin(np.abs(active - wanted))])
            else:
                wanted = trial.suggest_categorical(knob.name, list(range(pool.levels[j])))
                code = wanted if wanted in active else int(active[np.argmin(np.abs(active - wanted))])
        rows = rows[column == code]
    return int(rows[0])


STRATEGY = rival("optuna-tpe", optuna_tpe, packages=("optuna",), how="pip install 'autoscout[rivals]'")
