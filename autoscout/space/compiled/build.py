"""Builds the decision diagram of a space from its constraints.

Knobs are assigned level by level, sparse knobs first. A constraint is applied at the level of its last knob, and only
to combinations of values that occur. Until then, each state stores what the constraint needs: the codes of its assigned
knobs, or (if there would be too many states) only the values of subexpressions that are already determined, such as the
product a * b in `a * b * c <= 64`. States with equal contents are merged."""

import contextlib
import itertools
import math
from collections.abc import Mapping

import msgspec
import numpy as np

from autoscout.space.compiled.constraints import Columns, Constraint, ConstraintPart, rearranged, undefined_error
from autoscout.space.compiled.diagram import Diagram, Raw, assembled
from autoscout.space.compiled.packing import distinct, packed
from autoscout.space.knob import Knob
from autoscout.space.language.columns import Known

# Limits on the number of states of a level. All orders of knobs are tried with the first limit, then with the next
# limit.
_MOST_STATES = (20_000, 150_000, 1_000_000)
# Limits on a level's number of (state, value) pairs, and on the number of valid pairs.
_MOST_CELLS, _MOST_EDGES = 50_000_000, 8_000_000


class TooWide(Exception):
    """A level of the diagram would have too many states or edges."""


class Slot(msgspec.Struct, frozen=True):
    """A column of the states' contents: a knob's code, or the value of a subexpression as its index in `known`."""

    key: int | str  # the knob's index, or the text of the subexpression
    radix: int  # the column has values from −1 to radix − 2
    known: Known | None = None


def from_constraints(knobs: list[Knob], constraints: list[Constraint], columns: Columns) -> Diagram | None:
    """Builds the diagram; None if no configuration is valid. Until the diagram is within the limits, tries the declared
    order of knobs and the order of `_frugal`, each with states that store codes and with states that store values, and
    then raises the limits.

    Errors: TooWide; AutoscoutError if an expression is undefined for an assignment that all other constraints allow."""
    declared = sorted(range(len(knobs)), key=lambda i: knobs[i].kind == "dense")
    with contextlib.suppress(TooWide):
        return in_order(declared, knobs, constraints, columns, _MOST_STATES[0])
    orders = [declared, _frugal(knobs, constraints)]
    for limit, parts, order in itertools.product(_MOST_STATES, (False, True), orders):
        with contextlib.suppress(TooWide):
            return in_order(order, knobs, constraints, columns, limit, parts)
    raise TooWide


def in_order(
    order: list[int],
    knobs: list[Knob],
    constraints: list[Constraint],
    columns: Columns,
    most_states: int = _MOST_STATES[-1],
    parts: bool = False,
) -> Diagram | None:
    """Builds the diagram with the knobs in this order; None if no configuration is valid. `parts`: whether states store
    the values of subexpressions, not codes."""
    place = {knobs[k].name: i for i, k in enumerate(order)}
    if parts:
        whole = columns.whole
        constraints = [rearranged(c, place, whole) for c in constraints]
    ends = [max((place[n] for n in c.names), default=0) for c in constraints]
    slots: list[Slot] = []
    states = np.zeros((1, 0), dtype=np.int32)  # shape (states, slots)
    raw: list[Raw] = []
    suspects: list[tuple[int, Constraint, np.ndarray]] = []
    assigned: set[str] = set()
    for i, k in enumerate(order):
        n, radix = len(states), len(knobs[k].values) + 1
        if n * radix > _MOST_CELLS:
            raise TooWide
        level = _Level(knobs, k, slots, states, columns, assigned, parts)
        allowed = np.ones((n, radix), dtype=bool)
        for c, end in zip(constraints, ends, strict=True):
            if end == i:
                holds, undefined = level.relation(c)
                allowed &= holds
                if undefined is not None:
                    suspects.append((i, c, undefined))
        if np.count_nonzero(allowed) > _MOST_EDGES:
            raise TooWide
        source, code = np.nonzero(allowed)
        raw.append((k, n, source, (code - 1).astype(np.int16), source))
        assigned = assigned | {knobs[k].name}
        open_ = [c for c, end in zip(constraints, ends, strict=True) if end > i]
        slots, after = level.remembered(open_, assigned, source, code)
        to, representative = distinct(*packed(after, [slot.radix for slot in slots]))
        raw[-1] = (*raw[-1][:4], to)
        states = after[representative]
        if len(states) > most_states:
            raise TooWide
    sparse = sum(knob.kind == "sparse" for knob in knobs)
    diagram = assembled(raw, sparse, [len(knob.values) for knob in knobs])
    _check_defined(raw, suspects, knobs, columns)
    return diagram


