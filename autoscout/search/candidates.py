"""Generates configurations (rows of codes, see encoding.py) in spaces too large to list: samples, one-knob moves from
good rows, and the best by a simulator's predictions."""

from collections.abc import Callable

import numpy as np

from autoscout.space.graph import Space
from kb.records import Objective

Costs = Callable[[np.ndarray], np.ndarray]  # (n, knobs) codes → (n,) costs, lower is better; inf or NaN: unusable

_LISTED = 100_000  # up to this many configurations, all are evaluated
_START = 3_000  # initial rows of each of the two kinds of sample in `spread`
_BEAM, _ALIKE = 48, 2  # beam width; most rows of one layout (devices and parallelism) in the beam
_ROUNDS, _PATIENCE = 40, 3  # limits on rounds of the beam search, and on rounds without improvement
_EVEN = 0.2  # share of the weight that all values of a knob get equally, so that every value stays possible


def around(space: Space, rows: np.ndarray) -> np.ndarray:
    """All valid configurations one knob away from the given rows; may contain duplicates."""
    moved = [np.array(space.neighbour_codes(row), dtype=np.int16).reshape(-1, len(row)) for row in rows.tolist()]
    return np.concatenate([np.zeros((0, len(space.knobs)), np.int16), *moved])


def towards(space: Space, good: np.ndarray, n: int, rng: np.random.Generator, even: float = _EVEN) -> np.ndarray:
    """n random valid rows, in which each knob prefers values by their frequency in the rows `good`. `even`: share of
    uniform weight over all values."""
    weight = {}
    for i, knob in enumerate(space.knobs):
        count = np.bincount(good[:, i] + 1, minlength=len(knob.values) + 1) / len(good)
        weight[i] = (1 - even) * count + even / len(count)
    return space.sample_towards(weight, n, rng)


def spread(space: Space, n: int, rng: np.random.Generator) -> np.ndarray:
    """2n random valid rows: n uniform over configurations, n uniform over structures."""
    return np.concatenate([space.sample_many(n, rng), space.sample_varied(n, rng)])


def favourites(
    space: Space, costs: Costs, rng: np.random.Generator, near: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """(rows of codes, costs), best first, without duplicates: the whole space if it has at most _LISTED configurations,
    else the result of a beam search. `near`: additional rows to start from."""
    if space.enumerable and space.count <= _LISTED:
        codes, value = space.feasible.codes, _finite(costs(space.feasible.codes))
        order = np.argsort(value, kind="stable")
        return codes[order], value[order]
    return beam(space, costs, rng, near)


def beam(
    space: Space, costs: Costs, rng: np.random.Generator, near: np.ndarray | None = None, start: int = _START
) -> tuple[np.ndarray, np.ndarray]:
    """The result of `favourites`, by beam search with one-knob moves, starting from samples of the space (`start` of
    each kind) and from `near`. The number of rows per layout is limited, so that the beam contains several layouts."""
    layout = [i for i, k in enumerate(space.knobs) if k.layer in ("devices", "parallelism")]
    codes = spread(space, start, rng)
    if near is not None:
        codes = np.concatenate([near, codes])
    known: set[bytes] = set()
    codes = _fresh(codes, known)
    value = _finite(costs(codes))
    expanded: set[bytes] = set()
    bests = [np.inf] * _PATIENCE  # best cost after each round
    for _ in range(_ROUNDS):
        order = np.argsort(value, kind="stable")
        open_ones = _open(codes, value, order, layout, expanded)
        bests.append(float(value[order[0]]))
        if not open_ones or bests[-1] == bests[-1 - _PATIENCE]:
            break
        expanded.update(codes[row].tobytes() for row in open_ones)
        neighbours = _fresh(around(space, codes[open_ones]), known)
        if len(neighbours):
            codes, value = np.concatenate([codes, neighbours]), np.concatenate([value, _finite(costs(neighbours))])
    order = np.argsort(value, kind="stable")
    return codes[order], value[order]


def as_costs(objective: Objective, predict: Costs) -> Costs:
    """Converts predictions of the objective's metric to costs; NaN: no prediction, inf: predicted to fail."""

    def costs(codes: np.ndarray) -> np.ndarray:
        value = np.asarray(predict(codes), dtype=float)
        if objective.minimize:
            return value
        runs = np.isfinite(value) & (value > 0)
        return np.where(runs, 1 / np.where(runs, value, 1), np.where(np.isnan(value), np.nan, np.inf))

    return costs


def _open(
    codes: np.ndarray, value: np.ndarray, order: np.ndarray, layout: list[int], expanded: set[bytes]
) -> list[int]:
    """The rows of the beam (the best ones, at most _ALIKE per layout) that are not expanded yet."""
    seen: dict[bytes, int] = {}
    found: list[int] = []
    taken = 0
    for row in order.tolist():
        if taken == _BEAM or not np.isfinite(value[row]):
            break
        key = codes[row, layout].tobytes()
        if seen.get(key, 0) < _ALIKE:
            seen[key] = seen.get(key, 0) + 1
            taken += 1
            if codes[row].tobytes() not in expanded:
                found.append(row)
    return found


def _fresh(codes: np.ndarray, known: set[bytes]) -> np.ndarray:
    """The rows that are not in `known`, without duplicates; they are added to `known`."""
    kept = []
    for i, row in enumerate(np.ascontiguousarray(codes)):
        key = row.tobytes()
        if key not in known:
            known.add(key)
            kept.append(i)
    return np.ascontiguousarray(codes[kept])


def _finite(costs: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(costs), costs, np.inf)
