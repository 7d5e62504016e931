"""The default strategy's proposers, among which the bandit chooses. Each proposer chooses one of the model's m
candidates by their `value` (m,): the expected gain, divided by the experiment's relative price; below 0 for tried or
pending rows.

MODEL   the candidate with the largest value
SPARSE  a descent of the tree over structures (structure_tree.py), in which the value of a node is the largest gain of
        a candidate below it, and its visits are the experiments below it
DENSE   coordinate steps with momentum (coordinates.py), within the best structure
"""

from dataclasses import dataclass

import numpy as np

from autoscout.search.belief.surrogate import Surrogate
from autoscout.search.coordinates import Coordinates
from autoscout.search.structure_tree import descent


@dataclass(frozen=True)
class Proposal:
    row: int
    arm: str
    gain: float
    why: str
    base: int | None = None  # the best row at the time of the proposal, with which the reward compares it


def by_model(model: Surrogate, value: np.ndarray) -> Proposal | None:
    at = int(np.argmax(value))
    if value[at] < 0:
        return None
    return Proposal(int(model.candidates[at]), "MODEL", float(value[at]), "largest expected improvement")


class SparseArm:
    """A tree over the candidates that branches by the sparse knobs in one ordering."""

    def __init__(self, ordering: list[int], c_uct: float) -> None:
        """`ordering`: columns of the pool's codes, most important first."""
        self.ordering = ordering
        self.c_uct = c_uct

    def propose(self, model: Surrogate, value: np.ndarray, visited: np.ndarray) -> Proposal | None:
        """Descends the tree to a structure and proposes its best candidate. `visited`: (v, knobs) measured codes."""
        rows = np.flatnonzero(value >= 0)
        if not len(rows):
            return None
        codes, gains = model.pool.codes[model.candidates[rows]], value[rows] / max(float(value[rows].max()), 1e-12)
        below, path = descent(codes, gains, visited, self.ordering, self.c_uct)
        at = int(rows[below[np.argmax(value[rows[below]])]])
        knobs = model.pool.space.knobs
        levels = [f"{knobs[i].name} {knobs[i].values[code] if code >= 0 else 'off'}" for i, code in path[:4]]
        why = f"tree: {' → '.join(levels)}" if path else "tree search"
        return Proposal(int(model.candidates[at]), "SPARSE", float(value[at]), why)


class DenseArm:
    """Moves one dense knob at a time from the best configuration. If the last move helped, it is repeated with twice
    the step; otherwise the move with the largest value is proposed."""

    def __init__(self, names: list[str]) -> None:
        """`names`: the knobs, in the order of the columns of the pool's codes."""
        self.names = names
        self.momentum = Coordinates(names)

    def propose(self, model: Surrogate, value: np.ndarray, base: np.ndarray) -> Proposal | None:
        """The next move from `base`, the codes (knobs,) of the best measured row."""
        pool = model.pool
        codes = pool.codes[model.candidates]
        same = (codes[:, pool.sparse] == base[pool.sparse]).all(axis=1) & (value >= 0)
        one = (codes[:, pool.dense] != base[pool.dense]).sum(axis=1) == 1
        near = np.flatnonzero(same & one)
        if not len(near):
            return None
        at, why = near[np.argmax(value[near])], "coordinate step"
        for name, (direction, step) in self.coordinates().items():
            column = self.names.index(name)
            onward = near[codes[near, column].astype(int) - int(base[column]) == direction * step]
            if len(onward):
                at, why = onward[0], "coordinate step with momentum"
        return Proposal(int(model.candidates[at]), "DENSE", float(value[at]), why)

    def coordinates(self) -> dict[str, list[int]]:
        """The next move with momentum, as knob → [direction, step]; empty if the last move did not help."""
        return dict([*self.momentum.state().items()][:1]) if self.momentum.onward else {}

    def update(self, base: np.ndarray, moved: np.ndarray, improved: bool) -> None:
        """Records whether the move from `base` to `moved` (codes) improved the cost."""
        (columns,) = np.nonzero(base != moved)
        if len(columns) == 1:
            steps = int(moved[columns[0]]) - int(base[columns[0]])
            self.momentum.took(self.names[int(columns[0])], int(np.sign(steps)), abs(steps))
        self.momentum.update(improved and len(columns) == 1)
