"""The proposers that the bandit chooses among, each over the model's candidates and their (m,) `value`s: expected
gains, per device-second where experiments differ in what they cost; below 0: taken.

MODEL   the candidate of the largest value
SPARSE  the paper's tree over structures (§3.2), rolled out on the posterior: a node is worth the largest gain below it,
        which is what infinitely many rollouts would find, and its visits are the experiments below it
DENSE   the paper's coordinate steps with momentum, on the mask of the best structure
"""

import math
from dataclasses import dataclass

import numpy as np

from autoscout.search.belief.surrogate import Surrogate


@dataclass(frozen=True)
class Proposal:
    row: int
    arm: str
    gain: float  # its value
    why: str
    base: int | None = None  # the best row at the time, which the reward compares it with


def by_model(model: Surrogate, value: np.ndarray) -> Proposal | None:
    at = int(np.argmax(value))
    if value[at] < 0:
        return None
    return Proposal(int(model.candidates[at]), "MODEL", float(value[at]), "largest expected improvement")


class SparseArm:
    """One ordering of the sparse knobs as a tree over the candidates."""

    def __init__(self, ordering: list[int], c_uct: float) -> None:
        """`ordering`: columns of the pool's codes, most important first."""
        self.ordering = ordering
        self.c_uct = c_uct

    def propose(self, model: Surrogate, value: np.ndarray, visited: np.ndarray) -> Proposal | None:
        """Selects down to one structure, then takes its best point. `visited`: (v, knobs) codes of the measured
        rows."""
        rows = np.flatnonzero(value >= 0)
        if not len(rows):
            return None
        codes = model.pool.codes[model.candidates]
        unit = max(float(value[rows].max()), 1e-12)
        path = []
        for column in self.ordering:
            options, branch = np.unique(codes[rows, column], return_inverse=True)
            if len(options) > 1:
                worth = np.zeros(len(options))
                np.maximum.at(worth, branch, value[rows] / unit)
                visits = np.array([np.count_nonzero(visited[:, column] == option) for option in options])
                chosen = int(np.argmax(worth + self.c_uct * np.sqrt(math.log(len(visited) + 1) / (visits + 1))))
                rows = rows[branch == chosen]
                knob = model.pool.space.knobs[column]
                path.append(f"{knob.name} {knob.values[options[chosen]] if options[chosen] >= 0 else 'off'}")
            visited = visited[visited[:, column] == codes[rows[0], column]]
        at = int(rows[np.argmax(value[rows])])
        why = f"tree: {' → '.join(path[:4])}" if path else "tree search"
        return Proposal(int(model.candidates[at]), "SPARSE", float(value[at]), why)


class DenseArm:
    """Moves one dense knob at a time from the best configuration; a knob and direction that helped go first again, with
    twice the step."""

    def __init__(self) -> None:
        self.column: int | None = None
        self.direction = 1
        self.step = 1

    def propose(self, model: Surrogate, value: np.ndarray, base: np.ndarray) -> Proposal | None:
        """`base`: codes of the best measured row."""
        pool = model.pool
        codes = pool.codes[model.candidates]
        same = (codes[:, pool.sparse] == base[pool.sparse]).all(axis=1) & (value >= 0)
        one = (codes[:, pool.dense] != base[pool.dense]).sum(axis=1) == 1
        near = np.flatnonzero(same & one)
        if not len(near):
            return None
        at, why = near[np.argmax(value[near])], "coordinate step"
        if self.column is not None:
            moved = codes[near, self.column].astype(int) - int(base[self.column])
            onward = near[moved == self.direction * self.step]
            if len(onward):
                at, why = onward[0], "coordinate step with momentum"
        return Proposal(int(model.candidates[at]), "DENSE", float(value[at]), why)

    def coordinates(self, names: list[str]) -> dict[str, list[int]]:
        """Where it would go next: knob → [direction, step]; empty without momentum."""
        return {} if self.column is None else {names[self.column]: [self.direction, self.step]}

    def update(self, base: np.ndarray, moved: np.ndarray, improved: bool) -> None:
        """Takes in whether the step from `base` to `moved` improved the cost."""
        (columns,) = np.nonzero(base != moved)
        if improved and len(columns) == 1:
            column = int(columns[0])
            steps = int(moved[column]) - int(base[column])
            self.column, self.direction, self.step = column, int(np.sign(steps)), 2 * abs(steps)
        else:
            self.column = None
