"""The conditional space: which knobs act, which values they may take, what is valid, and why not.

Notation (paper §3.2): a *structure* s assigns the sparse knobs, x the dense ones. `mask(s)` is M(s): the dense knobs
that s activates with the values that they take in the feasible subspace X(s).

What is valid is compiled once into a diagram (`diagram.py`) that has no dead ends: values are masked, never tried and
rejected, in a space of ten configurations as in one of 10²⁰. Where they are few enough to be listed (`enumerable`),
`structures` and `feasible` hold them as tables of codes, made when they are first asked for.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from autoscout.job.words import nearest_name
from autoscout.space import from_table as tables
from autoscout.space.compiled import build
from autoscout.space.compiled.constraints import INACTIVE, Columns, constraints
from autoscout.space.compiled.diagram import Diagram
from autoscout.space.compiled.entangled import sampled
from autoscout.space.compiled.feasible import Feasible, Index, structures_of, table_of
from autoscout.space.compiled.merge import from_rows
from autoscout.space.compiled.prefixes import LazyTree, SortedTable
from autoscout.space.knob import Knob, Rule
from autoscout.space.language.expression import Expression
from autoscout.space.moves import neighbours
from autoscout.space.nearness import Nearness, step
from autoscout.space.network import check_names, key, limited, network, ordered, topological
from autoscout.space.reasons import Violation, violations, why_nothing_is_feasible
from kb.records import AutoscoutError, Configuration, Objective, SpaceLimits, Value

Structure = dict[str, Value]  # active sparse knobs
Point = dict[str, Value]  # dense knobs

_MOST_ROWS = 4_000_000  # of a table of structures or configurations
_MOST_CELLS = 120_000_000


class Space:
    def __init__(
        self,
        knobs: list[Knob],
        rules: list[Rule],
        attributes: Mapping[str, Any],
        limits: SpaceLimits | None = None,
        objective: Objective | None = None,
        derived: Mapping[str, str] | None = None,
        measured: np.ndarray | None = None,
    ) -> None:
        """`measured`: valid are exactly these rows of codes (n, knobs), instead of all that the rules allow.
        Errors: AutoscoutError for a cycle, an unknown name, a limit outside a domain, an expression that cannot be
        evaluated (exit 2), or when nothing is feasible (exit 3)."""
        self.attributes = dict(attributes)
        self.derived = {name: Expression(text, derived) for name, text in (derived or {}).items()}
        self.objective = objective or Objective(minimize="step_time_s")
        self.capacities: dict[str, float] = {}  # GiB of one device by kind, in the order of ranks, where known
        limits = limits or SpaceLimits()
        self.knobs = ordered([limited(knob, limits) for knob in knobs], limits)
        self.knob = {knob.name: knob for knob in self.knobs}
        self.rules = rules
        self.sparse = [knob for knob in self.knobs if knob.kind == "sparse"]
        self.dense = [knob for knob in self.knobs if knob.kind == "dense"]
        check_names(self.knobs, rules, self.attributes)
        self.graph = network(self.knobs, rules)
        self._off = {knob.name: knob.off for knob in self.knobs}
        self._place = {knob.name: i for i, knob in enumerate(self.knobs)}
        self._code = {knob.name: {key(v): i for i, v in enumerate(knob.values)} for knob in self.knobs}
        self.measured = measured is not None
        self._coupled = constraints(self.knobs, rules)
        self._columns = Columns(self.knobs, self.attributes)
        self._estimate: int | None = None
        self._diagram = self._compiled(measured)
        self._nearness = Nearness()
        self._masks: dict[int, dict[str, tuple[Value, ...]]] = {}

    @staticmethod
    def from_table(
        table: tables.Table,
        sparse: Iterable[str] | None = None,
        dense: Iterable[str] | None = None,
        objective: Objective | None = None,
    ) -> "Space":
        """Any table of measured rows is a space: the domains are the values that occur, ordered, and the rows are the
        valid configurations; a combination that occurs twice is one. A knob that a row lacks is inactive there.

        `table`: rows, columns by name, or the path of a CSV (also .gz) or Parquet file. Where neither `sparse` nor
        `dense` is given, every column is a knob: names, and columns of at most two values, sparse, all others dense."""
        columns = tables.columns_of(table)
        knobs = tables.knobs_of(columns, sparse, dense)
        return Space(knobs, [], {}, objective=objective, measured=tables.codes_of(columns, knobs))

    @property
    def reference(self) -> Configuration | None:
        """What others are held against; None: of a table nobody knows."""
        return None

    # ---- codes and configurations ------------------------------------------------------------------------

    def codes_of(self, assigned: Mapping[str, Value]) -> list[int] | None:
        """Codes in the order of the knobs; None for a knob or value that the space does not have."""
        codes = [INACTIVE] * len(self.knobs)
        for name, value in assigned.items():
            code = self._code.get(name, {}).get(key(value))
            if code is None:
                return None
            codes[self._place[name]] = code
        return codes

    def of_codes(self, codes: Sequence[int]) -> Configuration:
        """A row of codes as a configuration: active knobs only, in the space's order."""
        return Configuration({k.name: k.values[c] for k, c in zip(self.knobs, codes, strict=True) if c != INACTIVE})

    def split(self, configuration: Configuration) -> tuple[Structure, Point]:
        s = {n: v for n, v in configuration.knobs.items() if self.knob[n].kind == "sparse"}
        x = {n: v for n, v in configuration.knobs.items() if self.knob[n].kind == "dense"}
        return s, x

    def name(self, configuration: Configuration) -> str:
        """Short canonical name: what differs from a plain single-device run, e.g. tp2_pp2_sp_mbs1."""
        parts = []
        for name, value in configuration.knobs.items():
            if value == self._off.get(name):
                continue
            if isinstance(value, bool):
                parts.append(name if value else f"no-{name}")
            elif isinstance(value, str):
                parts.append(f"{name}-{value}")
            else:
                parts.append(f"{name}x{value}" if name[-1].isdigit() else f"{name}{value}")
        return "_".join(parts)

    # ---- M(s) and projection -----------------------------------------------------------------------------

    def mask(self, s: Structure) -> dict[str, tuple[Value, ...]]:
        """M(s): the active dense knobs with the values that they take in X(s), in the order of the domains."""
        state = self._state(s)
        if state is None:
            return {}
        if state not in self._masks:
            taken = self._diagram.domains({}, self._diagram.sparse, state=state) or []
            self._masks[state] = {
                knob.name: values
                for i, knob in enumerate(self.knobs)
                if knob.kind == "dense" and (values := tuple(knob.values[c] for c in taken[i] if c != INACTIVE))
            }
        return self._masks[state]

    def project(self, s: Structure, x: Mapping[str, Value]) -> Point:
        """The point of X(s) nearest to x, coordinate by coordinate in steps of the domain; x may lack knobs."""
        state = self._state(s)
        if state is None:
            return {}
        wanted = {n: step(self.knob[n], x[n]) for n in x if n in self.knob}
        codes = [INACTIVE] * len(self.knobs)
        for name, values in self.mask(s).items():
            steps = [self._code[name][key(v)] for v in values]
            goal = wanted.get(name, 0)
            codes[self._place[name]] = min(steps, key=lambda c, w=goal: abs(c - w))
        first = self._diagram.sparse
        if self._diagram.walk(codes, first, state=state) is None:
            cost = {self._place[k.name]: self._nearness.cost(k, x[k.name]) for k in self.dense if k.name in x}
            codes = self._diagram.nearest(cost, first, state) or codes
        return self._point(codes)

    def points(self, s: Structure) -> Iterator[Point]:
        """All of X(s)."""
        state = self._state(s)
        if state is not None:
            yield from (self._point(codes) for codes in self._diagram.every(self._diagram.sparse, state))

    def configuration(self, s: Structure, x: Mapping[str, Value]) -> Configuration:
        """(s, x projected onto X(s)) as a configuration."""
        both = {**s, **self.project(s, x)}
        return Configuration({knob.name: both[knob.name] for knob in self.knobs if knob.name in both})

    # ---- tables ------------------------------------------------------------------------------------------

    @property
    def enumerable(self) -> bool:
        """Whether the valid configurations are few enough for `feasible`."""
        return self._listable(self._diagram.count)

    @cached_property
    def feasible(self) -> Feasible:
        """Every valid configuration as a row of codes. Errors: AutoscoutError where they are too many to be listed."""
        if not self.enumerable:
            raise AutoscoutError(f"{self.count:,} valid configurations are too many to list; sample them instead", 1)
        return Feasible(self, table_of(self._diagram, self.knobs, *self._structures))

    @property
    def structure_count(self) -> int:
        return self._diagram.structures

    @property
    def structures(self) -> np.ndarray:
        """Every valid structure, (n, sparse knobs) int16 codes. Errors: AutoscoutError where they are too many."""
        return self._structures[0]

    @cached_property
    def sizes(self) -> np.ndarray:
        """|X(s)| of every structure."""
        return self._diagram.below(self._diagram.sparse)[self._structures[1]]

    def structure(self, row: int) -> Structure:
        codes = self.structures[row].tolist()
        return {k.name: k.values[c] for k, c in zip(self.sparse, codes, strict=True) if c != INACTIVE}

    def row(self, s: Structure) -> int | None:
        """The row of a structure in `structures`; None if it is not valid."""
        codes = self.codes_of(s)
        return None if codes is None else self._rows.find([codes[self._place[k.name]] for k in self.sparse])

    @cached_property
    def _structures(self) -> tuple[np.ndarray, np.ndarray]:
        if not self._listable(self._diagram.structures):
            raise AutoscoutError(f"{self._diagram.structures:,} valid structures are too many to list", 1)
        return structures_of(self._diagram, self.knobs)

    @cached_property
    def _rows(self) -> Index:
        return Index(self.structures, [len(knob.values) + 1 for knob in self.sparse])

    def _listable(self, n: int) -> bool:
        return n <= _MOST_ROWS and n * len(self.knobs) <= _MOST_CELLS

    def sorted_by(self, ordering: Sequence[str]) -> SortedTable | LazyTree:
        """The tree over the prefixes of an ordering of knobs. Over the rows of `structures` where the ordering is of
        sparse knobs, else over those of `feasible`; where these are too many to be listed, over configurations.

        Errors: AutoscoutError for an unknown knob (exit 2), or an ordering that would need too many states."""
        for name in ordering:
            if name not in self.knob:
                raise AutoscoutError(f"'{name}'{nearest_name(name, self.knob)}", 2)
        order = [self._place[name] for name in ordering]
        radices = [len(self.knobs[i].values) + 1 for i in order]
        columns = [i for i, knob in enumerate(self.knobs) if knob.kind == "sparse"]
        if all(i in columns for i in order) and self._listable(self._diagram.structures):
            return SortedTable(self.structures, [columns.index(i) for i in order], order, radices)
        if self.enumerable:
            return SortedTable(self.feasible.codes, order, order, radices)
        order += [i for i in self._diagram.order if i not in order]
        try:
            diagram = build.smallest([order], self.knobs, self._coupled, self._columns)
        except build.TooWide:
            sentence = f"the ordering {', '.join(ordering)} needs too many states; try another"
            raise AutoscoutError(sentence, 1) from None
        assert diagram is not None, "a space that is not empty is not empty in another order"
        return LazyTree(diagram, len(ordering))

    # ---- partial assignments and moves -------------------------------------------------------------------

    def domain(self, name: str, partial: Mapping[str, Value | None] | None = None) -> tuple[Value, ...]:
        """The values that a knob takes in the valid configurations that agree with a partial assignment (None: the knob
        is inactive), in the order of its domain; empty if it is inactive in all of them, or if there are none."""
        taken = self._taken(partial or {})
        if name not in self.knob:
            raise AutoscoutError(f"'{name}'{nearest_name(name, self.knob)}", 2)
        codes = [] if taken is None else taken[self._place[name]].tolist()
        return tuple(self.knob[name].values[c] for c in codes if c != INACTIVE)

    def active(self, partial: Mapping[str, Value | None] | None = None) -> dict[str, bool | None]:
        """For every knob whether it acts: in all valid configurations that agree with a partial assignment, in none of
        them (False), or in some (None)."""
        taken = self._taken(partial or {})
        if taken is None:
            return dict.fromkeys(self.knob, False)
        acts = {}
        for knob, codes in zip(self.knobs, taken, strict=True):
            acts[knob.name] = (None if len(codes) > 1 else False) if codes[0] == INACTIVE else True
        return acts

    def ordering(self, rng: np.random.Generator | None = None, front: Iterable[str] = ()) -> list[str]:
        """The sparse knobs in an order in which every knob comes after those that activate or imply it: `front` as
        early as that allows, the rest as declared, or at random."""
        return topological(self.graph, [knob.name for knob in self.sparse], rng, front)

    def neighbours(self, configuration: Configuration) -> list[Configuration]:
        """All one-knob moves from a valid configuration, projected so that they are valid (`moves.py`)."""
        codes = self.codes_of(configuration.knobs)
        if codes is None or self._diagram.walk(codes) is None:
            raise AutoscoutError(f"{self.name(configuration)} is not a valid configuration", 2)
        return [self.of_codes(moved) for moved in self.neighbour_codes(codes)]

    def neighbour_codes(self, codes: list[int]) -> list[list[int]]:
        """The same as codes, of a valid row of codes."""
        return neighbours(self._diagram, codes)

    def canonical(self, assigned: Mapping[str, Value]) -> Configuration:
        """An assignment without the knobs that cannot act in it, in the space's order: what is the same run has the
        same form, and with it the same hash (`Configuration.id`) and `name`."""
        kept: dict[str, Value] = {}
        for knob in self.knobs:
            if knob.name in assigned and (knob.when is None or knob.when(self.environment(kept))):
                kept[knob.name] = assigned[knob.name]
        return Configuration(kept)

    # ---- counting and sampling ---------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """Valid configurations, exact or not (`count_is_exact`)."""
        return self._diagram.count if self._estimate is None else self._estimate

    @property
    def count_is_exact(self) -> bool:
        """False where rules couple so many knobs that the space is a sample of what is valid (`entangled.py`), and its
        count an estimate."""
        return self._estimate is None

    def sample(self, rng: np.random.Generator) -> Configuration:
        """Uniform over all valid configurations."""
        return self.of_codes(self._diagram.draw(rng))

    def sample_many(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """(n, knobs) codes, each row uniform over all valid configurations."""
        return self._diagram.sample(n, rng)

    def sampled(self, n: int, rng: np.random.Generator, including: Iterable[Configuration] = ()) -> "Space":
        """A space of at most n of the valid configurations, uniformly drawn, and of the given ones: for searches that
        need every configuration as a row, where those are too many."""
        rows = [codes for c in including if (codes := self.codes_of(c.knobs)) is not None]
        codes = np.concatenate([np.array(rows, dtype=np.int16).reshape(-1, len(self.knobs)), self.sample_many(n, rng)])
        space = Space(self.knobs, self.rules, self.attributes, objective=self.objective, measured=codes)
        space.derived, space.measured, space._estimate = self.derived, False, self.count
        space.capacities = self.capacities
        return space

    def configurations(self) -> Iterator[Configuration]:
        """All of them; in the order of `feasible` where that exists."""
        if self.enumerable:
            yield from (self.of_codes(row) for row in self.feasible.codes.tolist())
        else:
            yield from (self.of_codes(codes) for codes in self._diagram.every())

    # ---- validity and its reasons ------------------------------------------------------------------------

    def is_valid(self, configuration: Configuration) -> bool:
        codes = self.codes_of(configuration.knobs)
        return codes is not None and self._diagram.walk(codes) is not None

    def violations(self, configuration: Configuration) -> list[Violation]:
        """Everything that is wrong with an assignment, in words; empty for a valid configuration."""
        return violations(self, configuration)

    def environment(self, assigned: Mapping[str, Value]) -> dict[str, Any]:
        """What expressions read for an assignment of active knobs."""
        return {**self.attributes, **self._off, **assigned}

    def nearest(
        self,
        wanted: Mapping[str, Value],
        firm: Mapping[str, Value] | None = None,
        given: Iterable[str] = (),
    ) -> Configuration | None:
        """The valid configuration nearest to `wanted` among those that agree with `firm` where its knobs are active.

        Distance (`nearness.py`): the structure first, |log₂| of the ratio for numbers and 1 for another choice; then
        the point, in steps of the domains. Knobs in `given` count before all others."""
        firm, given = firm or {}, set(given)
        cost: dict[int, np.ndarray] = {}
        for i, knob in enumerate(self.knobs):
            if knob.name in wanted:
                cost[i] = self._nearness.cost(knob, wanted[knob.name], knob.name in given)
            if knob.name in firm:
                cost[i] = np.maximum(cost.get(i, 0), self._nearness.only(knob, firm[knob.name]))
        codes = self._diagram.nearest(cost)
        return None if codes is None else self.of_codes(codes)

    # ---- construction ------------------------------------------------------------------------------------

    def _compiled(self, measured: np.ndarray | None) -> Diagram:
        if measured is not None:
            diagram = from_rows(measured, self.knobs)
            if diagram is None:
                raise AutoscoutError("the table has no rows", 3)
            return diagram
        coupled, columns = self._coupled, self._columns
        try:
            diagram = build.from_constraints(self.knobs, coupled, columns)
        except build.TooWide:
            codes, count, exact = sampled(self.knobs, coupled, columns)
            self._estimate = None if exact else count
            diagram = from_rows(codes, self.knobs)
        if diagram is None:
            raise AutoscoutError(why_nothing_is_feasible(self.knobs, coupled, columns), 3)
        return diagram

    def _state(self, s: Structure) -> int | None:
        """Of the diagram, after the sparse knobs."""
        codes = self.codes_of(s)
        return None if codes is None else self._diagram.walk(codes, 0, self._diagram.sparse)

    def _taken(self, partial: Mapping[str, Value | None]) -> list[np.ndarray] | None:
        """For each knob the codes that it takes in the valid configurations that agree with a partial assignment."""
        allowed = {}
        for name, value in partial.items():
            if name not in self.knob:
                raise AutoscoutError(f"'{name}'{nearest_name(name, self.knob)}", 2)
            code = INACTIVE if value is None else self._code[name].get(key(value), -2)
            allowed[self._place[name]] = np.arange(-1, len(self.knob[name].values)) == code
        return self._diagram.domains(allowed)

    def _point(self, codes: Sequence[int]) -> Point:
        return {
            k.name: k.values[c] for k, c in zip(self.knobs, codes, strict=True) if k.kind == "dense" and c != INACTIVE
        }
