"""A job as a person would write it: its TOML, with what they should review above."""

import json
import re
from typing import Any


def toml(job: dict[str, Any], notes: list[str]) -> str:
    """A job as a person would write it: plain keys first, then its tables."""
    lines = [f"# {note}" for note in notes]
    lines += [f"{key} = {_value(value)}" for key, value in job.items() if not isinstance(value, dict)]
    for section, fields in job.items():
        if isinstance(fields, dict):
            lines += ["", f"[{section}]"]
            lines += [f"{_key(key)} = {_value(value)}" for key, value in fields.items()]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        inside = ", ".join(map(_value, value))
        return f"[{inside}]"
    return json.dumps(value, ensure_ascii=False)


def _key(key: str) -> str:
    return key if re.fullmatch(r"[\w-]+", key) else json.dumps(key)
