"""Builds the diagram of a table's rows, from the last knob to the first, merging prefixes with equal continuations."""

import numpy as np

from autoscout.space.compiled.diagram import Diagram, Raw, assembled
from autoscout.space.compiled.packing import packed
from autoscout.space.knob import Knob


def from_rows(codes: np.ndarray, knobs: list[Knob]) -> Diagram | None:
    """Returns a diagram in which exactly these rows of codes, (n, knobs), are valid; None if there are none."""
    order = sorted(range(len(knobs)), key=lambda i: knobs[i].kind == "dense")
    key = packed(codes[:, order], [len(knobs[i].values) + 1 for i in order])[0]
    rows = codes[np.unique(key, return_index=True)[1]][:, order]
    if not len(rows):
        return None
    differs = np.zeros(len(rows), dtype=bool)
    differs[0] = True
    starts = [np.flatnonzero(differs)]  # index of the first row of each distinct prefix, by prefix length
    for column in range(rows.shape[1]):
        differs[1:] |= rows[1:, column] != rows[:-1, column]
        starts.append(np.flatnonzero(differs))
    same = np.zeros(len(rows), dtype=np.int64)  # prefix → state; prefixes with equal continuations share a state
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
    """Groups those of n states that have equal edges (sorted by source). Returns (group of each state, one state of
    each group)."""
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
