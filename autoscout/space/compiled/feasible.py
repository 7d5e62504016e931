"""Valid configurations of a space as rows of numbers: what searches and simulators compute on."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from autoscout.space.compiled.constraints import INACTIVE
from autoscout.space.compiled.diagram import Diagram
from autoscout.space.compiled.packing import packed
from autoscout.space.knob import Knob
from kb.records import Configuration

if TYPE_CHECKING:
    from autoscout.space.graph import Space


class Feasible:
    """`codes`: (n, knobs) int16, one row a valid configuration, columns in the order of `space.knobs`; a code is an
    index into the knob's `values`, −1 where it is inactive. Rows are sorted by the sparse knobs, then the dense ones,
    so that all points of a structure are one range."""

    def __init__(self, space: "Space", codes: np.ndarray) -> None:
        self.space = space
        self.codes = codes
        self._order = [i for kind in ("sparse", "dense") for i, k in enumerate(space.knobs) if k.kind == kind]
        self._index = Index(codes[:, self._order], [len(space.knobs[i].values) + 1 for i in self._order])

    def __len__(self) -> int:
        return len(self.codes)

    def configuration(self, i: int) -> Configuration:
        return self.space.of_codes(self.codes[i].tolist())

    def index(self, configuration: Configuration) -> int | None:
        """The row of a configuration; None if it is not among them."""
        codes = self.space.codes_of(configuration.knobs)
        return None if codes is None else self._index.find([codes[i] for i in self._order])

    def columns(self, codes: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """Each knob's values, (n,), for rows of codes (default: all). Where it is inactive: its `off` value; without
        one NaN for numbers, "" for names."""
        codes = self.codes if codes is None else codes
        return {knob.name: _lookup(knob)[codes[:, i]] for i, knob in enumerate(self.space.knobs)}


class Index:
    """Finds a row of codes among (n, k) lexicographically sorted ones: a binary search on one integer a row, or on a
    few in turn where 64 bits do not hold the product of the radices."""

    def __init__(self, codes: np.ndarray, radices: Sequence[int]) -> None:
        self._words: list[tuple[int, int, list[int], np.ndarray]] = []
        rank, begin = np.zeros(len(codes), dtype=np.int64), 0
        while begin < len(radices) or not self._words:
            end, size = begin, 1
            while end < len(radices) and size * radices[end] * max(len(codes), 1) < 2**62:
                size *= radices[end]
                end += 1
            end = max(end, min(begin + 1, len(radices)))
            key = rank * size + packed(codes[:, begin:end], radices[begin:end])[0]
            known = key if end == len(radices) else np.unique(key)
            self._words.append((begin, size, list(radices[begin:end]), known))
            rank, begin = np.searchsorted(known, key), end

    def find(self, codes: Sequence[int]) -> int | None:
        rank = 0
        for begin, size, radices, known in self._words:
            key = 0
            for code, radix in zip(codes[begin : begin + len(radices)], radices, strict=True):
                key = key * radix + code + 1
            key += rank * size
            rank = int(known.searchsorted(key))
            if rank == len(known) or known[rank] != key:
                return None
        return rank


def structures_of(diagram: Diagram, knobs: list[Knob]) -> tuple[np.ndarray, np.ndarray]:
    """(structures, state): every valid structure, (m, sparse knobs) codes in the order of the knobs and sorted, and the
    state of the diagram that it leads to."""
    sparse = [i for i, knob in enumerate(knobs) if knob.kind == "sparse"]
    _, codes, state = diagram.paths(0, diagram.sparse, np.zeros(1, dtype=np.int64))
    return _sorted(codes, diagram.order[: diagram.sparse], sparse, knobs, state)


def table_of(diagram: Diagram, knobs: list[Knob], structures: np.ndarray, state: np.ndarray) -> np.ndarray:
    """All valid configurations: the points below every state once, then for every structure those of its state."""
    sparse = [i for i, knob in enumerate(knobs) if knob.kind == "sparse"]
    dense = [i for i, knob in enumerate(knobs) if knob.kind == "dense"]
    below = diagram.below(diagram.sparse).astype(np.int64)
    origin, codes, _ = diagram.paths(diagram.sparse, len(knobs), np.arange(len(below)))
    points = _sorted(codes, diagram.order[diagram.sparse :], dense, knobs, origin, within=origin)[0]
    first = np.cumsum(below) - below
    sizes = below[state]
    structure = np.repeat(np.arange(len(structures)), sizes)
    point = np.arange(len(structure)) + np.repeat(first[state] - (np.cumsum(sizes) - sizes), sizes)
    table = np.empty((len(structure), len(knobs)), dtype=np.int16, order="F")
    for column, i in enumerate(sparse):
        table[:, i] = structures[structure, column]
    for column, i in enumerate(dense):
        table[:, i] = points[point, column]
    return table


def _sorted(
    codes: np.ndarray,
    columns: list[int],
    wanted: list[int],
    knobs: list[Knob],
    beside: np.ndarray,
    within: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Rows whose columns are the knobs `columns`, with the columns `wanted` and sorted by them (in groups `within`)."""
    codes = codes[:, [columns.index(i) for i in wanted]]
    key = packed(codes, [len(knobs[i].values) + 1 for i in wanted])[0]
    order = np.argsort(key, kind="stable") if within is None else np.lexsort((key, within))
    return np.asfortranarray(codes[order]), beside[order]


def _lookup(knob: Knob) -> np.ndarray:
    """The values by code; the last entry answers code −1."""
    absent = knob.off
    if absent is None:
        absent = "" if isinstance(knob.values[0], str) else float("nan")
    return np.array([*knob.values, absent])


__all__ = ["INACTIVE", "Feasible", "Index", "structures_of", "table_of"]
