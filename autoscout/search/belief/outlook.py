"""What is left to find, by a model's last `update`."""

import numpy as np

from autoscout.search.belief.bending import slope
from autoscout.search.belief.surrogate import Surrogate

_JOINT, _DRAWS = 200, 400  # candidates and joint draws used


def outlook(model: Surrogate, ahead: int, margin: float) -> tuple[float, float]:
    """The chance that one of the candidates is cheaper than the best measured row by more than `margin`, and the
    expected gain of the best of the `ahead` most promising ones (both relative). Drawn from the joint posterior of
    the most probable member."""
    order = np.argsort(-model.gain, kind="stable")[:_JOINT]
    order = order[model.gain[order] > 0]  # neither taken nor a measured one but for what does nothing
    member = max((m for m in model.members if m.belief is not None), key=lambda m: m.weight)
    if not len(order) or member.belief is None:
        return 0.0, 0.0
    own = model.unexplained()[0]
    across = member.unit * slope(model.mean[order], member.mean.bend)
    spread = across[:, None] * member.belief.covariance(order) * across + own * np.eye(len(order))
    values, vectors = np.linalg.eigh(spread)
    rng = np.random.default_rng(len(model.rows))
    noise = rng.standard_normal((_DRAWS, len(order))) * np.sqrt(np.maximum(values, 0))
    drawn = model.mean[order] + noise @ vectors.T
    drawn[rng.random(drawn.shape) >= model.runs[order]] = np.inf
    better = model.least - drawn
    chance = float(np.mean(better.max(axis=1) > margin))
    return chance, float(np.maximum(better[:, :ahead].max(axis=1), 0).mean())
