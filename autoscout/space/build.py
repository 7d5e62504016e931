"""Builds the diagram of a space: from its constraints, or from the rows of a table.

From constraints: sparse knobs first, then dense ones, each time the knob that leaves the fewest others to be
remembered. A constraint is applied when its last knob is assigned, to every combination of its knobs that occurs and to
no other. What a state has to remember are the codes of the knobs that later constraints read; states that remember the
same are one.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from autoscout.space.constraints import Columns, Constraint, undefined_error
from autoscout.space.diagram import Diagram, assembled
from autoscout.space.knob import Knob

_MOST_STATES = 1_000_000  # of one level
_MOST_CELLS = 100_000_000  # states × values of one level

Raw = tuple[int, int, np.ndarray, np.ndarray, np.ndarray]  # knob, states, source, code, to


class TooWide(Exception):
    """The states of a level do not fit: `constraints` are those that make them remember."""

    def __init__(self, constraints: list[Constraint]) -> None:
        super().__init__()
        self.constraints = constraints


def from_constraints(
    knobs: list[Knob], constraints: list[Constraint], columns: Columns, most_states: int = _MOST_STATES
) -> Diagram | None:
    """None if nothing is valid. Errors: TooWide; AutoscoutError where an expression cannot be evaluated on an
    assignment that all the others allow."""
    order = _order(knobs, constraints)
    place = {knobs[k].name: i for i, k in enumerate(order)}
    due: list[list[Constraint]] = [[] for _ in order]
    for c in constraints:
        due[max((place[n] for n in c.names), default=0)].append(c)
    last_read = [max(place[n] for c in constraints if knob.name in c.names for n in c.names) for knob in knobs]
    live: list[int] = []  # knobs that states remember
    states = np.zeros((1, 0), dtype=np.int16)
    raw: list[Raw] = []
    suspects: list[tuple[int, Constraint, np.ndarray]] = []
    remembered: list[tuple[list[int], np.ndarray]] = []
    for i, k in enumerate(order):
        n, radix = len(states), len(knobs[k].values) + 1
        if n * radix > _MOST_CELLS:
            raise TooWide(_pending(constraints, knobs, live, place, i))
        allowed = np.ones((n, radix), dtype=bool)
        for c in due[i]:
            holds, undefined = _relation(c, knobs, k, live, states, columns)
            allowed &= holds
            if undefined is not None:
                suspects.append((i, c, undefined))
        source, code = np.nonzero(allowed)
        code = (code - 1).astype(np.int16)
        stays = [j for j, name in enumerate(live) if last_read[name] > i]
        kept = [*(live[j] for j in stays), *([k] if last_read[k] > i else [])]
        remembered.append((live, states))
        after = np.empty((len(source), len(kept)), dtype=np.int16, order="F")
        for column, j in enumerate(stays):
            after[:, column] = states[source, j]
        if last_read[k] > i:
            after[:, -1] = code
        to, representative = distinct(*packed(after, [len(knobs[j].values) + 1 for j in kept]))
        live, states = kept, after[representative]
        if len(states) > most_states:
            raise TooWide(_pending(constraints, knobs, live, place, i + 1))
        raw.append((k, n, source, code, to))
    sparse = sum(knob.kind == "sparse" for knob in knobs)
    diagram = assembled(raw, sparse, [len(knob.values) for knob in knobs])
    _check_defined(raw, suspects, remembered, knobs, columns)
    return diagram


def from_rows(codes: np.ndarray, knobs: list[Knob]) -> Diagram | None:
    """The rows (n, knobs) of codes are what is valid."""
    order = sorted(range(len(knobs)), key=lambda i: knobs[i].kind == "dense")
    key = packed(codes[:, order], [len(knobs[i].values) + 1 for i in order])[0]
    rows = codes[np.unique(key, return_index=True)[1]][:, order]
    if not len(rows):
        return None
    differs = np.zeros(len(rows), dtype=bool)
    differs[0] = True
    starts = [np.flatnonzero(differs)]  # first row of each distinct prefix, by the prefix's length
    for column in range(rows.shape[1]):
        differs[1:] |= rows[1:, column] != rows[:-1, column]
        starts.append(np.flatnonzero(differs))
    same = np.zeros(len(rows), dtype=np.int64)  # prefix → state: prefixes that the same may follow are one
    raw: list[Raw] = []
    for column in range(rows.shape[1] - 1, -1, -1):
        first = starts[column + 1]
        source = np.searchsorted(starts[column], first, side="right") - 1
        code, to = rows[first, column], same
        state, representative = _same_edges(source, len(starts[column]), code, to)
        kept = representative[state[source]] == source
        number = np.cumsum(np.isin(np.arange(len(starts[column])), representative)) - 1
        raw.append((order[column], len(representative), number[source[kept]], code[kept], to[kept]))
        same = number[representative[state]]
    sparse = sum(knob.kind == "sparse" for knob in knobs)
    return assembled(raw[::-1], sparse, [len(knob.values) for knob in knobs])


def _same_edges(source: np.ndarray, n: int, code: np.ndarray, to: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Groups the n states whose edges (sorted by source) are equal: (group of each state, one state of each group)."""
    edge = code.astype(np.int64) * (int(to.max(initial=0)) + 1) + to
    degree = np.bincount(source, minlength=n)
    first = np.cumsum(degree) - degree
    group = np.zeros(n, dtype=np.int64)
    representatives: list[np.ndarray] = []
    for d in np.unique(degree):
        states = np.flatnonzero(degree == d)
        edges = edge[first[states][:, None] + np.arange(d)]
        _, one, which = np.unique(edges, axis=0, return_index=True, return_inverse=True)
        group[states] = which.reshape(-1) + sum(len(r) for r in representatives)
        representatives.append(states[one])
    return group, np.concatenate(representatives)


