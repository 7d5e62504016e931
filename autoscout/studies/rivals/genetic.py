"""A genetic algorithm, like the genetic agent of COSMIC (scikit-opt's GA in ArchGym).

It uses tournament selection of three, uniform crossover and mutation of one knob in ten; the best two survive. A child
is replaced by the nearest valid configuration. Population and rates are scaled to budgets of hundreds; with
scikit-opt's defaults (a population of 50, mutation of one gene in a thousand) it would not get past its first
generations."""

import numpy as np

from autoscout.search.sequential import Pool, Search, rival

_POPULATION = 20
_SURVIVORS = 2
_MUTATION = 0.1
_TOURNAMENT = 3


def genetic(pool: Pool, rng: np.random.Generator) -> Search:
    population: list[tuple[float, int]] = []
    for row in [pool.default, *rng.choice(len(pool), min(_POPULATION, len(pool)) - 1, replace=False).tolist()]:
        population.append((_fitness((yield row)), row))
    while True:
        elite = sorted(population)[:_SURVIVORS]
        children = []
        while len(children) < _POPULATION - _SURVIVORS:
            mother, father = _select(population, rng), _select(population, rng)
            row = pool.nearest(_mutate(_cross(pool.codes[mother], pool.codes[father], rng), pool.levels, rng))
            children.append((_fitness((yield row)), row))
        population = elite + children


def _fitness(cost: float | None) -> float:
    return float("inf") if cost is None else cost


def _select(population: list[tuple[float, int]], rng: np.random.Generator) -> int:
    return min(population[i] for i in rng.integers(len(population), size=_TOURNAMENT))[1]


def _cross(mother: np.ndarray, father: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.where(rng.random(len(mother)) < 0.5, mother, father)


def _mutate(codes: np.ndarray, levels: list[int], rng: np.random.Generator) -> np.ndarray:
    return np.where(rng.random(len(codes)) < _MUTATION, rng.integers(0, levels), codes)


STRATEGY = rival("genetic", genetic)
