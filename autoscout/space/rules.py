"""The small expression language of the catalogs: arithmetic, comparison, boolean, membership, min/max.

An expression is parsed once into a Python function of the names it mentions. Only the node types below are
let through, so an expression from a stranger's file can neither call nor reach anything: no attributes, no
subscripts, no powers, no calls but `min`, `max` and `divisors`.
"""

import ast
from collections.abc import Callable, Mapping
from typing import Any

from kb.records import AutoscoutError

_LONGEST = 1000

_ALLOWED = (
    ast.Expression,
    ast.BoolOp,
    ast.And,
    ast.Or,
    ast.UnaryOp,
    ast.Not,
    ast.USub,
    ast.BinOp,
    ast.Add,
    ast.Sub,
    ast.Mult,
    ast.Div,
    ast.FloorDiv,
    ast.Mod,
    ast.Compare,
    ast.Eq,
    ast.NotEq,
    ast.Lt,
    ast.LtE,
    ast.Gt,
    ast.GtE,
    ast.In,
    ast.NotIn,
    ast.IfExp,
    ast.Call,
    ast.Name,
    ast.Load,
    ast.Constant,
    ast.Tuple,
    ast.List,
)


def divisors(n: int) -> tuple[int, ...]:
    return tuple(d for d in range(1, n + 1) if n % d == 0)


_FUNCTIONS: dict[str, Callable[..., Any]] = {"min": min, "max": max, "divisors": divisors}


class Expression:
    """`expression(env)` evaluates on a mapping from name to value; `names` are the ones that it reads."""

    def __init__(self, text: str, derived: Mapping[str, str] | None = None) -> None:
        """`derived` maps names to expressions that stand for them (expanded here, once)."""
        self.text = text
        tree = _Expand(derived or {}).visit(_parse(text))
        self.names = tuple(sorted({n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} - set(_FUNCTIONS)))
        parameters = ast.arguments([], [ast.arg(n) for n in self.names], None, [], [], None, [])
        function = ast.Expression(ast.Lambda(parameters, tree.body))
        code = compile(ast.fix_missing_locations(function), f"<{text}>", "eval")
        self._function = eval(code, {"__builtins__": {}, **_FUNCTIONS})

    def __call__(self, env: Mapping[str, Any]) -> Any:
        try:
            return self._function(*[env[name] for name in self.names])
        except (ZeroDivisionError, TypeError) as error:
            known = ", ".join(f"{name} = {env[name]!r}" for name in self.names)
            raise AutoscoutError(f"the rule '{self.text}' cannot be evaluated at {known}: {error}", 2) from error

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"


def _parse(text: str) -> ast.Expression:
    if len(text) > _LONGEST:
        raise AutoscoutError(f"an expression of {len(text)} characters is longer than {_LONGEST}", 2)
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, RecursionError) as error:
        raise AutoscoutError(f"'{text}' is not an expression: {error}", 2) from error
    for node in ast.walk(tree):
        if not isinstance(node, _ALLOWED):
            raise AutoscoutError(f"'{text}' uses {type(node).__name__}, which expressions may not", 2)
        if isinstance(node, ast.Call) and not (
            isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS and not node.keywords
        ):
            raise AutoscoutError(f"'{text}' calls something other than {', '.join(_FUNCTIONS)}", 2)
        if isinstance(node, ast.Constant) and not isinstance(node.value, bool | int | float | str):
            raise AutoscoutError(f"'{text}' holds a constant that expressions may not: {node.value!r}", 2)
    return tree


class _Expand(ast.NodeTransformer):
    """Replaces derived names by their definitions (which may use other derived names, but not in a circle)."""

    def __init__(self, derived: Mapping[str, str], above: tuple[str, ...] = ()) -> None:
        self.derived = derived
        self.above = above

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id not in self.derived:
            return node
        if node.id in self.above:
            raise AutoscoutError(f"derived name '{node.id}' is defined through itself", 2)
        inner = _Expand(self.derived, (*self.above, node.id))
        return inner.visit(_parse(self.derived[node.id])).body
