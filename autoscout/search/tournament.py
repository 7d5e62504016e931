"""Tournament over tree orderings (paper §3.2, "Sparse Optimizer with Adaptive Feature Prioritization").

K trees propose in turn, in zigzag order so that none profits from always coming last. Each proposal is evaluated once,
and all trees learn its reward. After a round of one proposal per tree, the half whose own proposals earned more stays,
until one ordering is left. The default strategy scores its trees by a belief, which costs no experiment; one step of
the search is then one round, in which the middle one of an odd number of trees also stays.
"""

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
    """Yields (tree, proposed row), is sent that proposal's reward; returns the winning tree and the rounds."""
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
    """Indices of the trees, the best first; of equal ones the earlier first."""
    return sorted(range(len(rewards)), key=lambda k: -rewards[k])


def orderings(space: Space, k: int, seeded: list[list[str]], rng: np.random.Generator) -> list[list[str]]:
    """K orderings of the sparse knobs: winners of earlier jobs first, then the catalog's order with each layer in
    turn moved to the front, then random ones; k = 0: a single random one, so that there is no tournament."""
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
    for _ in range(10 * k):  # a small space may have fewer than k orderings
        if len(unique) >= k:
            break
        shuffled = tuple(rng.permutation(names).tolist())
        if shuffled not in unique:
            unique.append(shuffled)
    return [list(ordering) for ordering in unique]


def completed(front: list[str], names: list[str]) -> list[str]:
    """The knobs of `front` that are in `names`, then the rest of `names`."""
    kept = [name for name in dict.fromkeys(front) if name in names]
    return kept + [name for name in names if name not in kept]
