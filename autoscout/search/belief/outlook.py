"""Derives further results from a fitted model: how much gain is left to find, what another measurement of a row would
show, and what the model predicts without simulators. (A simulator may explain well why most configurations are slow,
but be wrong about which of the fast ones is fastest.)"""

import numpy as np

from autoscout.search.belief.bending import slope
from autoscout.search.belief.surrogate import Surrogate

_JOINT, _DRAWS = 200, 400  # number of candidates, and of joint samples


def outlook(model: Surrogate, ahead: int, margin: float) -> tuple[float, float]:
    """(probability that some candidate is cheaper than the best measured row by more than `margin`, expected gain of
    the best of the `ahead` most promising ones), both relative to its cost. Estimated from samples of the members'
    joint posteriors and averaged by weight, because the most probable member changes with every fit."""
    order = np.argsort(-model.gain, kind="stable")[:_JOINT]
    order = order[model.gain[order] > 0]  # excludes tried rows, and rows equal to them but for knobs without effect
    if not len(order):
        return 0.0, 0.0
    own, rng = model.unexplained()[0], np.random.default_rng(len(model.rows))
    drawn_noise, runs = rng.standard_normal((_DRAWS, len(order))), rng.random((_DRAWS, len(order))) < model.runs[order]
    chance = gain = 0.0
    for member in model.active():
        assert member.belief is not None
        across = member.unit * slope(member.expected[order], member.mean.bend)
        spread = across[:, None] * member.belief.covariance(order) * across + own * np.eye(len(order))
        values, vectors = np.linalg.eigh(spread)
        drawn = member.expected[order] + (drawn_noise * np.sqrt(np.maximum(values, 0))) @ vectors.T
        better = np.where(runs, model.least - drawn, -np.inf)
        chance += member.weight * float(np.mean(better.max(axis=1) > margin))
        gain += member.weight * float(np.maximum(better[:, :ahead].max(axis=1), 0).mean())
    return chance, gain


def best_row(model: Surrogate) -> int:
    """The row that was believed to be best at the last `update`, of those that qualify."""
    believed = model.believed_costs()
    return int(model.rows[int(np.argmin(np.where(model.kept[: len(believed)], believed, np.inf)))])


def worth(model: Surrogate) -> tuple[np.ndarray, np.ndarray]:
    """((n,) expected log-cost, compressed (bending.py), of another measurement of each measured row, (n,) its standard
    deviation). Combines the model's f with the row's own deviation from f (see `Surrogate.unexplained`). inf for rows
    that broke a constraint or ever failed."""
    (own, added), n = model.unexplained(), len(model.rows)
    value, second = np.zeros(n), np.zeros(n)
    for member in model.active():
        assert member.belief is not None
        points, linear = member.belief.measured
        features = points[:n], linear[:n]
        k = member.posterior.kernel(features, features).astype(float)
        k.flat[:: len(k) + 1] += (own + added) / member.unit**2
        inverse = np.linalg.inv(k)
        here = model.bent(member.mean.bend) - added / member.unit * (inverse @ model.unexpected(member))
        variance = added - (added / member.unit) ** 2 * np.diag(inverse)
        here, deviation = member.shared(here, np.sqrt(np.maximum(variance, 0)))
        value += member.weight * here
        second += member.weight * (here**2 + deviation**2)
    deviation = np.sqrt(np.maximum(second - value**2, 0))
    return np.where(model.kept, value, np.inf), deviation


def look_unaided(model: Surrogate, pending: list[int]) -> None:
    """Like `Surrogate.look`, sets the candidates' gain, mean and deviation until the next update, but uses only the
    members without a prior mean. Their beliefs are then kept until the next fit, because rebuilding them is slow."""
    weights = [member.weight for member in model.members]
    for member in model.members:
        alone = any(member is other for other in model.nothing)
        member.weight = 1 / len(model.nothing) if alone else 0.0
        if alone and member.belief is None:
            member.belief = model.belief_of(member, model.candidates)
    model.look(pending)
    for member, weight in zip(model.members, weights, strict=True):
        member.weight = weight
