"""Shared by the scripts that audit an engine under its own interpreter: their answer is one JSON object on the last
line of stdout, whatever the engine itself prints."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

_REFUSED = 400  # characters of an engine's error message; the rest is cut off


def asked() -> tuple[Any, Callable[[Any], None]]:
    """The question on stdin, and a function that writes the answer and ends the process even if threads still run."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(found: Any) -> None:
        answers.write(json.dumps(found) + "\n")
        answers.flush()
        os._exit(0)

    return json.load(sys.stdin), answer


def by_flag(actions: Iterable[argparse.Action]) -> dict[str, argparse.Action]:
    return {o: a for a in actions for o in a.option_strings if o.startswith("--") and a.dest != "help"}


def described(actions: dict[str, argparse.Action], plain: Callable[[Any], Any]) -> dict[str, dict[str, str]]:
    """A parser's options, with their values and help texts. `plain`: converts a value to one that JSON can hold."""
    return {
        "arguments": {flag: written(action.default, action.choices, plain) for flag, action in actions.items()},
        "helps": {flag: " ".join((action.help or "").split()) for flag, action in actions.items()},
    }


def written(default: Any, choices: Iterable[Any] | None, plain: Callable[[Any], Any]) -> str:
    """An option's values as text, such as "1 of 1 | 2 | 4": the default, then the choices."""
    text, named = json.dumps(plain(default)), " | ".join(str(plain(c)) for c in choices or ())
    return f"{text} of {named}" if named else text


def refusal(error: BaseException) -> dict[str, Any]:
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return {"refused": text[:_REFUSED], "changed": {}, "said": []}
