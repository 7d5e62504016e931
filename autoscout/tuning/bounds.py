"""Simulators' predictions of the metrics in a job's constraints."""

import statistics
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec
import numpy as np

from autoscout.job.metrics import HIGHEST_RATE
from autoscout.job.objective import constraint
from autoscout.simulate.ensemble import Predictor, Simulators
from autoscout.simulate.member import Member, Prediction
from autoscout.simulate.training import memory as memory_model
from autoscout.space.graph import Space
from autoscout.targets.jobs import simulators_of
from kb.records import Job, Objective

_OF_NO_LOAD = ("peak_memory_gib", "kv_cache_tokens")


class Bounded(NamedTuple):
    """A constraint with the predictions of its metric for n configurations. `kept`: (n,) whether each meets it, true
    without a finite prediction."""

    text: str
    predicted: Prediction
    kept: np.ndarray

    @property
    def chance(self) -> np.ndarray:
        """(n,) probability that the constraint is met, assuming that the prediction's stated error is right."""
        _, compare, bound = constraint(self.text)
        with np.errstate(divide="ignore", invalid="ignore"):
            room = np.log(bound / self.predicted.value) / self.predicted.error * (1 if compare == "<=" else -1)
        known = np.isfinite(room)
        return np.where(known, [statistics.NormalDist().cdf(z) for z in np.where(known, room, 0.0)], self.kept)


def bounded(job: Job, memory: memory_model.Memory | None, columns: Mapping[str, np.ndarray]) -> Iterator[Bounded]:
    """The constraints whose metric a simulator predicts."""
    for text in job.objective.constraints:
        _, compare, bound = constraint(text)
        if model := _model(job, text, memory, columns):
            found = model.predict(columns)
            kept = found.value <= bound if compare == "<=" else found.value >= bound
            yield Bounded(text, found, kept | ~np.isfinite(found.value))


def foreseen(job: Job, simulators: Simulators, space: Space) -> dict[str, Predictor]:
    """For each bound that a simulator predicts, a predictor of how close configurations come to it (strategy.py)."""
    from autoscout.search.belief.foreseen import MEMORY  # imported here, because it loads scipy

    found: dict[str, Predictor] = {}
    if fullness := simulators.fullness(space):
        found[MEMORY] = fullness
    for text in job.objective.constraints:
        metric, compare, bound = constraint(text)
        model = _model(job, text, simulators.memory, simulators.any_row)
        if model is not None and bound > 0 and (metric, compare) != ("peak_memory_gib", ">="):
            name = MEMORY if metric == "peak_memory_gib" else text
            found.setdefault(name, _closeness(text, model, simulators, space))
    return found


def _closeness(text: str, model: Member, simulators: Simulators, space: Space) -> Predictor:
    from autoscout.search.belief.limits import closeness

    _, compare, bound = constraint(text)

    def predict(codes: np.ndarray) -> np.ndarray:
        return closeness(model.predict(simulators.columns_of(codes, space)).value, compare, bound)

    return predict


def _model(job: Job, text: str, memory: memory_model.Memory | None, columns: Mapping[str, np.ndarray]) -> Member | None:
    """The first simulator that predicts the constraint's metric without measured rows; None if there is none, or if the
    metric depends on the load of a job whose highest request rate is searched."""
    metric = constraint(text)[0]
    if job.objective.metric == HIGHEST_RATE and metric not in _OF_NO_LOAD:
        return None
    about = msgspec.structs.replace(job, objective=Objective(minimize=metric))
    models = [memory] if metric == "peak_memory_gib" and memory is not None else simulators_of(about)
    return next((m for m in models if not m.applies(columns)), None)
