"""Parses and writes command-line flags and their values."""

import re

from autoscout.space.language.template import as_text
from kb.records import Value

NUMBER = re.compile(r"-?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")

_ON, _OFF = ("1", "yes", "y", "t", "true"), ("0", "no", "n", "f", "false")
_SWITCHED: dict[str, Value] = {**dict.fromkeys(_ON, True), **dict.fromkeys(_OFF, False)}


def is_flag(sets: str) -> bool:
    """Whether a knob's `sets` is a command-line argument: a flag such as --a-flag, or `name=` (for name=value)."""
    return sets.startswith("-") or re.fullmatch(r"[\w.]+=", sets) is not None


def switch(flag: str) -> tuple[str, str]:
    """Splits "--overlap/--no-overlap" into (flag for on, flag for off). The latter is "" if there is none."""
    on, _, off = flag.partition("/")
    return on, off


def plain(name: str) -> str:
    """Returns the flag spelled with hyphens, because parsers of Hugging Face scripts accept both --a-flag and
    --a_flag."""
    return name.replace("_", "-") if name.startswith("--") else name


def setting(flag: str) -> str:
    """Returns a flag's name as a setting: --micro-batch-size= → micro_batch_size"""
    return flag.strip("-=").replace("-", "_")


def value_of(text: str) -> Value:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if NUMBER.fullmatch(text):
        return int(text) if re.fullmatch(r"-?\d+", text) else float(text)
    return text


def as_switch(value: Value | None, values: object) -> Value | None:
    """Returns the bool that a setting's value means, as parsers of Hugging Face read it (1, yes, y or t), if `values`,
    which the setting can have, are bools; else the value."""
    if not isinstance(values, list) or not values or not all(isinstance(each, bool) for each in values):
        return value
    return _SWITCHED.get(str(value).lower(), value)


def written(on: str, off: str, value: Value | None) -> list[str]:
    """Returns the words that set a flag to this value. `on`: the flag, or the flag for True. `off`: the flag for
    False."""
    if on.endswith("="):
        return [] if value is None else [f"{on}{as_text(value)}"]
    if isinstance(value, bool):
        return [on] if value else [off] if off else []
    return [] if value is None else [on, as_text(value)]
