"""Rows of two jobs say of a third what whole jobs do: each is predicted from the other, not from its own rows."""

import numpy as np
from levelled import Physics

from autoscout.simulate.learned import weighing
from autoscout.simulate.learned.stack import Ensemble
from autoscout.simulate.members import with_learned


def job(size: float, level: float, seed: int):
    rng = np.random.default_rng(seed)
    columns = {"size": np.full(60, size), "tp": rng.choice([1.0, 2.0, 4.0, 8.0], 60), "mbs": rng.choice([1.0, 2.0], 60)}
    truth = level * size / columns["tp"] ** 0.8 * np.exp(0.01 * rng.standard_normal(60))
    return columns, truth


def test_the_interval_for_a_third_holds_its_level():
    inside = []
    for seed in range(10):
        levels = np.exp(0.1 * np.random.default_rng(100 + seed).standard_normal(3))
        some = [job(size, level, seed + i) for i, (size, level) in enumerate(zip((1.0, 3.0, 9.0), levels, strict=True))]
        known = {name: np.concatenate([some[0][0][name], some[1][0][name]]) for name in some[0][0]}
        ensemble = Ensemble(with_learned([Physics()]))
        ensemble.fit(known, np.concatenate([some[0][1], some[1][1]]), np.repeat(["first", "second"], 60))
        said = ensemble.predict(some[2][0])
        inside.append(float((np.abs(np.log(said.value / some[2][1])) <= weighing.SPAN * said.error).mean()))
    assert np.mean(inside) > 0.7  # 0.23 where rows of both are held out one by one


def test_each_of_two_jobs_is_predicted_from_the_other():
    (one, low), (two, high) = job(1.0, 1.0, 0), job(3.0, 1.5, 1)
    ensemble = Ensemble(with_learned([Physics()]))
    known = {name: np.concatenate([one[name], two[name]]) for name in one}
    ensemble.fit(known, np.concatenate([low, high]), np.repeat(["first", "second"], 60))
    off = np.log(ensemble.held_out / np.concatenate([low, high]))
    assert abs(np.median(off[60:])) > 0.2  # nothing of the other says its level
