"""The space of configurations: which knobs are active, which values they may take, what is valid, and why not.

Notation (AutoScout paper, §3.2): a *structure* s assigns the sparse knobs, and a *point* x the dense knobs. X(s) is the
set of valid points of s. The mask M(s), `mask(s)`, maps each active dense knob to its values in X(s).

The valid configurations are compiled once into a diagram (`diagram.py`) without dead ends, so that no search has to
reject invalid candidates, however large the space is. If the configurations are few enough to list (`enumerable`),
`structures` and `feasible` are tables of codes, built on first use.

`Space` is the interface; the imported modules contain the algorithms."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from autoscout.space import from_table as tables
from autoscout.space import partial as partials
from autoscout.space.codes import Coding, Point, Structure, short_name
from autoscout.space.compiled.constraints import Columns, constraints
from autoscout.space.compiled.diagram import Diagram
from autoscout.space.compiled.entangled import diagram_of
from autoscout.space.compiled.feasible import Feasible, Lists
from autoscout.space.compiled.merge import from_rows
from autoscout.space.compiled.tilted import tilted, varied
from autoscout.space.knob import Knob, Rule
from autoscout.space.language.expression import Expression
from autoscout.space.moves import neighbours
from autoscout.space.nearness import Nearness
from autoscout.space.network import check_names, conditions, limited, network, ordered, topological
from autoscout.space.projection import Projection
from autoscout.space.reasons import Violation, absent, violations, why_nothing_is_feasible
from kb.records import AutoscoutError, Configuration, Objective, SpaceLimits, Value

if TYPE_CHECKING:
    import networkx as nx


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
        """`measured`: rows of codes (n, knobs). If given, only these rows are valid, not all configurations that the
        rules allow.

        Errors: AutoscoutError for a cycle, an unknown name, a limit outside a domain, or an invalid expression (exit
        2), and if no configuration is valid (exit 3)."""
        self.attributes = dict(attributes)
        self.derived = {name: Expression(text, derived) for name, text in (derived or {}).items()}
        self.objective = objective or Objective(minimize="step_time_s")
        self.simulated: dict[str, Expression] = {}  # simulators' inputs that are not knobs: name → expression
        self.closed: dict[str, str] = {}  # knob of the catalog that the space lacks → the reason
        # memory in GiB per device of each kind, in rank order; missing if unknown
        self.capacities: dict[str, float] = {}
        limits = limits or SpaceLimits()
        self.knobs = ordered([limited(knob, limits) for knob in knobs], limits)
        self.knob = {knob.name: knob for knob in self.knobs}
        self.rules = rules
        self.sparse = [knob for knob in self.knobs if knob.kind == "sparse"]
        self.dense = [knob for knob in self.knobs if knob.kind == "dense"]
        check_names(self.knobs, rules, self.attributes)
        self._conditions = conditions(self.knobs)
        self._off = {knob.name: knob.off for knob in self.knobs}
        self._coding = Coding(self.knobs)
        self.measured = measured is not None
        self._coupled = constraints(self.knobs, rules)
        self._columns = Columns(self.knobs, self.attributes)
        self._estimate: int | None = None
        self._diagram = self._compiled(measured)
        self._nearness = Nearness()
        self._projection = Projection(self._diagram, self._coding, self._nearness)
        self._lists = Lists(self._diagram, self._coding)

    @staticmethod
    def from_table(
        table: tables.Table,
        sparse: Iterable[str] | None = None,
        dense: Iterable[str] | None = None,
        objective: Objective | None = None,
    ) -> "Space":
        """Creates a space from a table of measured configurations. The rows are the valid configurations (duplicates
        are merged), and the values in a column are a knob's domain. A missing value means that the knob is inactive.
        `table`: rows, columns by name, or the path of a CSV (also .gz) or Parquet file. If neither `sparse` nor `dense`
        is given, every column is a knob: columns with text or at most two values are sparse, all others dense."""
        columns = tables.columns_of(table)
        knobs = tables.knobs_of(columns, sparse, dense)
        return Space(knobs, [], {}, objective=objective, measured=tables.codes_of(columns, knobs))

    @property
    def reference(self) -> Configuration | None:
        """The baseline for comparisons: the first recipe; None if there is none."""
        return self.recipes[0] if self.recipes else None

    @property
    def recipes(self) -> list[Configuration]:
        """Expert configurations from which searches start; may be empty."""
        return []

    @cached_property
    def graph(self) -> "nx.DiGraph":
        """The dependency graph of the knobs. Edges have a `kind` and a `rule` (see `network.py`)."""
        return network(self.knobs, self.rules)

    # ---- codes and configurations ------------------------------------------------------------------------

    def codes_of(self, assigned: Mapping[str, Value]) -> list[int] | None:
        """Returns the codes in the order of the knobs; None for an unknown knob or value."""
        return self._coding.row(assigned)

    def of_codes(self, codes: Sequence[int]) -> Configuration:
        """Returns the configuration of a row of codes: active knobs only, in the space's order."""
        return self._coding.configuration(codes)

    def columns(self, codes: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the columns that simulators need, (n,) each, for rows of codes (n, knobs): each knob's values
        (`Coding.columns`) and the derived columns (`with_simulated`)."""
        return self.with_simulated(self._coding.columns(codes), len(codes))

    def with_simulated(
        self, columns: dict[str, np.ndarray], n: int, attributes: Mapping[str, Any] | None = None
    ) -> dict[str, np.ndarray]:
        """Returns the columns of n rows with the derived columns in `simulated` added. `attributes`: values to use
        instead of this job's attributes."""
        return {**columns, **_meanings(self.simulated, {**self.attributes, **(attributes or {})}, columns, n)}

    def as_simulated(self, configuration: Configuration) -> Configuration:
        """Returns a configuration's active knobs together with the derived columns for simulators."""
        env, columns = self.environment(configuration.knobs), dict(configuration.knobs)
        for name, expression in self.simulated.items():
            with contextlib.suppress(AutoscoutError):  # skips columns whose expression needs an inactive knob
                columns[name] = expression(env)
        return Configuration(columns)

    def split(self, configuration: Configuration) -> tuple[Structure, Point]:
        s = {n: v for n, v in configuration.knobs.items() if self.knob[n].kind == "sparse"}
        x = {n: v for n, v in configuration.knobs.items() if self.knob[n].kind == "dense"}
        return s, x

    def name(self, configuration: Configuration) -> str:
        """Returns a short unique name: the differences from a plain single-device run, such as tp2_pp2_sp_mbs1."""
        return short_name(configuration, self._off)

    # ---- values allowed by a structure, and projection onto valid configurations -------------------------

    def mask(self, s: Structure) -> dict[str, tuple[Value, ...]]:
        """Returns the active dense knobs of structure s, with their values in valid configurations (paper: M(s))."""
        return self._projection.mask(s)

    def project(self, s: Structure, x: Mapping[str, Value]) -> Point:
        """Returns the valid point of structure s nearest to x, in steps of each knob's domain. x may lack knobs."""
        return self._projection.nearest(s, x)

    def configuration(self, s: Structure, x: Mapping[str, Value]) -> Configuration:
        """Returns the configuration of structure s and of its valid point nearest to x."""
        both = {**s, **self.project(s, x)}
        return Configuration({knob.name: both[knob.name] for knob in self.knobs if knob.name in both})

    # ---- tables ------------------------------------------------------------------------------------------

    @property
    def enumerable(self) -> bool:
        """Whether the valid configurations are few enough for `feasible`."""
        return self._lists.holds(self._diagram.count)

    @cached_property
    def feasible(self) -> Feasible:
        """All valid configurations as rows of codes. Errors: AutoscoutError if there are too many to list."""
        if not self.enumerable:
            raise AutoscoutError(f"{self.count:,} valid configurations are too many to list; sample them instead", 1)
        return self._lists.feasible

    @property
    def structure_count(self) -> int:
        return self._diagram.structures

    @property
    def structures(self) -> np.ndarray:
        """All valid structures: codes (n, sparse knobs) int16. Errors: AutoscoutError if there are too many."""
        return self._lists.structures

    def structure(self, row: int) -> Structure:
        return self._lists.structure(row)

    def row(self, s: Structure) -> int | None:
        """Returns the row index of a structure in `structures`; None if it is not valid."""
        return self._lists.row(s)

    # ---- partial assignments and moves -------------------------------------------------------------------

    def domain(self, name: str, partial: Mapping[str, Value | None] | None = None) -> tuple[Value, ...]:
        """Returns a knob's values in the valid configurations that agree with a partial assignment (in which None means
        inactive), in the order of its domain. Empty if no valid configuration agrees, or if the knob is inactive in all
        of them."""
        return partials.domain(self._diagram, self._coding, name, partial or {})

    def levels(self) -> list[np.ndarray]:
        """Returns the ascending codes of each knob that occur in valid configurations (−1: inactive)."""
        found = self._diagram.domains({})
        assert found is not None, "a space is not empty"
        return found

    def active(self, partial: Mapping[str, Value | None] | None = None) -> dict[str, bool | None]:
        """Returns whether each knob is active in all (True), no (False) or some (None) valid configurations that agree
        with a partial assignment."""
        return partials.active(self._diagram, self._coding, partial or {})

    def ordering(self, rng: np.random.Generator | None = None) -> list[str]:
        """Returns the sparse knobs, each after the knobs that activate or imply it, and otherwise in declared or (with
        `rng`) random order."""
        return topological(self._conditions, [knob.name for knob in self.sparse], rng)

    def neighbours(self, configuration: Configuration) -> list[Configuration]:
        """Returns the valid configurations that are one move of a knob away (see `moves.py`)."""
        codes = self.codes_of(configuration.knobs)
        if codes is None or self._diagram.walk(codes) is None:
            raise AutoscoutError(f"{self.name(configuration)} is not a valid configuration", 2)
        return [self.of_codes(moved) for moved in self.neighbour_codes(codes)]

    def neighbour_codes(self, codes: list[int]) -> list[list[int]]:
        """Like `neighbours`, for rows of codes."""
        return neighbours(self._diagram, codes)

    def canonical(self, assigned: Mapping[str, Value]) -> Configuration:
        """Returns the configuration of an assignment: without inactive knobs and in the space's order, so that
        assignments with the same effect have the same hash (`Configuration.id`) and `name`."""
        kept: dict[str, Value] = {}
        for knob in self.knobs:
            if knob.name in assigned and (knob.when is None or knob.when(self.environment(kept))):
                kept[knob.name] = assigned[knob.name]
        return Configuration(kept)

    # ---- counting and sampling ---------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """The number of valid configurations. It is an estimate unless `count_is_exact`."""
        return self._diagram.count if self._estimate is None else self._estimate

    @property
    def count_is_exact(self) -> bool:
        """False if the space is a sample of the valid configurations (`entangled.py`), so that `count` is estimated."""
        return self._estimate is None

    def sample(self, rng: np.random.Generator) -> Configuration:
        """Draws uniformly from all valid configurations."""
        return self.of_codes(self._diagram.draw(rng))

    def any(self) -> Configuration:
        """Returns the first valid configuration."""
        return self.of_codes(next(self._diagram.every()))

    def sample_many(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draws n configurations uniformly; returns codes (n, knobs)."""
        return self._diagram.sample(n, rng)

    def sample_towards(self, weight: Mapping[int, np.ndarray], n: int, rng: np.random.Generator) -> np.ndarray:
        """Draws configurations in proportion to the product of their values' weights (`tilted.py`); returns codes (n,
        knobs)."""
        return tilted(self._diagram, weight, n, rng)

    def sample_varied(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draws evenly over structures rather than over configurations (`tilted.py`); returns codes (n, knobs)."""
        return varied(self._diagram, n, rng)

    def sampled(self, n: int, rng: np.random.Generator, including: Iterable[Configuration] = ()) -> "Space":
        """Returns a space of at most n uniformly drawn valid configurations, plus the configurations in `including`.
        Searches that need all configurations as rows use it if the space has too many."""
        rows = [codes for c in including if (codes := self.codes_of(c.knobs)) is not None]
        codes = np.concatenate([np.array(rows, dtype=np.int16).reshape(-1, len(self.knobs)), self.sample_many(n, rng)])
        space = Space(self.knobs, self.rules, self.attributes, objective=self.objective, measured=codes)
        space.derived, space.measured, space._estimate = self.derived, False, self.count
        space.simulated = self.simulated
        space.capacities = self.capacities
        return space

    def configurations(self) -> Iterator[Configuration]:
        """Yields all valid configurations; if they are few enough to list, in the order of `feasible`."""
        if self.enumerable:
            yield from (self.of_codes(row) for row in self.feasible.codes.tolist())
        else:
            yield from (self.of_codes(codes) for codes in self._diagram.every())

    # ---- validity and its reasons ------------------------------------------------------------------------

    def is_valid(self, configuration: Configuration) -> bool:
        codes = self.codes_of(configuration.knobs)
        return codes is not None and self._diagram.walk(codes) is not None

    def violations(self, configuration: Configuration) -> list[Violation]:
        """Returns all reasons why an assignment is invalid, as sentences; empty for a valid configuration."""
        knobs = configuration.knobs
        env = self.environment(knobs)
        found = violations(knobs, self.knobs, self.rules, env, self.derived, self.measured)
        if not found and (self.measured or not self.count_is_exact) and not self.is_valid(configuration):
            return [absent(self.measured, self.count)]
        return found

    def environment(self, assigned: Mapping[str, Value]) -> dict[str, Any]:
        """Returns the values that expressions use for an assignment of active knobs."""
        return {**self.attributes, **self._off, **assigned}

    def nearest(
        self,
        wanted: Mapping[str, Value],
        firm: Mapping[str, Value] | None = None,
        given: Iterable[str] = (),
    ) -> Configuration | None:
        """Returns the valid configuration nearest to `wanted` whose active knobs agree with `firm`; None if there is
        none.

        The distance (`nearness.py`) compares structures first: |log₂| of the ratio for numbers, 1 for any other
        difference. Then it compares points, in steps of the domains. Distances of knobs in `given` count before all
        others."""
        codes = self._diagram.nearest(self._nearness.costs(self.knobs, wanted, firm or {}, set(given)))
        return None if codes is None else self.of_codes(codes)

    # ---- construction ------------------------------------------------------------------------------------

    def _compiled(self, measured: np.ndarray | None) -> Diagram:
        if measured is not None:
            diagram = from_rows(measured, self.knobs)
            if diagram is None:
                raise AutoscoutError("the table has no rows", 3)
            return diagram
        diagram, self._estimate = diagram_of(self.knobs, self._coupled, self._columns)
        if diagram is None:
            raise AutoscoutError(why_nothing_is_feasible(self.knobs, self._coupled, self._columns, self.derived), 3)
        return diagram


def _meanings(
    simulated: Mapping[str, Expression], attributes: Mapping[str, Any], knobs: Mapping[str, np.ndarray], n: int
) -> dict[str, np.ndarray]:
    """Returns the derived columns, (n,) each, for n rows of knobs. A value is NaN or "" if the expression needs an
    inactive knob without an `off` value."""
    if not simulated:
        return {}
    env = {**attributes, **{name: v.astype(object) if v.dtype.kind == "U" else v for name, v in knobs.items()}}
    return {name: _plain(*expression.on(env, n), n) for name, expression in simulated.items()}


def _plain(values: Any, undefined: np.ndarray, n: int) -> np.ndarray:
    """Converts objects to numbers or text, since simulators accept no objects."""
    found = np.broadcast_to(np.asarray(values), n)
    named = found.dtype.kind in "OU" and any(isinstance(v, str) for v in found[~undefined])
    found = found.astype(str if named else float)
    return np.where(undefined, "" if named else np.nan, found) if undefined.any() else found
