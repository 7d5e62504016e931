"""Orders that a user gives to a running session. They are lines in a file next to its journal, which the session reads
between experiments, so that no connection to its process is needed.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from kb import door
from kb.order_words import MEANING
from kb.records import AutoscoutError, Value

_REASON = 300  # characters of the reason for a proposal; the rest is cut off

What = Literal[
    "pause",
    "go",
    "stop",
    "budget",
    "profile",
    "validate",
    "try",
    "retry",
    "propose",
    "hold",
    "hear",
    "pin",
    "exclude",
    "unreadable",
]


class Order(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    what: What
    values: dict[str, Value] = {}
    by: str = ""
    why: str = ""


def parsed(what: str, settings: Sequence[str], by: str, why: str = "") -> Order:
    """An order from words of a command line, such as ["profiles=40"], ["40"] or ["tp=2", "sp=true"]. Errors:
    AutoscoutError (exit 2)."""
    if what == "budget" and len(settings) == 1 and settings[0].isdigit():
        settings = [f"profiles={settings[0]}"]
    values: dict[str, Value] = {}
    for word in settings:
        name, equals, text = word.partition("=")
        if not equals:
            raise AutoscoutError(f"'{word}' is not NAME=VALUE, for example tp=2", 2)
        values[name] = int(text) if text.isdigit() else text
    return Order(what=what, values=values, by=by, why=door.plain(why)[:_REASON])  # type: ignore[arg-type]


def give(folder: Path, order: Order) -> None:
    """Appends an order to a session's file in one write, so that simultaneous orders do not mix. Errors: AutoscoutError
    (exit 2) for an unknown order or missing values."""
    if order.what not in MEANING:
        raise AutoscoutError(f"there is no order '{order.what}'; there are {', '.join(MEANING)}", 2)
    if order.what == "budget" and not (isinstance(n := order.values.get("profiles"), int) and n > 0):
        raise AutoscoutError("budget needs profiles=N with N more than 0", 2)
    if order.what in ("try", "retry", "propose", "pin", "exclude") and not order.values:
        raise AutoscoutError(f"{order.what} needs KNOB=VALUE", 2)
    try:
        file = os.open(file_of(folder), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            os.write(file, msgspec.json.encode(order) + b"\n")
        finally:
            os.close(file)
    except OSError as error:
        raise AutoscoutError(f"{file_of(folder)}: cannot write the order ({error.strerror})") from error


def given(folder: Path) -> list[Order]:
    """All complete lines of a session's orders. A line that is not an order becomes the order "unreadable"."""
    try:
        lines = file_of(folder).read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        try:
            found.append(msgspec.json.decode(line, type=Order))
        except (msgspec.DecodeError, msgspec.ValidationError):
            found.append(Order(what="unreadable"))
    return found


def paused_by(folder: Path) -> str:
    """Who gave the last order to pause; "" if there is none, or a later order resumed the session."""
    turns = [order for order in given(folder) if order.what in ("pause", "go")]
    return turns[-1].by if turns and turns[-1].what == "pause" else ""


def file_of(folder: Path) -> Path:
    return folder / "orders.jsonl"
