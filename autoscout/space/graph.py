"""The conditional space: which knobs act, which values they may take, what is valid, and why not.

Notation (paper §3.2): a *structure* s assigns the sparse knobs, x the dense ones. `mask(s)` is M(s): the
dense knobs that s activates with the values that are valid under s, i.e. the feasible subspace X(s).

All valid structures are enumerated once into a table of codes (one row a structure, one column a sparse
knob, −1 = inactive), by depth-first assignment in the order of the dependency graph with every rule checked
as soon as its last knob is known. A structure is in the table only if X(s) is not empty, so a partial
assignment is feasible exactly if some row agrees with it: values can be masked, never tried and rejected.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from autoscout.space.feasible import Feasible
from autoscout.space.knob import Knob, Rule, instantiate, table_knob
from autoscout.space.network import distance, key, limited, network, ordered
from autoscout.space.rules import Expression
from autoscout.words import listed, nearest_name
from kb.records import AutoscoutError, Configuration, Objective, SpaceLimits, Value

INACTIVE = -1

Structure = dict[str, Value]  # active sparse knobs
Point = dict[str, Value]  # dense knobs


class Violation(msgspec.Struct, frozen=True):
    rule: str
    sentence: str
    source: str


class Space:
    def __init__(
        self,
        knobs: list[Knob],
        rules: list[Rule],
        attributes: Mapping[str, Any],
        limits: SpaceLimits | None = None,
        objective: Objective | None = None,
        derived: Mapping[str, str] | None = None,
        measured: list[dict[str, Value]] | None = None,
    ) -> None:
        """`measured`: valid are exactly these assignments of active knobs, instead of all that the rules allow.
        Errors: AutoscoutError for a cycle, an unknown name, a limit outside a domain (exit 2), or when nothing is
        feasible (exit 3)."""
        self.attributes = dict(attributes)
        self._derived = {name: Expression(text, derived) for name, text in (derived or {}).items()}
        self.objective = objective or Objective(minimize="step_time_s")
        limits = limits or SpaceLimits()
        self.knobs = ordered([limited(knob, limits) for knob in knobs], limits)
        self.knob = {knob.name: knob for knob in self.knobs}
        self.rules = rules
        self.sparse = [knob for knob in self.knobs if knob.kind == "sparse"]
        self.dense = [knob for knob in self.knobs if knob.kind == "dense"]
        self._check_names()
        self.graph = network(self.knobs, rules)
        self._off = {knob.name: knob.off for knob in self.knobs}
        self._code = {knob.name: {key(v): i for i, v in enumerate(knob.values)} for knob in self.knobs}
        self._sparse_rules, self._dense_rules, self._joint_rules = self._due_rules()
        self._mask_reads = self._names_behind_masks()
        self._masks: dict[tuple[Any, ...], dict[str, tuple[Value, ...]]] = {}
        self._listed = None if measured is None else self._grouped(measured)
        self.structures: np.ndarray = self._enumerate() if self._listed is None else self._index(self._listed)
        if len(self.structures) == 0:
            raise AutoscoutError(self._why_nothing_is_feasible(), 3)

    @staticmethod
    def load(path: str | Path) -> "Space":
        """The space of a job file."""
        from autoscout.job import load_job

        return Space.of_job(load_job(path))

    @staticmethod
    def of_job(job: Any) -> "Space":
        from autoscout.space.attributes import attributes_of, device_knobs, device_rules
        from autoscout.space.declared import catalog_of

        attributes = attributes_of(job)
        derived, knobs_of_devices = device_knobs(job)
        catalog = catalog_of(job)
        catalog = msgspec.structs.replace(
            catalog,
            knob=[*knobs_of_devices, *catalog.knob],
            rule=[*device_rules(job), *catalog.rule],
            derived={**catalog.derived, **derived},
        )
        knobs, rules = instantiate(catalog, attributes)
        return Space(knobs, rules, attributes, job.space, job.objective, catalog.derived)

    @staticmethod
    def from_table(
        rows: list[dict[str, Value]], sparse: Iterable[str], dense: Iterable[str], objective: Objective | None = None
    ) -> "Space":
        """Any table of measured rows is a space: the domains are the values that occur, ordered, and the rows are the
        valid configurations. A knob that a row lacks is inactive there."""
        kinds = {**dict.fromkeys(sparse, "sparse"), **dict.fromkeys(dense, "dense")}
        return Space(
            [table_knob(name, kind, rows) for name, kind in kinds.items()],
            [],
            {},
            objective=objective,
            measured=[{n: row[n] for n in kinds if n in row} for row in rows],
        )

    # ---- M(s), projection, configurations ----------------------------------------------------------------

    def mask(self, s: Structure) -> dict[str, tuple[Value, ...]]:
        """M(s): the active dense knobs with their valid values, in the order of the domains."""
        if self._listed is not None:
            return self._listed_mask(s)
        env = self._environment(s)
        key = tuple(env[name] for name in self._mask_reads)
        if key not in self._masks:
            self._masks[key] = self._compute_mask(env)
        return self._masks[key]

    def project(self, s: Structure, x: Mapping[str, Value]) -> Point:
        """The point of X(s) nearest to x, coordinate by coordinate in steps of the domain; x may lack knobs."""
        mask = self.mask(s)
        by_distance = {
            name: sorted(values, key=lambda v, n=name: abs(self._step(n, v) - self._step(n, x.get(n, values[0]))))
            for name, values in mask.items()
        }
        first = {name: values[0] for name, values in by_distance.items()}
        if self._joint_ok(s, first):
            return first
        return min(
            self.points(s),
            key=lambda p: sum(abs(self._step(n, p[n]) - self._step(n, x.get(n, p[n]))) for n in p),
        )

    def points(self, s: Structure) -> Iterator[Point]:
        """All of X(s)."""
        if self._listed is not None:
            yield from self._listed[self._key(s)]
            return
        mask = self.mask(s)
        for values in itertools.product(*mask.values()):
            point = dict(zip(mask, values, strict=True))
            if self._joint_ok(s, point):
                yield point

    def configuration(self, s: Structure, x: Mapping[str, Value]) -> Configuration:
        """(s, x projected onto X(s)) as a configuration: active knobs only, in the space's order."""
        both = {**s, **self.project(s, x)}
        return Configuration({knob.name: both[knob.name] for knob in self.knobs if knob.name in both})

    def split(self, configuration: Configuration) -> tuple[Structure, Point]:
        s = {n: v for n, v in configuration.knobs.items() if self.knob[n].kind == "sparse"}
        x = {n: v for n, v in configuration.knobs.items() if self.knob[n].kind == "dense"}
        return s, x

    def structure(self, row: int) -> Structure:
        codes = self.structures[row]
        return {k.name: k.values[c] for k, c in zip(self.sparse, codes, strict=True) if c != INACTIVE}

    def row(self, s: Structure) -> int | None:
        """The table's row of a structure; None if it is not valid."""
        return self._rows.get(self._key(s))

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

    # ---- counting, sampling, neighbours -----------------------------------------------------------------

    @cached_property
    def sizes(self) -> np.ndarray:
        """|X(s)| of every structure."""
        if self._joint_rules or self._listed is not None:
            return np.array([sum(1 for _ in self.points(self.structure(i))) for i in range(len(self.structures))])
        sizes = [
            int(np.prod([len(v) for v in self.mask(self.structure(i)).values()] or [1]))
            for i in range(len(self.structures))
        ]
        return np.array(sizes)

    @property
    def count(self) -> int:
        return int(self.sizes.sum())

    def sample(self, rng: np.random.Generator) -> Configuration:
        """Uniform over all valid configurations."""
        s = self.structure(int(rng.choice(len(self.structures), p=self.sizes / self.sizes.sum())))
        points = list(self.points(s))
        return self.configuration(s, points[int(rng.integers(len(points)))])

    @cached_property
    def feasible(self) -> "Feasible":
        """Every valid configuration as a row of codes."""
        return Feasible(self)

    def configurations(self) -> Iterator[Configuration]:
        for i in range(len(self.structures)):
            s = self.structure(i)
            for x in self.points(s):
                yield self.configuration(s, x)

    # ---- validity and its reasons -----------------------------------------------------------------------

    def violations(self, configuration: Configuration) -> list[Violation]:
        """Everything that is wrong with an assignment, in words; empty for a valid configuration."""
        found = []
        env = self._environment(configuration.knobs)
        for knob in self.knobs:
            value = configuration.knobs.get(knob.name)
            active = knob.when is None or bool(knob.when(env))
            if value is None and active:
                found.append(Violation("missing", f"{knob.name} has no value", ""))
            elif value is not None and not active:
                found.append(Violation("inactive", knob.why_inactive, ""))
            elif value is not None and key(value) not in self._code[knob.name]:
                found.append(Violation("domain", f"{knob.name} {value} is not among {listed(knob.values)}", ""))
        if any(v.rule == "missing" for v in found):
            return found
        if self._listed is not None and not found and not self.is_valid(configuration):
            return [Violation("table", "no row of the table has this combination", "")]
        shown = _Shown(env, self._derived)
        broken = [rule for rule in self.rules if not rule.holds(env)]
        return found + [Violation(rule.id, rule.sentence(shown), rule.source) for rule in broken]

    def is_valid(self, configuration: Configuration) -> bool:
        if not configuration.knobs.keys() <= self.knob.keys():
            return False
        s, x = self.split(configuration)
        if self.row(s) is None:
            return False
        mask = self.mask(s)
        return mask.keys() == x.keys() and all(x[n] in mask[n] for n in x) and self._joint_ok(s, x)

    def nearest(self, wanted: Mapping[str, Value], firm: Mapping[str, Value] | None = None) -> Configuration | None:
        """The valid configuration nearest to `wanted` among those that agree with `firm` where its knobs are
        active. Distance: steps of the domain in log₂ for numbers, 1 for another choice or (in)activity."""
        firm = firm or {}
        total = np.zeros(len(self.structures))
        allowed = np.ones(len(self.structures), dtype=bool)
        for column, knob in enumerate(self.sparse):
            codes = self.structures[:, column]
            if knob.name in wanted:
                table = [distance(wanted[knob.name], v) for v in knob.values]
                inactive = 0.0 if wanted[knob.name] == knob.off else 1.0
                total += np.array([*table, inactive])[codes]  # the last entry answers code −1
            if knob.name in firm:
                code = self._code[knob.name].get(key(firm[knob.name]), -2)
                allowed &= (codes == code) | ((codes == INACTIVE) & (firm[knob.name] == knob.off))
        for row in np.argsort(np.where(allowed, total, np.inf), kind="stable"):
            if not allowed[row]:
                return None
            s = self.structure(int(row))
            mask = self.mask(s)
            firm_dense = {n: v for n, v in firm.items() if self.knob[n].kind == "dense"}
            if all(n in mask and v in mask[n] for n, v in firm_dense.items()):
                return self.configuration(s, {**wanted, **firm_dense})
        return None

    # ---- construction -----------------------------------------------------------------------------------

    def _environment(self, assigned: Mapping[str, Value]) -> dict[str, Any]:
        return {**self.attributes, **self._off, **assigned}

    def _step(self, name: str, value: Value) -> int:
        values = self.knob[name].values
        code = self._code[name].get(key(value))
        if code is not None:
            return code
        return min(range(len(values)), key=lambda i: distance(value, values[i]))

    def _compute_mask(self, env: dict[str, Any]) -> dict[str, tuple[Value, ...]]:
        """No value at all stands for an inactive knob whose `off` value breaks a rule: X(s) is empty then."""
        mask = {}
        for knob in self.dense:
            active = knob.when is None or bool(knob.when(env))
            candidates = knob.values if active else (knob.off,)
            rules = self._dense_rules[knob.name]
            valid = tuple(v for v in candidates if all(r.holds({**env, knob.name: v}) for r in rules))
            if active or not valid:
                mask[knob.name] = valid
        return mask

    def _joint_ok(self, s: Structure, x: Mapping[str, Value]) -> bool:
        if self._listed is not None:
            return dict(x) in self._listed.get(self._key(s), [])
        env = self._environment({**s, **x})
        return all(rule.holds(env) for rule in self._joint_rules)

    def _key(self, assigned: Mapping[str, Value]) -> tuple[int, ...]:
        """The codes of the sparse knobs."""
        return tuple(
            self._code[k.name].get(key(assigned[k.name]), -2) if k.name in assigned else INACTIVE for k in self.sparse
        )

    def _grouped(self, measured: list[dict[str, Value]]) -> dict[tuple[int, ...], list[Point]]:
        """X(s) by structure, of the rows within the limits; a combination that occurs twice is one."""
        groups: dict[tuple[int, ...], dict[tuple[Any, ...], Point]] = {}
        for row in measured:
            if all(key(value) in self._code[name] for name, value in row.items()):
                point = {k.name: row[k.name] for k in self.dense if k.name in row}
                groups.setdefault(self._key(row), {})[tuple(point.items())] = point
        return {structure: list(points.values()) for structure, points in sorted(groups.items())}

    def _index(self, groups: Mapping[tuple[int, ...], Any]) -> np.ndarray:
        self._rows = {row: i for i, row in enumerate(groups)}
        return np.array(list(groups), dtype=np.int16).reshape(len(groups), len(self.sparse))

    def _listed_mask(self, s: Structure) -> dict[str, tuple[Value, ...]]:
        points = (self._listed or {}).get(self._key(s), [])
        return {
            knob.name: tuple(v for v in knob.values if v in {p[knob.name] for p in points if knob.name in p})
            for knob in self.dense
            if any(knob.name in p for p in points)
        }

    def _due_rules(self) -> tuple[list[list[Rule]], dict[str, list[Rule]], list[Rule]]:
        """Rules by when they can be checked: after the i-th sparse knob, on one dense knob, on several."""
        position = {knob.name: i for i, knob in enumerate(self.sparse)}
        dense_names = {knob.name for knob in self.dense}
        sparse: list[list[Rule]] = [[] for _ in self.sparse]
        dense: dict[str, list[Rule]] = {name: [] for name in dense_names}
        joint: list[Rule] = []
        for rule in self.rules:
            on_dense = [n for n in rule.holds.names if n in dense_names]
            on_sparse = [position[n] for n in rule.holds.names if n in position]
            if len(on_dense) > 1:
                joint.append(rule)
            elif on_dense:
                dense[on_dense[0]].append(rule)
            else:
                sparse[max(on_sparse, default=0)].append(rule)
        return sparse, dense, joint

    def _names_behind_masks(self) -> list[str]:
        read: set[str] = set()
        for knob in self.dense:
            read |= set(knob.when.names) if knob.when else set()
            for rule in self._dense_rules[knob.name]:
                read |= set(rule.holds.names)
        return sorted(name for name in read if name in self.knob and self.knob[name].kind == "sparse")

    def _enumerate(self) -> np.ndarray:
        rows: list[tuple[int, ...]] = []
        env = self._environment({})
        codes = [INACTIVE] * len(self.sparse)

        def assign(i: int) -> None:
            if i == len(self.sparse):
                if self._has_point({k.name: env[k.name] for k, c in zip(self.sparse, codes, strict=True) if c >= 0}):
                    rows.append(tuple(codes))
                return
            knob, rules = self.sparse[i], self._sparse_rules[i]
            if knob.when is not None and not knob.when(env):
                candidates = [(INACTIVE, knob.off)]
            elif knob.implied is not None:
                value = knob.implied(env)
                code = self._code[knob.name].get(key(value))
                candidates = [] if code is None else [(code, value)]
            else:
                candidates = list(enumerate(knob.values))
            for code, value in candidates:
                codes[i], env[knob.name] = code, value
                if all(rule.holds(env) for rule in rules):
                    assign(i + 1)
            codes[i], env[knob.name] = INACTIVE, knob.off

        assign(0)
        table = np.array(rows, dtype=np.int16).reshape(len(rows), len(self.sparse))
        self._rows = {row: i for i, row in enumerate(rows)}
        return table

    def _has_point(self, s: Structure) -> bool:
        if not all(self.mask(s).values()):
            return False
        return not self._joint_rules or next(self.points(s), None) is not None

    def _check_names(self) -> None:
        known = {*self.knob, *self.attributes}
        for owner, expression in [
            *((k.name, e) for k in self.knobs for e in (k.when, k.implied) if e is not None),
            *((r.id, r.holds) for r in self.rules),
        ]:
            for name in expression.names:
                if name in self.knob and self.knob[name].kind == "dense" and owner in self.knob:
                    raise AutoscoutError(f"{owner} depends on '{name}', but only sparse knobs can activate others", 2)
                if name not in known:
                    raise AutoscoutError(
                        f"{owner}: '{expression.text}' speaks of '{name}'{nearest_name(name, known)}", 2
                    )

    def _why_nothing_is_feasible(self) -> str:
        """Names a smallest set of rules that conflict: rules are dropped as long as nothing becomes feasible."""
        guilty = list(self.rules)
        for rule in self.rules:
            fewer = [r for r in guilty if r is not rule]
            if not self._feasible_under(fewer):
                guilty = fewer
        because = "; ".join(f"{r.id}: {r.holds.text}" for r in guilty) or self._implied()
        return f"nothing is feasible for this job within its limits ({because}); relax [space] or change the cluster"

    def _implied(self) -> str:
        implied = [f"{k.name} = {k.implied.text}" for k in self.knobs if k.implied is not None]
        return f"what the other knobs imply is not possible: {', '.join(implied)}"

    def _feasible_under(self, rules: list[Rule]) -> bool:
        relaxed = object.__new__(Space)
        relaxed.__dict__.update(self.__dict__)
        relaxed.rules, relaxed._masks = rules, {}
        relaxed._sparse_rules, relaxed._dense_rules, relaxed._joint_rules = relaxed._due_rules()
        relaxed._mask_reads = relaxed._names_behind_masks()
        return len(relaxed._enumerate()) > 0


class _Shown(dict):
    """Fills a rule's sentence; an inactive knob without an `off` value reads as a dash."""

    def __init__(self, env: Mapping[str, Any], derived: Mapping[str, Expression]) -> None:
        super().__init__(env)
        self._derived = derived

    def __getitem__(self, key: str) -> Any:
        value = self._derived[key](self) if key in self._derived else super().__getitem__(key)
        return "–" if value is None else value
