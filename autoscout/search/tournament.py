"""The tournament over orderings of the sparse knobs (paper §3.2, "Sparse Optimizer with Adaptive Feature
Prioritization").

In a round, each of K trees (one per ordering) makes a proposal, which is evaluated; all trees learn its reward. The
order reverses between rounds, so that no tree always profits from being last. The half of the trees whose own proposals
earned more stays, until one tree is left. The default strategy (autoscout.py) instead scores the trees by its model,
which costs no experiments, one round per search step. If the number of trees is odd, the middle one also stays."""

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np

from autoscout.search.structure_tree import Tree
from autoscout.space.graph import Space


@dataclass
class Round:
    number: int
    orderings: list[list[str]]
    rewards: list[float]
    kept: list[int]


def tournament(
    trees: list[Tree], propose_seed: np.random.Generator, closed: np.ndarray, like: int | None = None
) -> Generator[tuple[Tree, int], float, tuple[Tree, list[Round]]]:
    """Yields (tree, proposed row) and is sent the proposal's reward; returns (winning tree, rounds)."""
    everyone = list(trees)
    rounds: list[Round] = []
    while len(trees) > 1:
        number = len(rounds)
        earned = [0.0] * len(trees)
        zigzag = range(len(trees)) if number % 2 == 0 else range(len(trees) - 1, -1, -1)
        for k in zigzag:
            row = trees[k].propose(closed, propose_seed, like)
            if row is None:
                return trees[0], rounds
            reward = yield trees[k], row
            for tree in everyone:
                tree.update(row, reward)
            earned[k] += reward
        kept = sorted(ranked(earned)[: len(trees) // 2])
        rounds.append(Round(number, [t.ordering for t in trees], earned, kept))
        trees = [trees[k] for k in kept]
    return trees[0], rounds


def ranked(rewards: list[float]) -> list[int]:
    """Indices of the trees, best first; ties keep their order."""
    return sorted(range(len(rewards)), key=lambda k: -rewards[k])


def orderings(space: Space, k: int, seeded: list[list[str]], rng: np.random.Generator) -> list[list[str]]:
    """K orderings of the sparse knobs: winners of earlier jobs, then one per layer of the catalog with this layer
    first, then random ones. k = 0: a single random ordering, without a tournament."""
    acting = [knob for i, knob in enumerate(space.sparse) if len(np.unique(space.structures[:, i])) > 1]
    names = [knob.name for knob in acting]
    layers = list(dict.fromkeys(knob.layer for knob in acting))
    if k == 0:
        return [rng.permutation(names).tolist()]
    candidates = [completed(ordering, names) for ordering in seeded]
    for layer in layers:
        front = [knob.name for knob in acting if knob.layer == layer]
        candidates.append(completed(front, names))
    unique = list(dict.fromkeys(tuple(c) for c in candidates))[:k]
    for _ in range(10 * k):  # there may be fewer than k distinct orderings
        if len(unique) >= k:
            break
        shuffled = tuple(rng.permutation(names).tolist())
        if shuffled not in unique:
            unique.append(shuffled)
    return [list(ordering) for ordering in unique]


def completed(front: list[str], names: list[str]) -> list[str]:
    """The knobs of `front` that are in `names`, followed by the rest of `names`."""
    kept = [name for name in dict.fromkeys(front) if name in names]
    return kept + [name for name in names if name not in kept]
