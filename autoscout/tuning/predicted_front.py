"""The configurations that simulators predict to be Pareto-optimal: none is better in the objective and in a second
metric. Found by the weighted product method (Bridgman 1922; Miller and Starr 1969): the least cost₁^(1 − w) · cost₂^w
for several weights w, of which the dominated ones are then dropped."""

from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from autoscout.job.metrics import DEVICES, HIGHEST_RATE
from autoscout.job.objective import from_metric, others
from autoscout.search.hypervolume import front
from autoscout.targets.jobs import JobSpace
from autoscout.tuning.best_predicted import PredictedRows, Ranked
from autoscout.tuning.predict import fitted_simulators
from kb.records import Job, Objective, Value

_WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)
_EACH = 8  # best configurations of each weight, which are simulated one by one
_FELT, _DONE = "tpot_mean_ms", "output_tokens_per_s"  # what a user waits for, and what a server does


class Compromise(msgspec.Struct, frozen=True):
    """A Pareto-optimal configuration. `x`: the objective's metric; `y`: the second metric."""

    name: str
    configuration: dict[str, Value]
    x: float
    y: float


def second_of(objective: Objective) -> Objective | None:
    """The second metric: the job's second objective, or that of a server's users if the objective is the server's, and
    the other way round; None for objectives that are searched over loads or devices."""
    if objective.metric in (HIGHEST_RATE, DEVICES):
        return None
    return next(iter(others(objective)), Objective(minimize=_FELT) if objective.maximize else Objective(maximize=_DONE))


def predicted_front(space: JobSpace, job: Job, second: Objective, kb: Path | None) -> list[Compromise]:
    """The predicted front, best in the objective first; empty if nothing predicts the second metric.

    Errors: AutoscoutError, as best_predicted.ranking."""
    goals = [job.objective, msgspec.structs.replace(second, constraints=job.objective.constraints)]
    jobs = [msgspec.structs.replace(job, objective=goal) for goal in goals]
    simulators = [fitted_simulators(each, kb)(space) for each in jobs]
    if any(each.predictor() is None for each in simulators):
        return []
    one, two = (PredictedRows(space, each, some) for each, some in zip(jobs, simulators, strict=True))

    def weighted(codes: np.ndarray, w: float) -> np.ndarray:
        with np.errstate(invalid="ignore"):
            cost = one.costs(codes) ** (1 - w) * two.costs(codes) ** w
        return np.where(np.isnan(cost), np.inf, cost)

    found = [one.first_ones(partial(weighted, w=w), _EACH)[:_EACH] for w in _WEIGHTS]
    plain = np.array([*dict.fromkeys(tuple(row) for row in np.concatenate(found).tolist())], dtype=np.int16)
    best = np.array([_plain(row, one, two) for row in _unbeaten(plain, one, two)[0]], dtype=np.int16)
    return [
        Compromise(x.name, x.configuration, x.value, y.value)
        for x, y in zip(*_unbeaten(best, one, two)[1:], strict=True)
    ]


def _plain(row: np.ndarray, one: PredictedRows, two: PredictedRows) -> np.ndarray:
    """The configuration that is most similar to the reference among those that are about as good in both metrics."""
    costs = one.costs(row[None])[0], two.costs(row[None])[0]
    return one.nearest(row, lambda codes: np.maximum(one.costs(codes) / costs[0], two.costs(codes) / costs[1]))


def _unbeaten(
    codes: np.ndarray, one: PredictedRows, two: PredictedRows
) -> tuple[np.ndarray, list[Ranked], list[Ranked]]:
    """(codes, predictions of the objective, of the second metric) of the front among these rows, each simulated by
    itself, without those that probably break a limit or run out of memory."""
    firsts, seconds = ([each.ranked([each.space.of_codes(row)])[0] for row in codes.tolist()] for each in (one, two))
    held = [min(r.kept_probability or 1.0, 1 - (r.oom_probability or 0.0)) >= 0.5 for r in firsts]
    goals = one.job.objective, two.job.objective
    costs = np.array(
        [
            [from_metric(goal, row.value) for goal, row in zip(goals, both, strict=True)]
            for both in zip(firsts, seconds, strict=True)
        ]
    ).reshape(-1, 2)
    costs[~np.isfinite(costs).all(axis=1) | ~np.array(held, dtype=bool)] = np.inf
    best = front(costs)
    at = [int(np.flatnonzero((costs == point).all(axis=1))[0]) for point in best if np.isfinite(point).all()]
    return codes[at], [firsts[i] for i in at], [seconds[i] for i in at]
