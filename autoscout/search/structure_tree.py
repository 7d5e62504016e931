"""The sparse optimizer's trees (paper §3.2): structures branch by the knobs in one ordering, UCT chooses the way down.

A node is a partial structure: the rows of codes that agree with it. Its children are the values that the next knob of
the ordering takes in those rows, so every path ends on a valid structure, inactive knobs and forced values make no
level, and any ordering is a tree over the same leaves. A node's worth is the best reward below it, not the mean,
because the search is for one configuration, not for a good average.

`Tree` is the paper's Monte Carlo tree search: it remembers what was measured below its nodes and grows by one node a
visit. `descent` keeps no nodes: the default strategy knows a gain for every row, so each step descends afresh, by
the values that infinitely many rollouts on these gains would find.
"""

import math

import numpy as np

from autoscout.space.graph import Space


def uct(worth: float, visits: float, parent: float, c: float) -> float:
    """UCT: a branch's worth plus its exploration bonus; `parent`: visits of the node above."""
    return worth + c * math.sqrt(math.log(parent) / visits)


def descent(
    codes: np.ndarray, gains: np.ndarray, visited: np.ndarray, ordering: list[int], c: float
) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """The rows of `codes` (n, knobs) that one descent ends on, and its path of (column, code) where the tree branches.
    `gains` (n,): each row's gain, scaled so that the largest is 1; `visited` (v, knobs): codes of measured rows."""
    rows, path = np.arange(len(codes)), []
    for column in ordering:
        options, branch = np.unique(codes[rows, column], return_inverse=True)
        if len(options) > 1:
            worth = np.zeros(len(options))
            np.maximum.at(worth, branch, gains[rows])
            visits = [int(np.count_nonzero(visited[:, column] == option)) + 1 for option in options]
            urgency = [uct(w, n, len(visited) + 1, c) for w, n in zip(worth.tolist(), visits, strict=True)]
            chosen = int(np.argmax(urgency))
            rows = rows[branch == chosen]
            path.append((column, int(options[chosen])))
        visited = visited[visited[:, column] == codes[rows[0], column]]
    return rows, path


class TreeNode:
    __slots__ = ("best", "branches", "children", "rows", "visits")

    def __init__(self, rows: np.ndarray) -> None:
        self.rows = rows
        self.visits = 0
        self.best = 0.0  # largest reward below
        self.branches: tuple[int, list[int]] | None = None  # (column it branches on, codes of the branches)
        self.children: dict[int, TreeNode] = {}


class Tree:
    def __init__(self, space: Space, ordering: list[str], c_uct: float, unvisited: float = 0.9) -> None:
        """`ordering`: all sparse knobs that differ anywhere, most important first. `c_uct`: exploration of UCT.
        `unvisited`: assumed worth of an unvisited branch, as a share of its best sibling's."""
        self.ordering = ordering
        self.c_uct = c_uct
        self.unvisited = unvisited
        self._table = space.structures
        column = {knob.name: i for i, knob in enumerate(space.sparse)}
        self._columns = [column[name] for name in ordering]
        self.root = TreeNode(np.arange(len(self._table)))

    def propose(self, closed: np.ndarray, rng: np.random.Generator, like: int | None = None) -> int | None:
        """Selection, expansion, rollout: a row of the table that is not `closed` (bool per row), None if all are.

        The rollout completes the partial structure with a valid, open one below it: one that differs from the
        row `like` in as few knobs as possible, so that what the tree changed is what is measured; uniformly
        where `like` is not given.
        """
        if closed.all():
            return None
        node, rows = self.root, self.root.rows
        while len(rows) > 1:
            column, codes = self._branches(node)
            options = [c for c in codes if not closed[self._below(node, column, c)].all()]
            urgency = [self._urgency(node, c) for c in options]
            likeliest = [c for c, u in zip(options, urgency, strict=True) if u == max(urgency)]
            code = likeliest[int(rng.integers(len(likeliest)))]
            if code not in node.children:
                rows = self._below(node, column, code)
                break
            node = node.children[code]
            rows = node.rows
        open_rows = rows[~closed[rows]]
        if like is not None:
            differing = (self._table[open_rows] != self._table[like]).sum(axis=1)
            open_rows = open_rows[differing == differing.min()]
        return int(open_rows[int(rng.integers(len(open_rows)))])

    def update(self, row: int, reward: float) -> None:
        """Backpropagation along the path to `row`, which grows by at most one node."""
        node = self.root
        while True:
            node.visits += 1
            node.best = max(node.best, reward)
            if len(node.rows) == 1:
                return
            column, _ = self._branches(node)
            code = int(self._table[row, column])
            if code not in node.children:
                leaf = node.children[code] = TreeNode(self._below(node, column, code))
                leaf.visits, leaf.best = 1, reward
                return
            node = node.children[code]

    def _urgency(self, parent: TreeNode, code: int) -> float:
        """UCT; an unvisited branch is assumed to be worth a share of its best sibling (first-play urgency),
        so that not every value of every knob has to be tried before any is followed."""
        child = parent.children.get(code)
        worth, visits = (child.best, child.visits) if child else (self.unvisited * parent.best, 1)
        return uct(worth, visits, max(parent.visits, 1), self.c_uct)

    def _branches(self, node: TreeNode) -> tuple[int, list[int]]:
        """The first knob of the ordering on which the node's rows differ, and its codes."""
        if node.branches is None:
            for column in self._columns:
                codes = np.unique(self._table[node.rows, column])
                if len(codes) > 1:
                    node.branches = column, [int(c) for c in codes]
                    break
        assert node.branches is not None, "two rows of the table are equal"
        return node.branches

    def _below(self, node: TreeNode, column: int, code: int) -> np.ndarray:
        if code in node.children:
            return node.children[code].rows
        return node.rows[self._table[node.rows, column] == code]
