"""Evaluates constraints on columns of codes: rules, and conditions that make a knob active or imply its value."""

import ast
import copy
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from autoscout.space.codes import INACTIVE
from autoscout.space.knob import Knob, Rule
from autoscout.space.language.arrays import column, equal, truth
from autoscout.space.language.columns import Known, evaluate, part_text
from autoscout.space.language.expression import Expression
from autoscout.space.language.functions import FUNCTIONS
from kb.records import AutoscoutError, Value


class ConstraintPart(msgspec.Struct, frozen=True):
    """A subexpression over the knobs `names`. `tree` is None if the subexpression is a single knob."""

    text: str
    names: frozenset[str]
    tree: ast.expr | None = None

    def inside(self, assigned: set[str]) -> list["ConstraintPart"]:
        """Returns the largest parts of this subexpression that the `assigned` knobs determine."""
        return [] if self.tree is None else known_parts(self.tree, self.names, assigned)


class Constraint(msgspec.Struct, frozen=True, kw_only=True):
    """A constraint on the knobs `names`: a rule of the catalog, or the conditions of a knob."""

    names: tuple[str, ...]
    rule: Rule | None = None
    knob: Knob | None = None

    @property
    def text(self) -> str:
        if self.rule is not None:
            return f"{self.rule.id}: {self.rule.holds.text}"
        assert self.knob is not None
        acts = f"{self.knob.name} has an effect when {self.knob.when.text}" if self.knob.when else ""
        implied = f"{self.knob.name} = {self.knob.implied.text}" if self.knob.implied else ""
        return " and ".join(filter(None, (acts, implied)))

    @property
    def expressions(self) -> list[Expression]:
        if self.rule is not None:
            return [self.rule.holds]
        return [e for e in (self.knob.when, self.knob.implied) if e is not None] if self.knob is not None else []

    def knobs_read(self, assigned: set[str]) -> list[ConstraintPart]:
        """Returns the constraint's knobs that are in `assigned`, each as a subexpression."""
        return [ConstraintPart(name, frozenset([name])) for name in self.names if name in assigned]

    def read(self, assigned: set[str]) -> list[ConstraintPart]:
        """Returns the largest subexpressions of the constraint that the `assigned` knobs determine."""
        names = frozenset(self.names)
        parts = [part for e in self.expressions for part in known_parts(e.tree, names, assigned)]
        mine = self.knob.name if self.knob is not None else ""
        return [*parts, ConstraintPart(mine, frozenset([mine]))] if mine in assigned else parts


def rearranged(c: Constraint, place: Mapping[str, int], whole: Collection[str]) -> Constraint:
    """Returns the constraint with operands of integer sums and products reordered by the level at which their knobs are
    assigned (`place`), so that the determined operands always form a single subexpression. `whole`: names whose values
    are integers."""
    if c.rule is None:
        return c
    tree = _Rearranged(place, whole).visit(copy.deepcopy(c.rule.holds.tree))
    holds = copy.copy(c.rule.holds)
    holds.tree = tree
    return msgspec.structs.replace(c, rule=msgspec.structs.replace(c.rule, holds=holds))


class _Rearranged(ast.NodeTransformer):
    def __init__(self, place: Mapping[str, int], whole: Collection[str]) -> None:
        self.place = place
        self.whole = whole

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        if not isinstance(node.op, ast.Add | ast.Mult) or not self._is_whole(node):
            return ast.BinOp(self.visit(node.left), node.op, self.visit(node.right))
        first, *others = sorted(self._terms(node, type(node.op)), key=self._last)
        tree = self.visit(first)
        for other in others:
            tree = ast.BinOp(tree, node.op, self.visit(other))
        return tree

    def _terms(self, node: ast.expr, operation: type[ast.operator]) -> list[ast.expr]:
        if isinstance(node, ast.BinOp) and isinstance(node.op, operation):
            return [*self._terms(node.left, operation), *self._terms(node.right, operation)]
        return [node]

    def _last(self, node: ast.expr) -> int:
        """Returns the level of the node's last knob, from which on the node's value is determined."""
        return max((self.place.get(n.id, -1) for n in ast.walk(node) if isinstance(n, ast.Name)), default=-1)

    def _is_whole(self, node: ast.expr) -> bool:
        """Whether the node is an integer expression. (The order of summation affects the rounding of fractions.)"""
        return not any(
            isinstance(n, ast.Div)
            or (isinstance(n, ast.Name) and n.id not in self.whole)
            or (isinstance(n, ast.Constant) and not isinstance(n.value, int))
            for n in ast.walk(node)
            if not (isinstance(n, ast.Name) and n.id in FUNCTIONS)
        )


