"""Evaluates paths in a tool's output ("metrics.ttft.mean"; "/metadata.version" from the root) and their arithmetic."""

import operator
from collections.abc import Callable, Mapping
from typing import Any

from autoscout.line import nested

_OPERATIONS: dict[str, Callable[[float, float], float]]
_OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


def at(tree: Any, path: str) -> Any:
    """Returns the value at a path of keys and list indices; None if there is no value. A key may itself contain dots.
    The index `last` is that of the last item with a value at the rest of the path."""
    if isinstance(tree, Mapping) and path in tree:
        return tree[path]
    key, dot, rest = path.partition(".")
    if isinstance(tree, list) and key == "last" and dot:
        return next((found for item in reversed(tree) if (found := at(item, rest)) is not None), None)
    while True:
        below = None
        if isinstance(tree, Mapping):
            below = tree.get(key)
        elif isinstance(tree, list) and key.lstrip("-").isdigit() and -len(tree) <= int(key) < len(tree):
            below = tree[int(key)]
        if not dot:
            return below
        if below is not None and (found := at(below, rest)) is not None:
            return found
        more, dot, rest = rest.partition(".")
        key = f"{key}.{more}"


def value(text: str, row: Any, top: Any) -> Any:
    """Evaluates an expression for a row. It is a path, a text in single quotes, arithmetic on numbers and paths such as
    "a / b" (/ * + -, strictly left to right), or alternatives "a | b"; the first one that has a value is used. None if
    a path is missing or the arithmetic is undefined."""
    if text[:1] == "'":
        return text.strip("'")
    for alternative in text.split(" | "):
        words = alternative.split()
        found = _operand(words[0], row, top)
        for sign, operand in zip(words[1::2], words[2::2], strict=True):
            found = _combined(sign, found, _operand(operand, row, top))
        if found is not None:
            return found
    return None


def problem(text: str) -> str:
    """Returns why the text is not a valid expression; "" if it is."""
    if text[:1] == "'":
        return ""
    for alternative in text.split(" | "):
        words = alternative.split()
        if len(words) % 2 == 0 or any(sign not in _OPERATIONS for sign in words[1::2]):
            return f"'{alternative}' must be a path, or several paths joined by +, -, * or /"
    return ""


def first_keys(text: str) -> set[str]:
    """Returns the row's top-level keys that an expression uses, ignoring paths from the root."""
    words = [word for alternative in text.split(" | ") for word in alternative.split()[::2]]
    return {part for word in words if word[:1] != "/" for part in _prefixes(word)}


def flat(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Flattens tables and drops lists: {"a": {"b": 2}} → {"a.b": 2}."""
    return {path: value for path, value in nested.leaves(tree) if not isinstance(value, list)}


def _prefixes(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[:i]) for i in range(1, len(parts) + 1)]


def _operand(word: str, row: Any, top: Any) -> Any:
    if word[0] == "/":
        return at(top, word[1:])
    try:
        return float(word) if word[0].isdigit() else at(row, word)
    except ValueError:
        return at(row, word)


def _combined(sign: str, left: Any, right: Any) -> float | None:
    try:
        return _OPERATIONS[sign](float(left), float(right))
    except (TypeError, ValueError, ArithmeticError):
        return None
