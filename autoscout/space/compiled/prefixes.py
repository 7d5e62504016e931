"""The prefix tree of an ordering of knobs, for tree search.

A node is the set of valid structures (or configurations) that share their first codes in this ordering. A node's
branches are the codes of the next knob in this set. A node is represented by a range of rows in a sorted table, or by a
state of a diagram that assigns the knobs in this order. Knobs that are inactive or have only one value are skipped."""

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from autoscout.space.compiled import build
from autoscout.space.compiled.constraints import Columns, Constraint
from autoscout.space.compiled.diagram import Diagram
from autoscout.space.compiled.packing import packed
from autoscout.space.knob import Knob
from kb.records import AutoscoutError

Node = TypeVar("Node")


class Branches(NamedTuple, Generic[Node]):
    """The branches of a node. `knob`: the next knob's index in `space.knobs`; `nodes`: code → child node."""

    knob: int
    nodes: dict[int, Node]


class Range(NamedTuple):
    """The rows `first` to `last` − 1 of the sorted table, which agree on the first `depth` knobs of the ordering."""

    first: int
    last: int
    depth: int


class PrefixState(NamedTuple):
    depth: int
    state: int
    codes: tuple[int, ...]  # codes of the first `depth` knobs of the ordering


class SortedTable:
    """The prefix tree of a table. `rows`: row indices, sorted by the ordering. A node's rows are `rows[node.first :
    node.last]`."""

    def __init__(self, codes: np.ndarray, columns: Sequence[int], knobs: Sequence[int], radices: Sequence[int]) -> None:
        """`columns`: the columns of `codes` in the ordering; `knobs`: the knob index of each of these columns."""
        self.rows = np.argsort(packed(codes[:, list(columns)], radices)[0], kind="stable")
        self._columns = [codes[self.rows, c] for c in columns]
        self._knobs = list(knobs)
        self.root = Range(0, len(codes), 0)

    def branches(self, node: Range) -> Branches[Range] | None:
        """Returns the branches of a node; None if all knobs of the ordering are assigned."""
        first, last, depth = node
        while depth < len(self._columns):
            column = self._columns[depth]
            least, most = int(column[first]), int(column[last - 1])
            depth += 1
            if least != most:
                codes = np.arange(least, most + 2, dtype=column.dtype)
                bounds = (first + column[first:last].searchsorted(codes)).tolist()
                nodes = {
                    code: Range(begin, end, depth)
                    for code, begin, end in zip(range(least, most + 1), bounds, bounds[1:], strict=False)
                    if begin < end
                }
                return Branches(self._knobs[depth - 1], nodes)
        return None

    def count(self, node: Range) -> int:
        """Number of rows below a node."""
        return node.last - node.first

    def sample(self, node: Range, rng: np.random.Generator) -> int:
        """Returns a row index drawn uniformly from the rows below a node."""
        return int(self.rows[rng.integers(node.first, node.last)])


class LazyTree:
    """Like SortedTable, for spaces with too many structures to list. The leaves are configurations."""

    def __init__(self, diagram: Diagram, depth: int) -> None:
        """`depth`: number of knobs in the ordering, which `diagram` must assign first."""
        self._diagram = diagram
        self._depth = depth
        self.root = PrefixState(0, 0, ())

    def branches(self, node: PrefixState) -> Branches[PrefixState] | None:
        depth, state, codes = node
        while depth < self._depth:
            steps = self._diagram.step(depth, state)
            if len(steps) > 1:
                nodes = {code: PrefixState(depth + 1, to, (*codes, code)) for code, to in steps.items()}
                return Branches(self._diagram.order[depth], nodes)
            ((code, state),) = steps.items()
            depth, codes = depth + 1, (*codes, code)
        return None

    def count(self, node: PrefixState) -> int:
        """Number of valid configurations below a node."""
        return int(self._diagram.below(node.depth)[node.state])

    def sample(self, node: PrefixState, rng: np.random.Generator) -> list[int]:
        """Draws uniformly from the valid configurations below a node; returns codes in the order of `space.knobs`."""
        codes = self._diagram.sample(1, rng, node.depth, node.state)[0].tolist()
        for knob, code in zip(self._diagram.order, node.codes, strict=False):
            codes[knob] = code
        return codes


def lazy_tree(
    ordering: list[int], others: list[int], knobs: list[Knob], constraints: list[Constraint], columns: Columns
) -> LazyTree:
    """Returns the tree over an ordering of some knobs of a non-empty space. Errors: AutoscoutError if the ordering
    needs too many states."""
    order = [*ordering, *(i for i in others if i not in ordering)]
    try:
        diagram = build.smallest([order], knobs, constraints, columns)
    except build.TooWide:
        names = ", ".join(knobs[i].name for i in ordering)
        raise AutoscoutError(f"the ordering {names} needs too many states; try a different ordering", 1) from None
    assert diagram is not None, "a space that is not empty is not empty in another order"
    return LazyTree(diagram, len(ordering))