class _Level:
    """The assignment of one knob: determines which codes each state allows, and what the next states must store."""

    def __init__(
        self,
        knobs: list[Knob],
        k: int,
        slots: list[Slot],
        states: np.ndarray,
        columns: Columns,
        assigned: set[str],
        parts: bool,
    ) -> None:
        self.knobs, self.k, self.slots, self.states, self.columns = knobs, k, slots, states, columns
        self.assigned, self.parts = assigned, parts
        self.radix = len(knobs[k].values) + 1
        self.index = {knob.name: i for i, knob in enumerate(knobs)}
        self.column = {slot.key: j for j, slot in enumerate(slots)}

    def relation(self, c: Constraint) -> tuple[np.ndarray, np.ndarray | None]:
        """Evaluates a constraint for each state and each code of the knob. Returns (allowed, undefined), both of shape
        (states, values + 1); the column index is code + 1. Undefined entries count as allowed, since a different
        constraint may forbid them. The second array is None if nothing is undefined."""
        places = self._places(self._read(c, self.assigned))
        which, one = self._distinct(places)
        mine = np.tile(np.arange(-1, self.radix - 1), len(one))
        codes, known = self._values(places, np.repeat(one, self.radix), mine)
        holds, undefined = self.columns.test(c, codes, len(mine), known)
        holds, undefined = (x.reshape(len(one), self.radix) for x in (holds, undefined))
        if undefined.any():
            return (holds | undefined)[which], undefined[which]
        return holds[which], None

    def remembered(
        self, open_: list[Constraint], assigned: set[str], source: np.ndarray, code: np.ndarray
    ) -> tuple[list[Slot], np.ndarray]:
        """Returns (the next states' slots, their contents by edge (edges, slots)), given each edge's `source` and
        `code` + 1."""
        wanted: dict[int | str, ConstraintPart] = {}
        for c in open_:
            for part in self._read(c, assigned):
                wanted[self._key(part)] = part
        slots: list[Slot] = []
        contents: list[np.ndarray] = []
        for key, part in wanted.items():
            if key in self.column:
                slots.append(self.slots[self.column[key]])
                contents.append(self.states[source, self.column[key]])
            elif isinstance(key, int):
                slots.append(Slot(key, self.radix))
                contents.append((code - 1).astype(np.int32))
            else:
                slot, values = self._part(key, part)
                slots.append(slot)
                contents.append(values[source, code])
        after = np.empty((len(source), len(slots)), dtype=np.int32, order="F")
        for j, column in enumerate(contents):
            after[:, j] = column
        return slots, after

    def _part(self, key: str, part: ConstraintPart) -> tuple[Slot, np.ndarray]:
        """Evaluates a subexpression that this knob completes. Returns (the subexpression's slot, its contents by state
        and code + 1)."""
        places = self._places(part.inside(self.assigned))
        which, one = self._distinct(places)
        mine = np.tile(np.arange(-1, self.radix - 1), len(one))
        codes, known = self._values(places, np.repeat(one, self.radix), mine)
        value = self.columns.part(part, codes, len(mine), known)
        numbers, table = value.numbered()
        return Slot(key, len(table.undefined) + 1, table), numbers.reshape(len(one), self.radix)[which]

    def _read(self, c: Constraint, assigned: set[str]) -> list[ConstraintPart]:
        return c.read(assigned) if self.parts else c.knobs_read(assigned)

    def _key(self, part: ConstraintPart) -> int | str:
        return self.index.get(part.text, part.text)

    def _places(self, parts: list[ConstraintPart]) -> list[int]:
        return [self.column[key] for key in dict.fromkeys(self._key(part) for part in parts)]

    def _distinct(self, places: list[int]) -> tuple[np.ndarray, np.ndarray]:
        return distinct(*packed(self.states[:, places], [self.slots[j].radix for j in places]))

    def _values(
        self, places: list[int], rows: np.ndarray, mine: np.ndarray
    ) -> tuple[dict[str, np.ndarray], dict[str, Known]]:
        """Returns (columns of knobs' codes, columns of known subexpressions). `rows`: indices of states; `mine`: codes
        of this knob."""
        codes = {self.knobs[self.k].name: mine}
        known: dict[str, Known] = {}
        for j in places:
            slot, content = self.slots[j], self.states[rows, j]
            if slot.known is not None:
                known[str(slot.key)] = slot.known.at(content)
            elif isinstance(slot.key, int):
                codes[self.knobs[slot.key].name] = content
        return codes, known


def _frugal(knobs: list[Knob], constraints: list[Constraint]) -> list[int]:
    """Returns knob indices, sparse knobs first, in a greedy order that minimizes what states have to store (the sum of
    log₂ of the knobs' numbers of codes). An implied knob needs no storage after the knobs that imply it are
    assigned."""
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


def _check_defined(
    raw: list[Raw], suspects: list[tuple[int, Constraint, np.ndarray]], knobs: list[Knob], columns: Columns
) -> None:
    """Raises an error with an example if an expression is undefined on an edge of a valid configuration."""
    if not suspects:
        return
    # for each level, from the last to the first: whether each state leads to a valid configuration
    alive = [np.ones(1, dtype=bool)]
    for _, n, source, _, to in reversed(raw):
        before = np.zeros(n, dtype=bool)
        before[source[alive[-1][to]]] = True
        alive.append(before)
    alive.reverse()
    for i, constraint, undefined in suspects:
        _, _, source, code, to = raw[i]
        bad = np.flatnonzero(undefined[source, code + 1] & alive[i + 1][to])
        if len(bad):
            raise undefined_error(constraint, columns.values(constraint, _codes_before(raw, i, int(bad[0]), knobs)))


def _codes_before(raw: list[Raw], i: int, edge: int, knobs: list[Knob]) -> dict[str, int]:
    """Returns knob → code on one path to an edge of level i, including the edge's own code."""
    knob, _, source, code, _ = raw[i]
    codes, state = {knobs[knob].name: int(code[edge])}, source[edge]
    for knob, _, source, code, to in reversed(raw[:i]):
        edge = int(np.flatnonzero(to == state)[0])
        codes[knobs[knob].name], state = int(code[edge]), source[edge]
    return codes
