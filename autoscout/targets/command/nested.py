"""Sets a value in a configuration file at a path such as zero_optimization.stage: JSON, YAML, TOML. JSON is parsed and
rewritten. In YAML and TOML only the key's line changes, which keeps comments and order; the path may lead through
[section] tables or indented blocks, not through flow style ({a: 1}).
"""

import json
import re
from typing import Any

from kb import door
from kb.records import AutoscoutError

KINDS = {".json": "json", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml"}


def put(text: str, kind: str, path: str, value: Any, where: str) -> str:
    """Errors: AutoscoutError (exit 2) naming the file and the path, if it leads nowhere."""
    keys = path.split(".")
    if kind == "json":
        return _json(text, keys, value, where)
    return _toml(text, keys, value) if kind == "toml" else _yaml(text, keys, value, where)


def at(found: Any, path: str) -> Any:
    """The value at a path of parsed JSON; None if there is none. Numbers are list indices."""
    for key in path.split("."):
        if isinstance(found, list) and key.lstrip("-").isdigit() and -len(found) <= int(key) < len(found):
            found = found[int(key)]
        elif isinstance(found, dict) and key in found:
            found = found[key]
        else:
            return None
    return found


def _json(text: str, keys: list[str], value: Any, where: str) -> str:
    try:
        tree = door.parsed_json(text or "{}")
    except ValueError as error:
        raise AutoscoutError(f"{where}: is no JSON ({error})", 2) from error
    inner = tree
    for key in keys[:-1]:
        inner = inner.setdefault(key, {}) if isinstance(inner, dict) else None
    if not isinstance(inner, dict):
        raise AutoscoutError(f"{where}: {'.'.join(keys)} leads through something that is no object", 2)
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


def _yaml(text: str, keys: list[str], value: Any, where: str) -> str:
    lines = text.splitlines()
    start, stop, depth = 0, len(lines), -1
    for n, key in enumerate(keys):
        found = None
        inside = None
        for i in range(start, stop):
            line = lines[i]
            if not line.strip() or line.lstrip().startswith(("#", "-")):
                continue
            indent = len(line) - len(line.lstrip())
            inside = indent if inside is None else inside
            if indent == inside and indent > depth and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*:", line):
                found = i
                break
        last = n == len(keys) - 1
        if found is None:
            pad = " " * (inside if inside is not None and inside > depth else depth + 2 if depth >= 0 else 0)
            lines[stop:stop] = _new(keys[n:], value, pad)
            return "\n".join(lines) + "\n"
        head, _, rest = lines[found].partition(":")
        if last:
            lines[found] = f"{head}: {json.dumps(value)}"
            return "\n".join(lines) + "\n"
        if rest.split("#")[0].strip():
            raise AutoscoutError(f"{where}: {'.'.join(keys)} leads through {key}, which is no block of keys", 2)
        depth = len(head) - len(head.lstrip())
        start = found + 1
        stop = next((i for i in range(start, stop) if lines[i].strip() and _indent(lines[i]) <= depth), stop)
    return text


def _new(keys: list[str], value: Any, pad: str) -> list[str]:
    lines = [f"{pad}{'  ' * i}{key}:" for i, key in enumerate(keys)]
    return [*lines[:-1], f"{lines[-1]} {json.dumps(value)}"]


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