def known_parts(tree: ast.expr, names: frozenset[str], assigned: set[str]) -> list[ConstraintPart]:
    """Returns the largest subtrees whose knobs (`names`) are all `assigned`."""
    read = names_in(tree) & names
    if not read & assigned:
        return []
    if isinstance(tree, ast.Name):
        return [ConstraintPart(tree.id, read)]
    if read <= assigned and not isinstance(tree, ast.Tuple | ast.List | ast.Call):
        return [ConstraintPart(part_text(tree), read, tree)]
    return [part for child in _operands(tree) for part in known_parts(child, names, assigned)]


# Compilation looks up the same trees at each level. Trees do not change during compilation, so they can be hashed by
# identity.


@lru_cache(maxsize=50_000)
def names_in(tree: ast.expr) -> frozenset[str]:
    own = {tree.id} if isinstance(tree, ast.Name) else set()
    return frozenset(own.union(*map(names_in, _operands(tree))))


@lru_cache(maxsize=50_000)
def _operands(tree: ast.expr) -> tuple[ast.expr, ...]:
    return tuple(child for child in ast.iter_child_nodes(tree) if isinstance(child, ast.expr))


def constraints(knobs: list[Knob], rules: list[Rule]) -> list[Constraint]:
    names = {knob.name for knob in knobs}
    found = []
    for knob in knobs:
        read = {n for e in (knob.when, knob.implied) if e is not None for n in e.names} & names
        found.append(Constraint(names=(*sorted(read), knob.name), knob=knob))
    for rule in rules:
        found.append(Constraint(names=tuple(n for n in rule.holds.names if n in names), rule=rule))
    return found


class Columns:
    """Converts codes to the values that expressions use."""

    def __init__(self, knobs: list[Knob], attributes: Mapping[str, Any]) -> None:
        self.attributes = attributes
        self._knobs = {knob.name: knob for knob in knobs}
        self._values = {knob.name: column([*knob.values, knob.off]) for knob in knobs}  # code −1 selects the last entry

    @property
    def whole(self) -> set[str]:
        """Returns the names whose values are always integers."""
        knobs = {name for name, column in self._values.items() if column.dtype.kind in "bi"}
        return knobs | {name for name, value in self.attributes.items() if isinstance(value, int)}

    def test(
        self, constraint: Constraint, codes: Mapping[str, np.ndarray], n: int, known: Mapping[str, Known]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Evaluates the constraint for n rows, given columns of the knobs' codes or `known` values of subexpressions.
        Returns (whether the constraint is satisfied, whether it is undefined), each of shape (n,)."""
        env = self._environment(codes)
        if constraint.rule is not None:
            value, undefined = constraint.rule.holds.on(env, n, known)
            return np.broadcast_to(truth(value), n), undefined
        knob = constraint.knob
        assert knob is not None
        mine = codes[knob.name]
        active, undefined = np.True_, np.zeros(n, dtype=bool)
        if knob.when is not None:
            value, undefined = knob.when.on(env, n, known)
            active = truth(value)
        holds = (mine >= 0) == active
        if knob.implied is not None:
            acting = np.flatnonzero(holds & (mine >= 0))
            here = {name: v[acting] if isinstance(v, np.ndarray) else v for name, v in env.items()}
            parts = {text: part.at(acting) for text, part in known.items()}
            value, wrong = knob.implied.on(here, len(acting), parts)
            holds[acting] = equal(here[knob.name], value)
            undefined[acting] |= wrong
        return holds, undefined

    def part(self, part: ConstraintPart, codes: Mapping[str, np.ndarray], n: int, known: Mapping[str, Known]) -> Known:
        """Evaluates a subexpression for n rows, given the same columns as `test`."""
        assert part.tree is not None
        value, undefined = evaluate(part.tree, self._environment(codes), n, known)
        return Known(value if isinstance(value, np.ndarray) else np.full(n, value), undefined)

    def _environment(self, codes: Mapping[str, np.ndarray]) -> dict[str, Any]:
        return {**self.attributes, **{name: self._values[name][column] for name, column in codes.items()}}

    def values(self, constraint: Constraint, codes: Mapping[str, int]) -> dict[str, Value | None]:
        """Returns the values of the names in the constraint's expressions, for an error message."""
        read = [n for e in constraint.expressions for n in e.names]
        shown: dict[str, Any] = {n: self.attributes[n] for n in read if n in self.attributes}
        for name in constraint.names:
            code = codes.get(name, INACTIVE)
            shown[name] = self._knobs[name].off if code == INACTIVE else self._knobs[name].values[code]
        return shown


def undefined_error(constraint: Constraint, values: Mapping[str, Any]) -> AutoscoutError:
    """Returns the error for an expression that is undefined for an assignment which all other constraints allow."""
    shown = ", ".join(f"{name} = {'(inactive)' if v is None else repr(v)}" for name, v in values.items())
    return AutoscoutError(
        f"{constraint.text}: cannot be evaluated at {shown} (a division by zero, or arithmetic on an inactive "
        "knob); exclude that case first, for example 'tp == 1 or x % (tp - 1) == 0'",
        2,
    )
