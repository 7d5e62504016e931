"""Evaluates expressions for many rows at once, on columns of values.

The semantics of each row are exactly Python's. In particular, the right side of `and` and `or` and the branches of a
conditional are evaluated only for the rows that need them, so that `tp == 1 or x % (tp - 1) == 0` never divides by
zero. Rows for which Python would raise an exception are marked as undefined. An inactive knob without an `off` value is
NaN in a column of numbers and None in a column of objects; arithmetic with it is undefined."""

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from autoscout.space.language.arrays import (
    at,
    column,
    equal,
    is_float,
    is_object,
    merged,
    negated,
    objects,
    too_wide,
    truth,
)
from autoscout.space.language.functions import FUNCTIONS

_ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_ORDER: dict[type, Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


class Known(NamedTuple):
    """Precomputed values of a subexpression, and the rows where it is undefined."""

    values: np.ndarray
    undefined: np.ndarray

    def at(self, rows: np.ndarray) -> "Known":
        return Known(self.values[rows], self.undefined[rows])

    def numbered(self) -> tuple[np.ndarray, "Known"]:
        """Returns (index of each row's value, the distinct values). True and 1 are equal, as in expressions."""
        if self.values.dtype == object or self.values.dtype.kind == "f":
            place: dict[Any, int] = {}
            keys = [None if v != v else v for v in self.values.tolist()]
            numbers = np.fromiter(
                (place.setdefault((k, u), len(place)) for k, u in zip(keys, self.undefined.tolist(), strict=True)),
                dtype=np.int32,
                count=len(keys),
            )
            first = np.unique(numbers, return_index=True)[1]
        else:
            pairs = self.values.astype(np.int64) * 2 + self.undefined
            first, numbers = np.unique(pairs, return_index=True, return_inverse=True)[1:]
        return numbers.reshape(-1).astype(np.int32), self.at(first)


def part_text(tree: ast.expr) -> str:
    """Returns the normalized text of a subexpression, which identifies it in all expressions."""
    text = getattr(tree, "_text", None)
    if text is None:
        text = ast.unparse(tree)
        tree._text = text  # type: ignore[attr-defined]
    return text


def evaluate(
    tree: ast.expr, env: Mapping[str, Any], n: int, known: Mapping[str, Known] | None = None
) -> tuple[Any, np.ndarray]:
    """Evaluates a tree for n rows. Returns (values, undefined), each an (n,) array or a scalar for all rows.
    Subexpressions in `known` (`part_text` → values) are not recomputed."""
    run = _Run(env, n, known or {})
    return run.value(tree, np.arange(n)), run.undefined


class _Run:
    """One evaluation of a tree. In its methods, `rows` has the indices of the rows for which a node is evaluated."""

    def __init__(self, env: Mapping[str, Any], n: int, known: Mapping[str, Known]) -> None:
        self.env = env
        self.known = known
        self.n = n
        self.undefined = np.zeros(n, dtype=bool)

    def value(self, node: ast.expr, rows: np.ndarray) -> Any:
        if self.known and part_text(node) in self.known:
            known = self.known[part_text(node)].at(rows)
            self.undefined[rows] |= known.undefined
            return known.values
        return getattr(self, type(node).__name__)(node, rows)

    def Constant(self, node: ast.Constant, rows: np.ndarray) -> Any:
        return node.value

    def Name(self, node: ast.Name, rows: np.ndarray) -> Any:
        value = self.env[node.id]
        if isinstance(value, np.ndarray):
            return value if len(rows) == self.n else value[rows]
        return value

    def List(self, node: ast.List | ast.Tuple, rows: np.ndarray) -> Any:
        return [self.value(element, rows) for element in node.elts]

    Tuple = List

    def BinOp(self, node: ast.BinOp, rows: np.ndarray) -> Any:
        operation = _ARITHMETIC[type(node.op)]
        a, b = self._number(self.value(node.left, rows), rows), self._number(self.value(node.right, rows), rows)
        divides = isinstance(node.op, ast.Div | ast.FloorDiv | ast.Mod)
        if is_object(a) or is_object(b) or (not divides and too_wide(operation, a, b)):
            return self._each(operation, a, b, rows, calculating=True)
        if divides and not np.all(b):
            zero = np.broadcast_to(np.equal(b, 0), len(rows))
            self.undefined[rows[zero]] = True
            b = np.where(zero, 1, b)
        with np.errstate(all="ignore"):
            return operation(a, b)

    def UnaryOp(self, node: ast.UnaryOp, rows: np.ndarray) -> Any:
        value = self.value(node.operand, rows)
        if isinstance(node.op, ast.Not):
            return negated(truth(value))
        value = self._number(value, rows)
        return self._each(operator.mul, value, -1, rows, calculating=True) if is_object(value) else -value

    def BoolOp(self, node: ast.BoolOp, rows: np.ndarray) -> Any:
        stops = isinstance(node.op, ast.Or)  # `or` stops at the first true operand, `and` at the first false one
        result = self.value(node.values[0], rows)
        for operand in node.values[1:]:
            goes_on = truth(result) != stops
            if not isinstance(goes_on, np.ndarray):
                if not goes_on:
                    return result
                result = self.value(operand, rows)
            elif goes_on.any():
                places = np.flatnonzero(goes_on)
                result = merged(len(rows), [(slice(None), result), (places, self.value(operand, rows[places]))])
        return result

    def IfExp(self, node: ast.IfExp, rows: np.ndarray) -> Any:
        test = truth(self.value(node.test, rows))
        if not isinstance(test, np.ndarray):
            return self.value(node.body if test else node.orelse, rows)
        yes, no = np.flatnonzero(test), np.flatnonzero(~test)
        if not len(no) or not len(yes):
            return self.value(node.body if len(yes) else node.orelse, rows)
        return merged(len(rows), [(yes, self.value(node.body, rows[yes])), (no, self.value(node.orelse, rows[no]))])

    def Compare(self, node: ast.Compare, rows: np.ndarray) -> Any:
        left = self.value(node.left, rows)
        if len(node.ops) == 1:
            return self._compared(node.ops[0], left, node.comparators[0], rows)[0]
        holds: np.ndarray = np.ones(len(rows), dtype=bool)
        for op, comparator in zip(node.ops, node.comparators, strict=True):
            places = np.flatnonzero(holds)
            left = left[places] if isinstance(left, np.ndarray) else left
            holds[places], right = self._compared(op, left, comparator, rows[places])
            left = merged(len(rows), [(places, right)])
        return holds

    def Call(self, node: ast.Call, rows: np.ndarray) -> Any:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        values = [self.value(argument, rows) for argument in node.args]
        if name == "divisors" or len(values) == 1:
            return self._of_one(name, values[0], rows)
        return self._extreme(name, values, rows)

    def _of_one(self, name: str, value: Any, rows: np.ndarray) -> Any:
        """Evaluates min, max or divisors of a single argument."""
        if name != "divisors" and isinstance(value, list) and any(isinstance(v, np.ndarray) for v in value):
            return self._extreme(name, value, rows)
        function = FUNCTIONS[name]
        if isinstance(value, np.ndarray):
            return self._each(lambda a, _: function(a), value, 0, rows)
        try:
            return function(value)
        except (TypeError, ValueError):
            self.undefined[rows] = True
            return 0

    def _extreme(self, name: str, values: list[Any], rows: np.ndarray) -> Any:
        best = values[0]
        for value in values[1:]:
            better = self._ordered(operator.lt if name == "min" else operator.gt, value, best, rows)
            if isinstance(better, np.ndarray):
                best = merged(len(rows), [(~better, at(best, ~better)), (better, at(value, better))])
            elif better:
                best = value
        return best

    def _compared(self, op: ast.cmpop, left: Any, comparator: ast.expr, rows: np.ndarray) -> tuple[Any, Any]:
        """Evaluates `left op comparator`. Returns (result, value of the right operand, which is the left operand of the
        next comparison in a chain)."""
        if isinstance(op, ast.In | ast.NotIn):
            among = self._among(left, comparator, rows)
            return (among if isinstance(op, ast.In) else negated(among)), None
        right = self.value(comparator, rows)
        if isinstance(op, ast.Eq | ast.NotEq):
            same = equal(left, right)
            return (same if isinstance(op, ast.Eq) else negated(same)), right
        return self._ordered(_ORDER[type(op)], left, right, rows), right

    def _among(self, left: Any, comparator: ast.expr, rows: np.ndarray) -> Any:
        options = self.value(comparator, rows)
        # a column of objects: each row has its own list
        if isinstance(options, np.ndarray) and options.dtype == object:
            return truth(self._each(lambda a, b: a in b, left, options, rows))
        if not isinstance(options, tuple | list):
            self.undefined[rows] = True
            return False
        among: Any = False
        for option in options:
            among = equal(left, option) | among
        return among

    def _ordered(self, compare: Callable[[Any, Any], Any], a: Any, b: Any, rows: np.ndarray) -> Any:
        if isinstance(a, np.ndarray | bool | int | float) and isinstance(b, np.ndarray | bool | int | float):
            if is_object(a) or is_object(b):
                return truth(self._each(compare, a, b, rows))
            for x in (a, b):
                if is_float(x):
                    self.undefined[rows[np.isnan(x)]] = True
            return compare(a, b)
        return truth(self._each(compare, a, b, rows))

    def _number(self, x: Any, rows: np.ndarray) -> Any:
        """Returns x prepared for arithmetic. Marks rows in which x is not a number as undefined."""
        if not isinstance(x, np.ndarray):
            if isinstance(x, bool | int | float):
                return int(x) if isinstance(x, bool) else x
            self.undefined[rows] = True
            return 1
        if x.dtype == bool:
            return x.astype(np.int64)
        if x.dtype.kind == "f":
            self.undefined[rows[np.isnan(x)]] = True
        return x

    def _each(
        self, f: Callable[[Any, Any], Any], a: Any, b: Any, rows: np.ndarray, calculating: bool = False
    ) -> np.ndarray:
        """Returns the results of f, applied row by row, for columns of objects and for integers beyond 64 bits."""
        if not isinstance(a, np.ndarray) and not isinstance(b, np.ndarray):
            a = np.full(len(rows), a, dtype=object)
        out: list[Any] = []
        for i, (x, y) in enumerate(zip(*np.broadcast_arrays(objects(a), objects(b)), strict=True)):
            try:
                if calculating and not (isinstance(x, bool | int | float) and isinstance(y, bool | int | float)):
                    raise TypeError
                out.append(f(x, y))
            except (TypeError, ArithmeticError, ValueError):
                self.undefined[rows[i]] = True
                out.append(0)
        return column(out)
