"""Shortens JSON documents so that they fit into an agent's context, and lists what was cut."""

import json
import math
from typing import Any

from kb import secrets
from tui.hygiene import plain

MOST = 24_000  # largest number of characters of an answer, about 8,000 tokens
_SHORTEST, _FEWEST = 400, 3  # a text is not cut below this number of characters, and a list not below this many entries


def bounded(document: Any, most: int = MOST) -> tuple[Any, list[str]]:
    """Returns the document as plain data without secrets and control characters, then descriptions of what was cut. The
    longest lists and texts are cut until the JSON text has at most `most` characters."""
    found, cut = [_plain(secrets.without(document))], dict[str, int]()
    while (size := len(json.dumps(found, ensure_ascii=False))) > most:
        parts = list(_parts(found, ""))
        if not parts:
            return {}, [f"the whole answer: it has {size:,} characters, but at most {most:,} are allowed"]
        _, path, holder, key = max(parts, key=lambda part: part[0])
        cut.setdefault(path, len(holder[key]))
        holder[key] = holder[key][: max(len(holder[key]) // 2, _FEWEST if isinstance(holder[key], list) else _SHORTEST)]
    return found[0], [f"{path or 'the list'} was shortened; its length was {whole:,}" for path, whole in cut.items()]


def _parts(value: Any, path: str) -> Any:
    """(size, path, container, key) of every list and text that can be cut; `container[key]` is the list or text."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in entries:
        here = path if isinstance(key, int) else f"{path}.{key}".lstrip(".")
        if isinstance(each, list) and len(each) > _FEWEST:
            yield len(json.dumps(each, ensure_ascii=False)), here, value, key
        elif isinstance(each, str) and len(each) > _SHORTEST:
            yield len(each), here, value, key
        yield from _parts(each, here)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {plain(str(key)): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, str):
        return plain(value)
    return value if value is None or isinstance(value, bool | int | float) else str(value)