def _order(knobs: list[Knob], constraints: list[Constraint]) -> list[int]:
    """Sparse knobs, then dense ones; in each, greedily the knob after which the codes to remember are fewest (in log₂;
    an implied knob adds nothing once what implies it is assigned)."""
    bit = {knob.name: 1 << i for i, knob in enumerate(knobs)}
    touched = [sum(bit[n] for n in c.names) for c in constraints]
    implied_by = {c.knob.name: t for c, t in zip(constraints, touched, strict=True) if c.knob and c.knob.implied}
    weight = [math.log2(len(knob.values) + (knob.when is not None)) for knob in knobs]
    order: list[int] = []
    assigned = 0
    left = [i for kind in ("sparse", "dense") for i, knob in enumerate(knobs) if knob.kind == kind]
    sparse = sum(knob.kind == "sparse" for knob in knobs)
    free: set[int] = set()
    while left:
        group = left[: sparse - len(order)] if len(order) < sparse else left
        least = (math.inf, math.inf)
        chosen = group[0]
        for i in group:
            now = assigned | 1 << i
            open_ = [t for t in touched if t & ~now]
            live = 0
            for t in open_:
                live |= t
            live &= now
            free_now = free | {i} if _is_free(knobs[i], implied_by, now) else free
            remembered = sum(w for j, w in enumerate(weight) if live >> j & 1 and j not in free_now)
            cost = (remembered, weight[i])
            if cost < least:
                least, chosen = cost, i
        if _is_free(knobs[chosen], implied_by, assigned | 1 << chosen):
            free.add(chosen)
        assigned |= 1 << chosen
        touched = [t for t in touched if t & ~assigned]
        order.append(chosen)
        left.remove(chosen)
    return order


def _is_free(knob: Knob, implied_by: Mapping[str, int], assigned: int) -> bool:
    return knob.name in implied_by and not implied_by[knob.name] & ~assigned


def _relation(
    c: Constraint, knobs: list[Knob], k: int, live: list[int], states: np.ndarray, columns: Columns
) -> tuple[np.ndarray, np.ndarray | None]:
    """Which codes of knob k (by code + 1) a constraint allows in each state, (states, values + 1) or (1, values + 1),
    and the same of those where it is undefined (they are allowed, until nothing else forbids them)."""
    mine = knobs[k].name
    radix = len(knobs[k].values) + 1
    places = [(j, knobs[n]) for j, n in enumerate(live) if knobs[n].name in c.names]
    others = states[:, [j for j, _ in places]]
    which, one = distinct(*packed(others, [len(knob.values) + 1 for _, knob in places]))
    codes = {knob.name: np.repeat(others[one, i], radix) for i, (_, knob) in enumerate(places)}
    if mine in c.names:
        codes[mine] = np.tile(np.arange(-1, radix - 1, dtype=np.int16), len(one))
    holds, undefined = columns.test(c, codes, len(one) * radix)
    holds = holds.reshape(len(one), radix)
    if undefined.any():
        undefined = undefined.reshape(len(one), radix)
        return (holds | undefined)[which], undefined[which]
    return holds[which], None


def packed(codes: np.ndarray, radices: Sequence[int]) -> tuple[np.ndarray, int]:
    """Rows of codes (from −1) as one integer each, and how many integers there could be."""
    key, size = np.zeros(len(codes), dtype=np.int64), 1
    for column, radix in enumerate(radices):
        if size * radix >= 2**62:
            key, size = np.unique(key, return_inverse=True)[1].reshape(-1), len(codes)
        key = key * radix + (codes[:, column] + np.int64(1))
        size *= radix
    return key, size


def distinct(key: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """(which distinct key each is, one place of each distinct key), keys below `size`, ascending."""
    if size > 4 * len(key) + 100_000:
        _, place, which = np.unique(key, return_index=True, return_inverse=True)
        return which.reshape(-1), place
    place = np.full(size, -1, dtype=np.int64)
    place[key] = np.arange(len(key))
    seen = place >= 0
    return (np.cumsum(seen) - 1)[key], place[seen]


def _pending(
    constraints: list[Constraint], knobs: list[Knob], live: list[int], place: Mapping[str, int], i: int
) -> list[Constraint]:
    names = {knobs[j].name for j in live}
    return [c for c in constraints if any(place[n] >= i for n in c.names) and len(names & set(c.names)) > 0]


def _check_defined(
    raw: list[Raw],
    suspects: list[tuple[int, Constraint, np.ndarray]],
    remembered: list[tuple[list[int], np.ndarray]],
    knobs: list[Knob],
    columns: Columns,
) -> None:
    if not suspects:
        return
    alive = [np.ones(1, dtype=bool)]  # by level, from the last: can the state be continued?
    for _, n, source, _, to in reversed(raw):
        before = np.zeros(n, dtype=bool)
        before[source[alive[-1][to]]] = True
        alive.append(before)
    alive.reverse()
    for i, constraint, undefined in suspects:
        k, _, source, code, to = raw[i]
        bad = np.flatnonzero(undefined[source, code + 1] & alive[i + 1][to])
        if len(bad):
            live, states = remembered[i]
            codes = {knobs[n].name: int(states[source[bad[0]], j]) for j, n in enumerate(live)}
            codes[knobs[k].name] = int(code[bad[0]])
            raise undefined_error(constraint, columns.values(constraint, codes))
