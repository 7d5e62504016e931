"""Writes TOML in a readable style: plain keys first, then tables; nested tables are inline."""

import json
import re
from collections.abc import Sequence
from typing import Any

from kb import door


def toml(content: dict[str, Any], notes: Sequence[str] = ()) -> str:
    """Converts a dictionary to TOML. `notes`: comments at the beginning. Numbers must be finite."""
    lines = [f"# {door.plain(note)}" for note in notes]
    lines += [_pair(key, value) for key, value in content.items() if not isinstance(value, dict)]
    for section, fields in content.items():
        if isinstance(fields, dict):
            lines += ["", f"[{_key(section)}]"]
            lines += [_pair(key, value) for key, value in fields.items()]
    return "\n".join(lines) + "\n"


def _pair(key: str, value: Any) -> str:
    return f"{_key(key)} = {_value(value)}"


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(_pair(*item) for item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(key: str) -> str:
    return key if re.fullmatch(r"[\w-]+", key, re.ASCII) else _value(key)
