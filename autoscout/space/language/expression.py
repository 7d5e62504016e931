"""The expression language of catalogs: arithmetic, comparisons, and/or/not, membership, min/max, conditional
expressions.

An expression is parsed once, into a Python function for single configurations and a tree that `columns.py` evaluates on
arrays. Expressions in files of unknown origin are safe: attributes, subscripts, powers and calls (except `min`, `max`
and `divisors`) are not allowed, arithmetic accepts only numbers, and the size is limited to `_LARGEST` nodes after
expansion of derived names."""

import ast
import copy
import math
from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from autoscout.space.language import columns
from autoscout.space.language.functions import FUNCTIONS
from kb.records import AutoscoutError

_MEMBERSHIP = (ast.In, ast.NotIn)
_LONGEST = 1000  # maximum length of an expression in characters
_LARGEST = 5000  # maximum number of nodes after expansion of derived names
_DEEPEST = 60  # maximum nesting depth
_MOST = 2**63  # largest allowed constant
_KEPT = 1024  # cache size: number of parsed expressions

_ALLOWED = (
    *(ast.Expression, ast.Name, ast.Load, ast.Constant, ast.Tuple, ast.List, ast.Call, ast.IfExp),
    *(ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub),
    *(ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod),
    *(ast.Compare, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn),
)


def _number(value: Any) -> Any:
    """Returns the operand. Rejects operands that are not numbers, because Python would multiply or format strings."""
    if isinstance(value, bool | int | float):
        return value
    raise TypeError(f"{value!r} is not a number")


def _several(value: Any) -> Any:
    """Returns the right operand of `in`. Rejects a string, because Python would search for a substring."""
    if isinstance(value, tuple | list):
        return value
    raise TypeError(f"{value!r} is not a list")


_GUARDS: dict[str, Callable[..., Any]] = {"_number": _number, "_several": _several}


class Expression:
    """A parsed expression. `expression(env)` evaluates it for a mapping from name to value, `expression.on(env, n)` for
    columns of n rows. `names`: the names that it uses."""

    def __init__(self, text: str, derived: Mapping[str, str] | None = None) -> None:
        """`derived`: name → expression that replaces the name wherever it is used."""
        self.text = text
        self._parsed = _parsed(text, tuple((derived or {}).items()))
        self.tree, self.names = self._parsed.tree, self._parsed.names

    def __call__(self, env: Mapping[str, Any]) -> Any:
        """Evaluates the expression. Errors: AutoscoutError for a division by zero, and for arithmetic on a text, a
        list, or an inactive knob without an `off` value."""
        try:
            return self._parsed.function(*[env[name] for name in self.names])
        except (ArithmeticError, TypeError, ValueError) as error:
            known = ", ".join(f"{name} = {env[name]!r}" for name in self.names)
            raise AutoscoutError(f"the rule '{self.text}' cannot be evaluated at {known}: {error}", 2) from error

    def on(
        self, env: Mapping[str, Any], n: int, known: Mapping[str, columns.Known] | None = None
    ) -> tuple[Any, np.ndarray]:
        """Evaluates the expression for n rows. Returns (values, undefined): `undefined`, (n,), marks rows without a
        value. `env`: a value or an (n,) column for every name (None or NaN for an inactive knob without an `off`
        value). `known`: precomputed subexpressions."""
        return columns.evaluate(self.tree, env, n, known)

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"


class _Parsed:
    """The parsed form, shared by all expressions with the same text."""

    def __init__(self, text: str, derived: tuple[tuple[str, str], ...]) -> None:
        self.text = text
        self.tree = _Expand(text, dict(derived)).visit(_parse(text)).body
        self.names = tuple(sorted({n.id for n in ast.walk(self.tree) if isinstance(n, ast.Name)} - set(FUNCTIONS)))
        _check_kinds(text, self.tree)

    @cached_property
    def function(self) -> Callable[..., Any]:
        parameters = ast.arguments([], [ast.arg(n) for n in self.names], None, [], [], None, [])
        function = ast.Expression(ast.Lambda(parameters, _Guard().visit(copy.deepcopy(self.tree))))
        code = compile(ast.fix_missing_locations(function), f"<{self.text}>", "eval")
        return eval(code, {"__builtins__": {}, **FUNCTIONS, **_GUARDS})


# The cache matters because catalogs are read for every job, and conditions are evaluated many times while a launch line
# is parsed.
_parsed = lru_cache(_KEPT)(_Parsed)


