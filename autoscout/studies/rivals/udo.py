"""UDO (Wang, Trummer, Basu; VLDB 2021): Monte Carlo tree search on two levels, for heavy and light parameters.

Changing a heavy parameter is expensive. So the outer search chooses several heavy settings before it gets their results
(delayed evaluation), and they are evaluated in the order with the fewest changes between successive ones (reordering).
For each heavy setting, an inner search chooses a few light settings to evaluate; the best inner reward is the reward of
the heavy setting. Both searches are trees over the parameters in their declared order with UCB-V (Audibert et al. 2009)
and RAVE (Gelly & Silver 2007), as in UDO's `uct_node`.

Adaptations: sparse knobs are heavy and dense ones light (if a kind is missing, all knobs are of the other kind); only
valid values are branches; the reward is c₀ / (c₀ + c), where c₀ is the default's cost, and 0 for a failure. Changes of
heavy parameters cost nothing in benchmarks, so reordering is implemented but has no advantage."""

import math
from collections.abc import Generator

import numpy as np

from autoscout.search.sequential import Pool, Search, rival

_DELAY = 5  # number of heavy settings that are chosen before their results are known
_LIGHT = 4  # light settings that are evaluated per heavy setting
_RAVE = 50.0  # visits at which a node's mean and its RAVE value have equal weights
_B = 0.3  # UCB-V's range of rewards; its exploration parameter ζ is 1


def udo(pool: Pool, rng: np.random.Generator) -> Search:
    sparse = [j for j, knob in enumerate(pool.space.knobs) if knob.kind == "sparse"]
    dense = [j for j, knob in enumerate(pool.space.knobs) if knob.kind == "dense"]
    outer = UdoTree(pool.codes, np.arange(len(pool)), sparse)
    inner: dict[bytes, UdoTree] = {}
    reference = pool.known[pool.default]
    while True:
        chosen = [outer.select(rng) for _ in range(_DELAY)]
        for path, rows in _least_changes(pool.codes[:, sparse], chosen):
            best = 0.0
            light = inner.setdefault(pool.codes[rows[0], sparse].tobytes(), UdoTree(pool.codes, rows, dense))
            for _ in range(min(_LIGHT, len(rows))):
                light_path, leaves = light.select(rng)
                cost = yield int(leaves[0])
                reference = reference or cost
                reward = 0.0 if cost is None or reference is None else reference / (reference + cost)
                light.update(light_path, reward)
                best = max(best, reward)
            outer.update(path, best)


Path = list[tuple["UdoNode", int]]  # (node, code chosen at this node), from the root


class UdoNode:
    __slots__ = ("children", "column", "n", "squares", "sums", "visits")

    def __init__(self, column: int, codes: list[int]) -> None:
        self.column = column
        self.children: dict[int, UdoNode] = {}
        self.visits = 0
        self.n = dict.fromkeys(codes, 0)
        self.sums = dict.fromkeys(codes, 0.0)
        self.squares = dict.fromkeys(codes, 0.0)


class UdoTree:
    """A search tree over the values of `columns` that occur in the `rows` of `codes`, with one level per knob."""

    def __init__(self, codes: np.ndarray, rows: np.ndarray, columns: list[int]) -> None:
        self.codes, self.rows, self.columns = codes, rows, columns
        self.root: UdoNode | None = None
        # (knob, code) → (times chosen, total reward), for RAVE
        self.actions: dict[tuple[int, int], tuple[int, float]] = {}

    def select(self, rng: np.random.Generator) -> tuple[Path, np.ndarray]:
        """Returns (path to a leaf, rows that match it). Below visited nodes, choices are random. Visits are counted
        immediately, so that successive selections differ even before they have results."""
        rows, path = self.rows, []
        node, parent, inside = self.root, None, True
        for column in self.columns:
            offered = np.unique(self.codes[rows, column])
            if len(offered) == 1:
                continue
            code = int(rng.choice(offered))
            if inside:
                if node is None:
                    node = UdoNode(column, [int(c) for c in offered])
                    if parent is None:
                        self.root = node
                    else:
                        parent[0].children[parent[1]] = node
                    inside = False  # a new node: the rest is a rollout
                else:
                    code = self._ucb_v(node, rng)
                node.visits += 1
                node.n[code] += 1
                path.append((node, code))
                parent, node = (node, code), node.children.get(code)
            else:
                path.append((UdoNode(column, [code]), code))  # recorded for RAVE only
            rows = rows[self.codes[rows, column] == code]
        return path, rows

    def update(self, path: Path, reward: float) -> None:
        for node, code in path:
            node.sums[code] += reward
            node.squares[code] += reward**2
            times, total = self.actions.get((node.column, code), (0, 0.0))
            self.actions[node.column, code] = times + 1, total + reward

    def _ucb_v(self, node: UdoNode, rng: np.random.Generator) -> int:
        codes = list(node.n)
        unvisited = [c for c in codes if node.n[c] == 0]
        if unvisited:
            return int(rng.choice(unvisited))
        values = [self._value(node, c) for c in codes]
        return codes[int(np.argmax(values))]

    def _value(self, node: UdoNode, code: int) -> float:
        n = node.n[code]
        mean = node.sums[code] / n
        variance = max(node.squares[code] / n - mean**2, 0.0)
        if elsewhere := self.actions.get((node.column, code)):
            times, total = elsewhere
            weight = math.sqrt(_RAVE / (3 * n + _RAVE))
            mean = (1 - weight) * mean + weight * (total / times)
        log = math.log(node.visits)
        return mean + math.sqrt(2 * variance * log / n) + 3 * _B * log / n


def _least_changes(heavy: np.ndarray, chosen: list[tuple[Path, np.ndarray]]) -> Generator[tuple[Path, np.ndarray]]:
    """Yields the chosen settings, each followed by the nearest remaining setting."""
    left = list(chosen)
    current = left.pop(0)
    yield current
    while left:
        here = heavy[current[1][0]]
        left.sort(key=lambda c: int((heavy[c[1][0]] != here).sum()))
        current = left.pop(0)
        yield current


STRATEGY = rival("udo", udo)
