"""BoTorch (Balandat et al. 2020) with its defaults: a Gaussian process with dimension-scaled priors, and log expected
improvement (Ament et al. 2023), constrained by a second process that models failures.

As in gp_ei.py, it uses log costs, features per knob, and six random first points. The acquisition is computed on at
most 20,000 random unmeasured rows, and hyper-parameters are refitted when the data have grown by a tenth."""

from typing import Any

import numpy as np

from autoscout.search.sequential import Pool, Search, rival
from autoscout.studies.rivals.gp_ei import features

_FIRST, _CANDIDATES, _AT_ONCE = 6, 20_000, 2_000
_GROWTH = 1.1


def botorch_ei(pool: Pool, rng: np.random.Generator) -> Search:
    import torch

    torch.manual_seed(int(rng.integers(2**31)))
    table = torch.tensor(features(pool), dtype=torch.float64)
    fitted_on, states = 0, []
    while True:
        ran = {row: cost for row, cost in pool.known.items() if cost is not None}
        if len(pool.known) < _FIRST or len(ran) < 2:
            yield int(rng.choice(np.flatnonzero(pool.open)))
            continue
        refit = len(pool.known) >= _GROWTH * fitted_on
        fitted_on = len(pool.known) if refit else fitted_on
        logs = torch.tensor(np.log(list(ran.values())))[:, None]
        tables = [(table[list(ran)], logs)]
        if len(ran) < len(pool.known):
            failed = torch.tensor([[float(cost is None)] for cost in pool.known.values()], dtype=torch.float64)
            tables.append((table[list(pool.known)], failed))
        refit = refit or len(tables) > len(states)
        models = [
            _model(x, y, None if refit else state) for (x, y), state in zip(tables, states or [None] * 2, strict=False)
        ]
        states = [model.state_dict() for model in models]
        candidates = pool.candidates(rng, _CANDIDATES)
        yield int(candidates[_best(models, float(logs.min()), table[candidates])])


def _model(x: Any, y: Any, state: dict[str, Any] | None) -> Any:
    """A model of y at x. `state`: hyper-parameters to use; None: fit them."""
    from botorch.fit import fit_gpytorch_mll  # type: ignore[import-not-found]
    from botorch.models import SingleTaskGP  # type: ignore[import-not-found]
    from botorch.models.transforms import Standardize  # type: ignore[import-not-found]
    from gpytorch.mlls import ExactMarginalLogLikelihood  # type: ignore[import-not-found]

    model = SingleTaskGP(x, y, outcome_transform=Standardize(1))
    if state is None:
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    else:
        model.load_state_dict({k: v for k, v in state.items() if not k.startswith("outcome_transform")}, strict=False)
    return model.eval()


def _best(models: list[Any], least: float, candidates: Any) -> int:
    import torch
    from botorch.acquisition import LogExpectedImprovement  # type: ignore[import-not-found]
    from botorch.acquisition.analytic import LogConstrainedExpectedImprovement  # type: ignore[import-not-found]
    from botorch.models import ModelListGP  # type: ignore[import-not-found]

    if len(models) == 1:
        acquisition = LogExpectedImprovement(models[0], best_f=least, maximize=False)
    else:
        acquisition = LogConstrainedExpectedImprovement(
            ModelListGP(*models), best_f=least, objective_index=0, constraints={1: (None, 0.5)}, maximize=False
        )
    with torch.no_grad():
        values = torch.cat([acquisition(some[:, None]) for some in candidates.split(_AT_ONCE)])
    return int(values.argmax())


HOW = "make rivals makes an environment that has it"
STRATEGY = rival("botorch", botorch_ei, packages=("botorch",), how=HOW)
