"""Tables of the valid configurations of a space, for searches and simulators."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from autoscout.space.codes import INACTIVE, Coding, Structure
from autoscout.space.compiled.diagram import Diagram
from autoscout.space.compiled.packing import packed
from autoscout.space.knob import Knob
from kb.records import AutoscoutError, Configuration

_MOST_ROWS = 4_000_000  # maximum rows of a table of structures or configurations
_MOST_CELLS = 120_000_000


class Feasible:
    """The table of valid configurations. `codes`: (n, knobs) int16, with columns in the order of the knobs. A code is
    an index into the knob's `values`, or −1 if the knob is inactive. Rows are sorted by the sparse knobs first, so that
    rows with the same structure (the same values of all sparse knobs) are contiguous."""

    def __init__(self, coding: Coding, codes: np.ndarray) -> None:
        self._coding = coding
        self.codes = codes
        self._order = [i for kind in ("sparse", "dense") for i, k in enumerate(coding.knobs) if k.kind == kind]
        self._index = Index(codes[:, self._order], [len(coding.knobs[i].values) + 1 for i in self._order])

    def __len__(self) -> int:
        return len(self.codes)

    def configuration(self, i: int) -> Configuration:
        return self._coding.configuration(self.codes[i].tolist())

    def index(self, configuration: Configuration) -> int | None:
        """Returns the row index of a configuration; None if it is not valid."""
        codes = self._coding.row(configuration.knobs)
        return None if codes is None else self._index.find([codes[i] for i in self._order])

    def columns(self, codes: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """Returns the columns of values (see `Coding.columns`) for rows of codes, by default for all rows."""
        return self._coding.columns(self.codes if codes is None else codes)


class Lists:
    """Tables of a diagram's structures and configurations, created on first use.

    Errors: AutoscoutError if there are too many.
    """

    def __init__(self, diagram: Diagram, coding: Coding) -> None:
        self._diagram, self._coding = diagram, coding
        self._sparse = [(i, knob) for i, knob in enumerate(coding.knobs) if knob.kind == "sparse"]

    def holds(self, n: int) -> bool:
        """Whether n rows are few enough to list."""
        return n <= _MOST_ROWS and n * len(self._coding.knobs) <= _MOST_CELLS

    @cached_property
    def feasible(self) -> Feasible:
        return Feasible(self._coding, table_of(self._diagram, self._coding.knobs, *self._structures))

    @property
    def structures(self) -> np.ndarray:
        """All valid structures: sorted codes (n, sparse knobs) int16."""
        return self._structures[0]

    def structure(self, row: int) -> Structure:
        codes = self.structures[row].tolist()
        return {k.name: k.values[c] for (_, k), c in zip(self._sparse, codes, strict=True) if c != INACTIVE}

    def row(self, s: Structure) -> int | None:
        """Returns the row index of a structure in `structures`; None if it is not valid."""
        codes = self._coding.row(s)
        return None if codes is None else self._rows.find([codes[i] for i, _ in self._sparse])

    @cached_property
    def _structures(self) -> tuple[np.ndarray, np.ndarray]:
        if not self.holds(self._diagram.structures):
            count = f"{self._diagram.structures:,} valid combinations of the sparse knobs' values"
            raise AutoscoutError(f"{count} are too many to list; allow fewer values with [space] limit", 1)
        return structures_of(self._diagram, self._coding.knobs)

    @cached_property
    def _rows(self) -> "Index":
        return Index(self.structures, [len(knob.values) + 1 for _, knob in self._sparse])


class Index:
    """Finds a row of codes in (n, k) lexicographically sorted rows, by binary search on integers. If a row does not fit
    into a 64-bit integer, it is split over several integers, searched in turn."""

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
    """Returns (sorted codes of all valid structures (m, sparse knobs), the diagram's state after each structure
    (m,))."""
    sparse = [i for i, knob in enumerate(knobs) if knob.kind == "sparse"]
    _, codes, state = diagram.paths(0, diagram.sparse, np.zeros(1, dtype=np.int64))
    return _sorted(codes, diagram.order[: diagram.sparse], sparse, knobs, state)


def table_of(diagram: Diagram, knobs: list[Knob], structures: np.ndarray, state: np.ndarray) -> np.ndarray:
    """Returns all valid configurations, by combining each structure with all valid dense codes below its `state`. These
    are computed once per state, because structures can share a state."""
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
    companion: np.ndarray,
    within: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns (rows with columns reordered from `columns` to `wanted`, then sorted; `companion` reordered like the
    rows). If `within` is given, rows are sorted only within its groups."""
    codes = codes[:, [columns.index(i) for i in wanted]]
    key = packed(codes, [len(knobs[i].values) + 1 for i in wanted])[0]
    order = np.argsort(key, kind="stable") if within is None else np.lexsort((key, within))
    return np.asfortranarray(codes[order]), companion[order]
