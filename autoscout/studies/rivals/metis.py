"""Metis (Um et al., ATC 2024): the best 3D-parallel plan by a cost model, with an expert's values of other settings.

Metis enumerates data, tensor and pipeline parallel plans over heterogeneous devices, estimates each from profiled
layers, and runs the best. Here, the mean rank by the given simulators is the cost model. A plan is a combination of tp,
pp, dp, micro batch, number of devices of every kind, and layers of a stage on each kind; all other knobs are as near to
the default as possible. Plans are measured in the order of their estimates; without a simulator, those with the least
model parallelism come first. In a space without these knobs, a plan is a combination of the sparse knobs (or of all
knobs). The search ends when all plans are measured."""

import numpy as np

from autoscout.search.sequential import Pool, Search, rival
from autoscout.space.knob import Knob

_PLAN = ("tp", "pp", "dp", "mbs", "micro_batch")


def metis(pool: Pool, rng: np.random.Generator) -> Search:
    plans = _plans(pool)
    for i in np.argsort(_estimates(pool, plans), kind="stable"):
        yield int(plans[i])


def _plans(pool: Pool) -> np.ndarray:
    """Returns one row index per plan: of the rows with the plan's values, the one nearest to the default."""
    knobs = pool.space.knobs
    columns = [j for j, knob in enumerate(knobs) if _planned(knob)]
    columns = columns or [j for j, knob in enumerate(knobs) if knob.kind == "sparse"] or list(range(len(knobs)))
    by_distance = np.argsort(pool.distance(pool.codes[pool.default]), kind="stable")
    _, first = np.unique(pool.codes[by_distance][:, columns], axis=0, return_index=True)
    return by_distance[np.sort(first)]


def _planned(knob: Knob) -> bool:
    devices = knob.layer == "devices" and knob.kind == "sparse"  # the number of devices of one kind
    return knob.name in _PLAN or devices or knob.sets == "pipeline_model_parallel_layout"


def _estimates(pool: Pool, plans: np.ndarray) -> np.ndarray:
    """Metis's estimated cost of each plan, (plans,); lower is better."""
    if not pool.simulators:
        values = pool.space.feasible.columns(pool.codes[plans])
        return np.prod([np.nan_to_num(values[n], nan=1) for n in ("tp", "pp") if n in values], axis=0) * np.ones(
            len(plans)
        )
    ranks = []
    for predict in pool.simulators.values():
        predicted = np.asarray(predict(pool.codes[plans]), dtype=float)
        cost = predicted if pool.space.objective.minimize else -predicted
        cost = np.where(np.isfinite(predicted), cost, np.inf)  # inf if it is predicted to fail or has no prediction
        ranks.append(np.argsort(np.argsort(cost, kind="stable"), kind="stable"))
    return np.mean(ranks, axis=0)


STRATEGY = rival("metis", metis, finite=True)