def _parse(text: str) -> ast.Expression:
    if len(text) > _LONGEST:
        raise AutoscoutError(f"an expression of {len(text)} characters is longer than {_LONGEST}", 2)
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, RecursionError, MemoryError, ValueError) as error:
        raise AutoscoutError(f"'{text}' is not an expression: {error}", 2) from error
    _check_depth(text, tree)
    for node in ast.walk(tree):
        if not isinstance(node, _ALLOWED):
            raise AutoscoutError(f"'{text}' uses {type(node).__name__}, which expressions may not use", 2)
        if isinstance(node, ast.Call) and not (
            isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS and node.args and not node.keywords
        ):
            only = f"may call only {', '.join(FUNCTIONS)}, and with at least one argument"
            raise AutoscoutError(f"'{text}' {only}", 2)
        if isinstance(node, ast.Constant) and not _allowed_constant(node.value):
            allowed = "constants must be texts, or numbers below 2**63"
            raise AutoscoutError(f"'{text}' has the constant {node.value!r}; {allowed}", 2)
    return tree


def _allowed_constant(value: Any) -> bool:
    if isinstance(value, int | float):
        return math.isfinite(value) and abs(value) < _MOST
    return isinstance(value, str)


def _check_depth(text: str, tree: ast.AST) -> None:
    """Limits the nesting depth. Works level by level, because recursion could overflow."""
    level, depth = [tree], 0
    while level:
        depth += 1
        if depth > _DEEPEST:
            raise AutoscoutError(f"'{text[:60]}…' is nested more than {_DEEPEST} deep", 2)
        level = [child for node in level for child in ast.iter_child_nodes(node)]


class _Guard(ast.NodeTransformer):
    """Inserts checks that operands of arithmetic are numbers and right operands of `in` are lists."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        return ast.BinOp(self._number(node.left), node.op, self._number(node.right))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        operand = self._number(node.operand) if isinstance(node.op, ast.USub) else self.visit(node.operand)
        return ast.UnaryOp(node.op, operand)

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        rights: list[ast.expr] = [
            _call("_several", right)
            if isinstance(op, _MEMBERSHIP) and isinstance(right, ast.Name)
            else self.visit(right)
            for op, right in zip(node.ops, node.comparators, strict=True)
        ]
        return ast.Compare(self.visit(node.left), node.ops, rights)

    def _number(self, node: ast.expr) -> ast.expr:
        inner = self.visit(node)
        return _call("_number", inner) if isinstance(node, ast.Name | ast.IfExp | ast.BoolOp | ast.Call) else inner


def _call(function: str, argument: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(function, ast.Load()), [argument], [])


def _check_kinds(text: str, tree: ast.expr) -> None:
    """Rejects strings and lists in arithmetic. Allows lists only after `in`, as the only argument of min and max, and
    as the result of the whole expression (a domain)."""
    placed = set(_yielded(tree))
    nodes = list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.Compare):
            for op, right in zip(node.ops, node.comparators, strict=True):
                if isinstance(op, _MEMBERSHIP):
                    placed.add(id(right))
                    if not (isinstance(right, ast.Name | ast.Tuple | ast.List) or _calls_divisors(right)):
                        raise AutoscoutError(
                            f"'{text}' tests membership in {ast.unparse(right)}, which is not a list; write a "
                            "list as (a, b)",
                            2,
                        )
        elif isinstance(node, ast.Call) and len(node.args) == 1:
            placed.add(id(node.args[0]))
        for operand in _operands(node):
            if isinstance(operand, ast.Tuple | ast.List) or (
                isinstance(operand, ast.Constant) and isinstance(operand.value, str)
            ):
                raise AutoscoutError(f"'{text}' calculates with {ast.unparse(operand)}, which is not a number", 2)
    if any(isinstance(node, ast.Tuple | ast.List) and id(node) not in placed for node in nodes):
        raise AutoscoutError(
            f"'{text}' contains a list; lists are allowed only after 'in', as the only argument of a function, or "
            "as the whole expression",
            2,
        )


def _operands(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    return [node.operand] if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) else []


def _calls_divisors(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "divisors"


def _yielded(node: ast.AST) -> list[int]:
    """Returns the ids of the nodes that can be the result of the whole expression. Only these may be lists
    (domains)."""
    if isinstance(node, ast.IfExp):
        return [*_yielded(node.body), *_yielded(node.orelse)]
    return [id(node)]


class _Expand(ast.NodeTransformer):
    """Replaces derived names by their definitions, which may use other derived names. Cycles are errors."""

    def __init__(self, text: str, derived: Mapping[str, str]) -> None:
        self.text = text
        self.derived = derived
        self.above: tuple[str, ...] = ()
        self.room = _LARGEST

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id not in self.derived:
            return node
        if node.id in self.above:
            raise AutoscoutError(f"the definition of the derived name '{node.id}' uses '{node.id}' itself", 2)
        inner = _parse(self.derived[node.id])
        self.room -= sum(1 for _ in ast.walk(inner))
        if self.room < 0 or len(self.above) > _DEEPEST:
            raise AutoscoutError(f"'{self.text}' is too long after its derived names are expanded", 2)
        self.above = (*self.above, node.id)
        body = self.visit(inner).body
        self.above = self.above[:-1]
        return body
