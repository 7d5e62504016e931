"""Computes the output of simple text commands, so that `$(dirname …)` in a script can be expanded without a shell."""

import ast
import itertools
import operator
import os.path
import re
import shlex
import time
from collections.abc import Callable

_SUM = re.compile(r"-?\d+(?: [-+*/%] -?\d+)+")
_SUMS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda a, b: a // b if (a < 0) == (b < 0) else -(-a // b),  # like C, unlike Python
    ast.Mod: lambda a, b: abs(a) % abs(b) * (-1 if a < 0 else 1),
}


def printed(command: str) -> str | None:
    """Returns the output of a command; None for a command that is not supported or whose arguments are unknown."""
    try:
        program, *words = shlex.split(command) or [""]
        if program == "echo":
            return _piped(command)
    except ValueError:
        return None
    if any(re.search(r"[$`|;&<>]", word) for word in words):
        return None
    if program == "dirname" and len(words) == 1:
        return os.path.dirname(words[0].rstrip("/") or "/") or "."
    if program == "basename" and len(words) in (1, 2):
        name = os.path.basename(words[0].rstrip("/"))
        return name.removesuffix(words[1]) if len(words) == 2 and name != words[1] else name
    if program == "date" and len(words) == 1 and words[0].startswith("+"):
        return time.strftime(words[0][1:])
    text = " ".join(words)
    return total(text) if program == "expr" and _SUM.fullmatch(text) else None


def _piped(command: str) -> str | None:
    """Returns what `echo TEXT | tr … | wc …` prints, by which scripts count the devices of a list; None for other
    filters. Errors: ValueError for an unclosed quote."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars="|;&<>")
    lexer.whitespace_split, lexer.commenters = True, ""
    words = [*lexer]
    stages = [[*of_one] for is_pipe, of_one in itertools.groupby(words, "|".__eq__) if not is_pipe]
    text = " ".join(word for word in stages[0][1:] if word != "-n") + "\n" * ("-n" not in stages[0])
    if any(re.search(r"[$`;&<>]", word) for word in words if not word.startswith("{")):
        return None
    for stage in stages[1:]:
        match stage:
            case ["tr", one, other] if len(one) == 1 or one in ("\\n", "\\t"):
                text = text.replace(_character(one), _character(other))
            case ["tr", "-cd" | "-dc", kept]:
                text = "".join(c for c in text if c in kept)
            case ["grep", "-o", part]:
                text = f"{part}\n" * text.count(part)
            case ["awk", *separator, "{print NF}" | "{ print NF }"] if "".join(separator).startswith("-F"):
                text = str(len(text.split("".join(separator).removeprefix("-F"))))
            case ["wc", "-l" | "-w" | "-c" as what]:
                text = str({"-l": text.count("\n"), "-w": len(text.split()), "-c": len(text)}[what])
            case _:
                return None
    return text.rstrip("\n")


def _character(text: str) -> str:
    """Returns the first character that `tr` reads in a text, such as a newline for \\n."""
    return {"\\n": "\n", "\\t": "\t"}.get(text, text[:1])


def total(text: str) -> str | None:
    """Evaluates an expression of integers with + - * / % as a shell does; None if the text is anything else."""
    try:
        return str(_value(ast.parse(text.strip(), mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError):
        return None


def _value(node: ast.expr) -> int:
    """Errors: ValueError for anything but a sum."""
    match node:
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            return value
        case ast.UnaryOp(op=ast.USub()):
            return -_value(node.operand)
        case ast.BinOp() if type(node.op) in _SUMS:
            return _SUMS[type(node.op)](_value(node.left), _value(node.right))
    raise ValueError(node)
