"""Sets values in a JSON, YAML or TOML file at dotted paths such as zero_optimization.stage. In YAML and TOML only the
text of each value is replaced, which preserves comments and order. JSON is parsed and rewritten."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from autoscout.job import yaml_text
from kb import door
from kb.records import AutoscoutError

KINDS = {".json": "json", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml"}


def put(text: str, kind: str, settings: Mapping[str, Any], where: str) -> str:
    """Returns the text with these values at their paths. Missing keys are added. Errors: AutoscoutError (exit 2) if the
    text cannot be parsed, or if a path leads through a value that is not a mapping."""
    if kind == "yaml":
        try:
            return yaml_text.put(text, settings)
        except ValueError as error:
            raise AutoscoutError(f"{where}: {error}", 2) from error
    for path, value in settings.items():
        keys = path.split(".")
        text = _toml(text, keys, value) if kind == "toml" else _json(text, keys, value, where)
    return text


def at(found: Any, path: str) -> Any:
    """Returns the value at a dotted path of parsed JSON; None if missing. Numbers in a path are list indices."""
    for key in path.split("."):
        if isinstance(found, list) and key.lstrip("-").isdigit() and -len(found) <= int(key) < len(found):
            found = found[int(key)]
        elif isinstance(found, dict) and (names := [n for n in (key, *found) if n in found and _alike(n, key)]):
            found = found[names[0]]
        else:
            return None
    return found


def leaves(tree: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yields (dotted path, value) for all values that are not objects."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _alike(name: object, key: str) -> bool:
    return yaml_text.alike(str(name), key)


def _json(text: str, keys: list[str], value: Any, where: str) -> str:
    try:
        tree = door.parsed_json(text or "{}")
    except ValueError as error:
        raise AutoscoutError(f"{where}: the file is not JSON ({error})", 2) from error
    inner = tree
    for key in keys[:-1]:
        inner = inner.setdefault(key, {}) if isinstance(inner, dict) else None
    if not isinstance(inner, dict):
        raise AutoscoutError(
            f"{where}: {'.'.join(keys)} cannot be set, because {'.'.join(keys[:-1])} is not an object", 2
        )
    inner[keys[-1]] = value
    return json.dumps(tree, indent=2) + "\n"


def _toml(text: str, keys: list[str], value: Any) -> str:
    section, key = ".".join(keys[:-1]), keys[-1]
    lines = text.splitlines()
    current, end = "", 0 if not section else None
    for i, line in enumerate(lines):
        if head := re.match(r"\s*\[([^\[\]]+)\]\s*(#.*)?$", line):
            current = re.sub(r"[\s\"']", "", head[1])
        elif current == section and re.match(rf"\s*{re.escape(key)}\s*=", line):
            lines[i] = f"{line[: line.index('=')].rstrip()} = {json.dumps(value)}"
            return "\n".join(lines) + "\n"
        if current == section and line.strip():
            end = i + 1
    if end is None:
        return "\n".join([*lines, "", f"[{section}]", f"{key} = {json.dumps(value)}"]) + "\n"
    return "\n".join([*lines[:end], f"{key} = {json.dumps(value)}", *lines[end:]]) + "\n"
