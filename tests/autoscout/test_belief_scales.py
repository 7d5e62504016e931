"""On what scale costs tell of the rest: where nearly all are many times the best, bent ones are all alike."""

import itertools

import numpy as np
import pytest

from autoscout.search.belief.bending import BEND, STRAIGHT, bent, slope, unbent
from autoscout.search.belief.encoding import Encoding
from autoscout.search.belief.ranking import believed_of
from autoscout.search.belief.surrogate import Surrogate
from autoscout.search.hyper import DefaultHyper
from autoscout.search.pool import CandidatePool
from autoscout.space.graph import Space
from kb.records import Objective, Value

LEVELS: dict[str, list[Value]] = {
    "replicas": [1, 2, 4, 8, 16],
    "batch": [16, 32, 64, 128, 256, 512],
    "chunk": [1, 2, 3, 4, 5],
    "kv": [0, 1],
    "block": [8, 16, 32],
}
ROWS: list[dict[str, Value]] = [dict(zip(LEVELS, v, strict=True)) for v in itertools.product(*LEVELS.values())]


def queue() -> tuple[Space, np.ndarray]:
    """A server whose queue runs over nearly everywhere; (n,) log-costs."""
    space = Space.from_table(ROWS, ["kv"], ["replicas", "batch", "chunk", "block"], Objective(minimize="time_s"))
    knobs = {k.name: np.array(k.values, dtype=float)[space.feasible.codes[:, i]] for i, k in enumerate(space.knobs)}
    load = 4 - np.log2(knobs["replicas"]) + abs(np.log2(knobs["batch"]) - 7) + 0.5 * knobs["kv"]
    return space, 0.8 * load + 0.05 * knobs["chunk"]


def told(space: Space, logs: np.ndarray, rows: np.ndarray, seed: int) -> Surrogate:
    rng = np.random.default_rng(seed)
    pool = CandidatePool(space, rng)
    model = Surrogate(pool, Encoding(space.knobs, pool.codes), [], DefaultHyper(), rng)
    for row in rows.tolist():
        model.tell(row, float(np.exp(logs[row] + 0.02 * rng.standard_normal())))
    model.update([])
    return model


@pytest.mark.parametrize("seed", range(3))
def test_a_belief_that_heard_of_hopeless_costs_only_is_not_sure_that_all_are_so(seed):
    """Of 25 configurations that all cost e times the best or more, most of them far more."""
    space, logs = queue()
    worse = np.flatnonzero(logs > logs.min() + 1)
    model = told(space, logs, np.random.default_rng(seed).choice(worse, 25, replace=False), seed)
    best = int(np.argmin(logs))
    mean, deviation = believed_of(model, np.array([best]))
    assert (logs[best] - model.logs.min() - mean[0]) / deviation[0] > -4


@pytest.mark.parametrize("scale", [BEND, STRAIGHT])
def test_the_scale_on_which_costs_follow_their_knobs_is_believed(scale):
    """Evidence is of the logarithms themselves, so that it does not favour the scale on which they are small."""
    space, logs = queue()
    rng = np.random.default_rng(5)
    u = logs - logs.min()
    plain = unbent(0.7 * u / u.max()) if scale == BEND else u
    model = told(space, plain, rng.choice(len(u), 60, replace=False), 5)
    assert {m.mean.bend: m.weight for m in model.members}[scale] > 0.9


def test_a_small_difference_on_one_scale_is_that_much_on_the_other():
    v = np.array([-0.2, 0.1, 0.4, 0.7])
    here, there = unbent(v), 1e-5
    told = (bent(unbent(bent(here, 3.0) + there, 3.0)) - v) / there
    assert slope(v, 3.0) == pytest.approx(told, rel=1e-3)
