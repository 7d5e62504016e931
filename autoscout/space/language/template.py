"""Placeholders in commands, environments and rendered files: `{name}`, or `{an expression}` such as {global_batch //
(mbs * gpus)}. In rendered files, `$NAME` is also a placeholder if the name is known.

Braces without a name, or with quotes, colons or nested braces, are literal, so that JSON needs no escaping. `{{name}}`
gives a literal `{name}`, and `${NAME}` is left to the shell."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from autoscout.job.words import nearest_name
from kb.records import AutoscoutError

_INNER = r"(?=[^{}]*[A-Za-z_])[A-Za-z_0-9(][^{}\"'\n:;]*"
PLACEHOLDER = re.compile(rf"\{{\{{(?P<kept>{_INNER})\}}\}}|(?<!\$)\{{(?P<inner>{_INNER})\}}")
_OF_A_LINE = ("gpus", "nodes", "hosts", "port", "folder", "iterations", "node", "head", "ranks")
_DOLLAR = re.compile(r"\$(?P<name>[A-Za-z_]\w*)")


def filled(
    text: str,
    names: Mapping[str, Any],
    where: str,
    dollars: bool = False,
    quoted: Callable[[str], str] = str,
) -> str:
    """Returns the text with its placeholders replaced. `quoted`: function that quotes a value. Errors: AutoscoutError
    (exit 2) for an unknown placeholder, or an expression that cannot be evaluated."""

    def place(found: re.Match[str]) -> str:
        if found["kept"] is not None:
            return "{" + found["kept"] + "}"
        return quoted(as_text(_value(found["inner"], names, where)))

    text = PLACEHOLDER.sub(place, text)
    if not dollars:
        return text
    return _DOLLAR.sub(lambda m: as_text(names[m["name"]]) if m["name"] in names else m[0], text)


def of_a_line(text: str) -> str:
    """Escapes braces in a launch line, so that only the names in `_OF_A_LINE` are parsed as placeholders."""
    return PLACEHOLDER.sub(lambda m: m[0] if m["inner"] in _OF_A_LINE else f"{{{m[0]}}}", text)


def names_in(text: str, dollars: bool = False) -> set[str]:
    """Returns the names used in a text's placeholders, ignoring invalid expressions."""
    from autoscout.space.language.expression import Expression  # imported late, because it imports numpy

    found: set[str] = set()
    for match in PLACEHOLDER.finditer(text):
        try:
            found |= set(Expression(match["inner"]).names) if match["inner"] else set()
        except AutoscoutError:
            continue
    return found | ({m["name"] for m in _DOLLAR.finditer(text)} if dollars else set())


def as_text(value: Any) -> str:
    """Returns a value as text, as in configuration files: true, 4, 0.1, name."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _value(inner: str, names: Mapping[str, Any], where: str) -> Any:
    from autoscout.space.language.expression import Expression

    try:
        expression = Expression(inner)
    except AutoscoutError as error:
        raise AutoscoutError(
            f"{where}: {{{inner}}} is neither a placeholder nor an expression; write {{{{{inner}}}}} for literal "
            f"braces",
            2,
        ) from error
    for name in expression.names:
        if name not in names:
            raise AutoscoutError(
                f"{where}: the placeholder {{{name}}}{nearest_name(name, names)}; write {{{{{name}}}}} for literal "
                f"braces",
                2,
            )
    try:
        return expression(names)
    except AutoscoutError as error:
        raise AutoscoutError(f"{where}: {error}", 2) from error
