"""SMAC3 (Lindauer et al. 2022): random forest and expected improvement, its facade for hyper-parameters, ask and tell.

Every knob is an integer (dense) or a category (sparse) of a flat ConfigSpace; a proposal goes to the nearest valid
configuration. A failed run is told as crashed at twice the worst cost. Ours: ten first points; its own number, ten for
each knob, is half of a usual budget.
"""

import math
import tempfile
from pathlib import Path

import numpy as np

from autoscout.search.sequential import Pool, Search, rival

_FAILED, _FIRST = 2.0, 10


def smac3(pool: Pool, rng: np.random.Generator) -> Search:
    from ConfigSpace import Categorical, ConfigurationSpace, Integer  # type: ignore[import-not-found]
    from smac import HyperparameterOptimizationFacade, Scenario  # type: ignore[import-not-found]
    from smac.main.exceptions import ConfigurationSpaceExhaustedException  # type: ignore[import-not-found]
    from smac.runhistory.dataclasses import TrialValue  # type: ignore[import-not-found]
    from smac.runhistory.enumerations import StatusType  # type: ignore[import-not-found]

    seed = int(rng.integers(2**31))
    space = ConfigurationSpace(seed=seed)
    acting = [(j, knob) for j, knob in enumerate(pool.space.knobs) if pool.levels[j] > 1]
    for j, knob in acting:
        place = list(range(pool.levels[j]))
        space.add(
            Integer(knob.name, (0, place[-1])) if knob.kind == "dense" else Categorical(knob.name, place, default=0)
        )
    with tempfile.TemporaryDirectory() as folder:
        scenario = Scenario(
            space,
            deterministic=True,
            n_trials=10**6,
            seed=seed,
            output_directory=Path(folder),
            use_default_config=False,
        )
        optimizer = HyperparameterOptimizationFacade(
            scenario,
            lambda config, seed=0: math.nan,
            initial_design=HyperparameterOptimizationFacade.get_initial_design(scenario, n_configs=_FIRST),
            logging_level=False,
            overwrite=True,
        )
        while True:
            try:
                trial = optimizer.ask()
            except ConfigurationSpaceExhaustedException:  # it drew nothing new several times, and draws no more
                break
            codes = np.zeros(len(pool.levels), dtype=int)
            for j, knob in acting:
                codes[j] = int(trial.config[knob.name])
            cost = yield pool.nearest(codes)
            _, told = pool.costs(_FAILED)  # the one that failed is among them
            value = float(told.max()) if cost is None else cost
            status = StatusType.CRASHED if cost is None else StatusType.SUCCESS
            optimizer.tell(trial, TrialValue(cost=value, status=status))
    while True:  # the few that are left
        yield int(rng.choice(np.flatnonzero(pool.open)))


STRATEGY = rival("smac", smac3, packages=("smac",), how="pip install smac, in an environment without HEBO")
