"""The sparse optimizer's trees (paper §3.2): a tree branches by the sparse knobs in one ordering, and UCT (upper
confidence bounds for trees) chooses the branch at each node.

A node is a partial structure, represented by the rows of codes that match it. Its children are the values that the next
knob of the ordering has in these rows. So every path ends at a valid structure, inactive knobs and forced values add no
level, and trees of all orderings have the same leaves. The value of a node is the best reward below it, not the mean,
because a search needs one good configuration, not a good average.

`Tree` is the paper's Monte Carlo tree search: nodes store the rewards measured below them, and a visit adds one node.
`descent` stores nothing: the default strategy has a predicted gain for every row, so it computes the values of nodes
exactly, as infinitely many rollouts would."""

import math

import numpy as np

from autoscout.space.graph import Space


def uct(worth: float, visits: float, parent: float, c: float) -> float:
    """UCT: the value of a branch (`worth`) plus its exploration bonus. `parent`: visits of the parent node."""
    return worth + c * math.sqrt(math.log(parent) / visits)


def descent(
    codes: np.ndarray, gains: np.ndarray, visited: np.ndarray, ordering: list[int], c: float
) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """(indices of the rows of `codes` at the leaf where a descent ends; the path to the leaf, as a list of (column,
    code)). `codes`: (n, knobs); `gains`: (n,) predicted gains, scaled to a maximum of 1; `visited`: (v, knobs) codes of
    measured rows."""
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
        self.best = 0.0  # largest reward in the subtree
        self.branches: tuple[int, list[int]] | None = None  # (column, codes) of the branches
        self.children: dict[int, TreeNode] = {}


class Tree:
    def __init__(self, space: Space, ordering: list[str], c_uct: float, unvisited: float = 0.9) -> None:
        """`ordering`: all sparse knobs with several values, most important first. `c_uct`: weight of exploration.
        `unvisited`: assumed value of an unvisited branch, as a share of its best sibling's."""
        self.ordering = ordering
        self.c_uct = c_uct
        self.unvisited = unvisited
        self._table = space.structures
        column = {knob.name: i for i, knob in enumerate(space.sparse)}
        self._columns = [column[name] for name in ordering]
        self.root = TreeNode(np.arange(len(self._table)))

    def propose(self, closed: np.ndarray, rng: np.random.Generator, like: int | None = None) -> int | None:
        """Selection, expansion and rollout: a row of the table of structures that is not `closed` (bools), or None.

        The rollout completes the partial structure with a random open row below the node. If `like` is given, only the
        rows that differ from row `like` in the fewest knobs are eligible, which isolates the effect of the path."""
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
        """Backpropagates a reward along the path to `row`, and adds at most one node."""
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
        """UCT of a branch. An unvisited branch has an assumed value (first-play urgency), so that not every value of a
        knob must be tried before a branch is followed."""
        child = parent.children.get(code)
        worth, visits = (child.best, child.visits) if child else (self.unvisited * parent.best, 1)
        return uct(worth, visits, max(parent.visits, 1), self.c_uct)

    def _branches(self, node: TreeNode) -> tuple[int, list[int]]:
        """(column of the first knob of the ordering in which the node's rows differ, its codes)."""
        if node.branches is None:
            for column in self._columns:
                codes = np.unique(self._table[node.rows, column])
                if len(codes) > 1:
                    node.branches = column, [int(c) for c in codes]
                    break
        assert node.branches is not None, "two rows of the table are equal; remove one of them"
        return node.branches

    def _below(self, node: TreeNode, column: int, code: int) -> np.ndarray:
        if code in node.children:
            return node.children[code].rows
        return node.rows[self._table[node.rows, column] == code]
