"""All valid configurations of a space as a layered decision diagram, for counting, sampling and searching.

Each level assigns one knob. Partial assignments with the same valid completions share one *state*, which keeps the
diagram of a large space small: choices of independent knobs are stored once instead of once per combination. The edges
of a state are the codes of the level's knob that lead to at least one valid configuration. Each state also has the
number of valid configurations below it, for exact counting and uniform sampling. The nearest valid configuration is a
shortest path.

(Andersen, Hadzic, Hooker, Tiedemann, "A constraint store based on multivalued decision diagrams", CP 2007.)"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np

# an unfinished level: (knob, number of states, source by edge, code by edge, next state by edge)
Raw = tuple[int, int, np.ndarray, np.ndarray, np.ndarray]

FORBIDDEN = 2**61  # cost of a code that must not be used
_MOST_STEPS = 300_000  # edges of up to this many states are cached in dictionaries for traversal


class Level:
    """The edges of one level, sorted by state and code. `first`, (states + 1,) int64: index of each state's first edge.
    `code`, (edges,) int16. `to`, (edges,) int64: the state in the next level. `below`, (states,) int64 or Python
    integers: number of valid configurations below each state."""

    def __init__(self, knob: int, first: np.ndarray, code: np.ndarray, to: np.ndarray, below: np.ndarray) -> None:
        self.knob = knob
        self.first = first
        self.code = code
        self.to = to
        self.below = below

    @cached_property
    def source(self) -> np.ndarray:
        return np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))

    def ladder(self, below_next: np.ndarray) -> np.ndarray:
        """Returns, for each edge, the edge's state plus the cumulative fraction of the state's configurations. To draw
        an edge of a state in proportion to the number of configurations below the edge, search this array for state +
        u, with u uniform in [0, 1)."""
        weight = below_next[self.to].astype(np.float64)
        up_to = np.cumsum(weight / np.maximum(self.below.astype(np.float64), 1.0)[self.source])
        before = np.concatenate([[0.0], up_to])[self.first[:-1]]
        return self.source + (up_to - before[self.source])


class Diagram:
    """The compiled space. `levels`: in the order of assignment; the first `sparse` levels assign the sparse knobs.
    `radix`: number of values of each knob."""

    def __init__(self, levels: list[Level], sparse: int, radix: Sequence[int]) -> None:
        self.levels = levels
        self.sparse = sparse
        self.radix = radix
        self.order = [level.knob for level in levels]
        self._steps: list[dict[int, dict[int, int]]] = [{} for _ in levels]
        self._kept = 0

    @property
    def count(self) -> int:
        return int(self.levels[0].below[0]) if self.levels else 1

    @cached_property
    def structures(self) -> int:
        """Returns the number of different valid assignments of the sparse knobs."""
        paths = np.ones(self.states(self.sparse), dtype=object)
        for level in reversed(self.levels[: self.sparse]):
            paths = np.add.reduceat(paths[level.to], level.first[:-1])
        return int(paths[0])

    def states(self, i: int) -> int:
        """Returns the number of states before the knob of level i is assigned."""
        return len(self.levels[i].below) if i < len(self.levels) else 1

    def below(self, i: int) -> np.ndarray:
        """Returns the number of valid configurations below each state before level i."""
        return self.levels[i].below if i < len(self.levels) else np.ones(1, dtype=np.int64)

    # ---- one configuration -------------------------------------------------------------------------------

    def step(self, i: int, state: int) -> dict[int, int]:
        """Returns the edges of a state in level i: code → next state."""
        found = self._steps[i].get(state)
        if found is None:
            level = self.levels[i]
            edges = slice(level.first[state], level.first[state + 1])
            found = dict(zip(level.code[edges].tolist(), level.to[edges].tolist(), strict=True))
            if self._kept >= _MOST_STEPS:
                self._steps, self._kept = [{} for _ in self.levels], 0
            self._steps[i][state] = found
            self._kept += 1
        return found

    def walk(self, codes: Sequence[int], start: int = 0, stop: int | None = None, state: int = 0) -> int | None:
        """Returns the state that an assignment (codes by knob index) leads to; None if the assignment is not valid."""
        for i in range(start, len(self.levels) if stop is None else stop):
            to = self.step(i, state).get(codes[self.order[i]])
            if to is None:
                return None
            state = to
        return state

    def every(self) -> Iterator[list[int]]:
        """Yields the codes (by knob index) of all valid configurations, depth first. Reuses one list object, so the
        caller must copy it."""
        codes = [-1] * len(self.radix)

        def assign(i: int, state: int) -> Iterator[list[int]]:
            if i == len(self.levels):
                yield codes
                return
            for code, to in self.step(i, state).items():
                codes[self.order[i]] = code
                yield from assign(i + 1, to)

        yield from assign(0, 0)

    # ---- many configurations -----------------------------------------------------------------------------

    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draws uniformly from the valid configurations: codes (n, knobs)."""
        out = np.zeros((n, len(self.radix)), dtype=np.int16)
        at = np.zeros(n, dtype=np.int64)
        for i, level in enumerate(self.levels):
            edge = np.searchsorted(self._ladders[i], at + rng.random(n), side="right")
            edge = np.clip(edge, level.first[at], level.first[at + 1] - 1)
            out[:, level.knob] = level.code[edge]
            at = level.to[edge]
        return out

    def draw(self, rng: np.random.Generator) -> list[int]:
        """Draws one configuration, as codes by knob index."""
        codes = [0] * len(self.radix)
        state = 0
        chance = rng.random(len(self.levels))
        for i, level in enumerate(self.levels):
            first, last = int(level.first[state]), int(level.first[state + 1]) - 1
            edge = first
            if last > first:
                edge = min(max(int(self._ladders[i].searchsorted(state + chance[i], side="right")), first), last)
            codes[level.knob] = int(level.code[edge])
            state = int(level.to[edge])
        return codes

    @cached_property
    def _ladders(self) -> list[np.ndarray]:
        return [level.ladder(self.below(i + 1)) for i, level in enumerate(self.levels)]

    def paths(self, start: int, stop: int, states: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns all paths between two levels that begin at `states`, as three arrays: index in `states` of a path's
        first state (paths,), codes in level order (paths, stop − start), last state (paths,)."""
        at = states
        origin: list[np.ndarray] = []
        chosen: list[np.ndarray] = []
        for level in self.levels[start:stop]:
            degree = np.diff(level.first)[at]
            parent = np.repeat(np.arange(len(at)), degree)
            within = np.arange(len(parent)) - np.repeat(np.cumsum(degree) - degree, degree)
            edge = level.first[at][parent] + within
            origin.append(parent)
            chosen.append(level.code[edge])
            at = level.to[edge]
        codes = np.empty((len(at), stop - start), dtype=np.int16, order="F")
        path = np.arange(len(at))
        for i in range(stop - start - 1, -1, -1):
            codes[:, i] = chosen[i][path]
            path = origin[i][path]
        return path, codes, at

    def domains(self, allowed: Mapping[int, np.ndarray], start: int = 0, state: int = 0) -> list[np.ndarray] | None:
        """Returns, for each knob, the ascending codes that occur in valid configurations below a state that use only
        `allowed` codes (knob index → boolean array by code + 1); None if there is no such configuration."""
        levels = self.levels[start:]
        reached = np.zeros(self.states(start), dtype=bool)
        reached[state] = True
        usable = []
        for i, level in enumerate(levels, start):
            ok = reached[level.source]
            if level.knob in allowed:
                ok &= allowed[level.knob][level.code + 1]
            usable.append(ok)
            reached = np.zeros(self.states(i + 1), dtype=bool)
            reached[level.to[ok]] = True
        taken = [np.zeros(0, dtype=np.int64)] * len(self.radix)
        alive = reached
        for level, ok in zip(reversed(levels), reversed(usable), strict=True):
            ok = ok & alive[level.to]
            if not ok.any():
                return None
            taken[level.knob] = np.unique(level.code[ok])
            alive = np.zeros(len(level.first) - 1, dtype=bool)
            alive[level.source[ok]] = True
        return taken

    def nearest(self, cost: Mapping[int, np.ndarray], start: int = 0, state: int = 0) -> list[int] | None:
        """Returns the valid configuration below a state with the smallest total cost, as codes by knob index; None if
        all are forbidden. `cost`: knob index → int64 array by code + 1, in which `FORBIDDEN` excludes a code. Knobs
        without an entry have cost 0. Of two configurations with equal cost, the one with the lower code of the first
        knob in which they differ is returned. Costs are integers, so sums are exact."""
        best = np.zeros(1, dtype=np.int64)
        ways: list[np.ndarray] = []
        for level in reversed(self.levels[start:]):
            way = best[level.to]
            if level.knob in cost:
                way = np.minimum(way + cost[level.knob][level.code + 1], FORBIDDEN)
            ways.append(way)
            best = np.minimum.reduceat(way, level.first[:-1])
        if best[state] >= FORBIDDEN:
            return None
        codes = [0] * len(self.radix)
        for level, way in zip(self.levels[start:], reversed(ways), strict=True):
            first, last = int(level.first[state]), int(level.first[state + 1])
            edge = first + int(np.argmin(way[first:last]))
            codes[level.knob] = int(level.code[edge])
            state = int(level.to[edge])
        return codes


def assembled(raw: list[Raw], sparse: int, radix: Sequence[int]) -> Diagram | None:
    """Builds a diagram from levels with edges sorted by source and code: removes dead ends and counts configurations.
    None if no configuration is valid."""
    most = 1
    for r in radix:
        most *= r + 1
    exact = np.int64 if most < 2**62 else object
    below = np.ones(1, dtype=exact)
    alive = np.zeros(1, dtype=np.int64)  # old state → new state, −1 for a dead end
    levels: list[Level] = []
    for knob, states, source, code, to in reversed(raw):
        kept = alive[to] >= 0
        source, code, to = source[kept], code[kept], alive[to[kept]]
        degree = np.bincount(source, minlength=states)
        has = degree > 0
        first = np.concatenate([[0], np.cumsum(degree[has])])
        if not len(source):
            return None
        below = np.add.reduceat(below[to], first[:-1])
        levels.append(Level(knob, first, code.astype(np.int16), to, below))
        alive = np.where(has, np.cumsum(has) - 1, -1)
    return Diagram(levels[::-1], sparse, radix)
