"""Ant colony optimization, like the ant colony agent of COSMIC (DeepSwarm in ArchGym).

An ant visits the knobs in order and chooses each value with a probability proportional to its pheromone, among the
values that still lead to a valid configuration; with probability `greediness` it chooses the value with the most
pheromone (ant colony system, Dorigo & Gambardella 1997). Pheromone on every chosen path decays a little (local update);
after each colony, the path of the best ant so far is reinforced (global update). Greediness and decay are DeepSwarm's
defaults. A colony has 8 ants instead of DeepSwarm's 16, so that the pheromone has an effect within budgets of
hundreds."""

import numpy as np

from autoscout.search.sequential import Pool, Search, rival

_COLONY = 8
_GREEDINESS = 0.5
_DECAY = 0.1
_START = 0.1


def ants(pool: Pool, rng: np.random.Generator) -> Search:
    trails = [np.full(levels + 1, _START) for levels in pool.levels]  # pheromone by code; last entry: inactive
    reference = pool.known[pool.default]
    while True:
        for _ in range(_COLONY):
            row = _walk(pool, trails, rng)
            for trail, code in zip(trails, pool.codes[row], strict=True):
                trail[code] += _DECAY * (_START - trail[code])
            cost = yield row
            reference = reference or cost
        best = pool.best
        if best is not None:
            quality = (reference or 1.0) / (pool.known[best] or 1.0)
            for trail, code in zip(trails, pool.codes[best], strict=True):
                trail[code] += _DECAY * (quality - trail[code])


def _walk(pool: Pool, trails: list[np.ndarray], rng: np.random.Generator) -> int:
    rows = np.arange(len(pool))
    for j, trail in enumerate(trails):
        column = pool.codes[rows, j]
        offered = np.unique(column)
        if len(offered) > 1:
            strength = trail[offered]
            if rng.random() < _GREEDINESS:
                code = offered[int(np.argmax(strength))]
            else:
                code = rng.choice(offered, p=strength / strength.sum())
            rows = rows[column == code]
    return int(rows[0])


STRATEGY = rival("ants", ants)
