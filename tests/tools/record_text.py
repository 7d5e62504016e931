"""Writes fitted constants into the text of a device record in fixtures/hardware."""

import tomllib
from pathlib import Path
from typing import Any

from autoscout.job.device_records import folder, shipped_contents

_LAST = ("serving", "sources")


def put(stem: str, found: dict[str, dict[str, Any]], sources: dict[str, str]) -> Path:
    """`found`: figures by section ("gemm", "serving.decode"). Outside of [serving], figures equal to those of the
    record that it is `like` are omitted. `sources`: by section, for the written ones."""
    path = folder() / f"{stem}.toml"
    record = tomllib.loads(path.read_text(encoding="utf-8"))
    like = shipped_contents().get(record.get("like", ""), {})
    lent = {**like, "island": shipped_contents()[links]["island"]} if (links := record.get("links")) else like
    for section, figures in found.items():
        of, _, group = section.rpartition(".")
        own = figures if of else {k: v for k, v in figures.items() if lent.get(section, {}).get(k) != v}
        where = record.setdefault("serving", {}) if of else record
        said = record.setdefault("sources", {})
        if own:
            where[group], said[section] = own, sources[section]
        else:
            where.pop(group, None)
            said.pop(section, None)
    path.write_text(_text(record), encoding="utf-8")
    return path


def _text(record: dict[str, Any]) -> str:
    serving = record.get("serving", {})
    tables = {key: value for key, value in record.items() if isinstance(value, dict) and key not in _LAST}
    plain = {key: value for key, value in serving.items() if not isinstance(value, dict)}
    tables |= {"serving": plain} if plain else {}
    tables |= {f"serving.{key}": value for key, value in serving.items() if isinstance(value, dict)}
    tables["sources"] = record.get("sources", {})
    lines = _pairs({key: value for key, value in record.items() if not isinstance(value, dict)})
    for name, table in tables.items():
        lines += ["", f"[{name}]", *_pairs(table)]
    return "\n".join(lines) + "\n"


def _pairs(table: dict[str, Any]) -> list[str]:
    return [
        f"{key if key.replace('_', '').isalnum() else _value(key)} = {_value(value)}" for key, value in table.items()
    ]


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, dict):
        return "{ " + ", ".join(_pairs(value)) + " }"
    if isinstance(value, list):
        if value and isinstance(value[0], dict):
            return "[\n" + "".join(f"    {_value(item)},\n" for item in value) + "]"
        return "[" + ", ".join(map(_value, value)) + "]"
    return repr(value)
