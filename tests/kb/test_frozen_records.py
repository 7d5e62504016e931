"""What a field says where nobody gives it, and how its struct behaves: a contract, since stored jobs and journals leave
defaults out. Whoever means a change writes the table anew and reads its difference:

    UPDATE_FROZEN=1 python -m pytest tests/kb/test_frozen_records.py
"""

import importlib
import inspect
import json
import os
import pkgutil
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import kb

FROZEN = Path(__file__).parent / "frozen" / "records.json"
MODULES = [
    each.name
    for each in pkgutil.walk_packages(kb.__path__, "kb.")
    if each.name != "kb.sharing.ducklake"  # it is nothing without DuckDB
]


def structs() -> dict[str, type[msgspec.Struct]]:
    found = (vars(importlib.import_module(name)).values() for name in MODULES)
    kinds = {each for module in found for each in module if isinstance(each, type) and issubclass(each, msgspec.Struct)}
    return {f"{kind.__module__}.{kind.__name__}": kind for kind in kinds if kind.__module__.startswith("kb.")}


def said(field: msgspec.structs.FieldInfo) -> Any:
    """Its default, and the words and numbers that it may be."""
    if field.default_factory is not msgspec.NODEFAULT:
        default = msgspec.to_builtins(field.default_factory())
    else:
        default = "required" if field.default is msgspec.NODEFAULT else msgspec.to_builtins(field.default)
    words = str(field.type) if "Literal" in str(field.type) else ""
    return [default, words] if words else default


def behaviour(kind: type[msgspec.Struct]) -> dict[str, Any]:
    config = kind.__struct_config__
    flags = ("frozen", "forbid_unknown_fields", "omit_defaults", "dict")
    keywords = [p.kind == inspect.Parameter.KEYWORD_ONLY for p in inspect.signature(kind).parameters.values()]
    return {
        "is": [flag for flag in flags if getattr(config, flag)] + [f"tag {config.tag}"] * bool(config.tag),
        "keywords": all(keywords) if len(set(keywords)) == 1 else keywords,
        "fields": {field.name: said(field) for field in msgspec.structs.fields(kind)},
    }


def test_every_field_has_the_default_that_it_had():
    found = {name: behaviour(kind) for name, kind in sorted(structs().items())}
    if os.environ.get("UPDATE_FROZEN"):
        FROZEN.parent.mkdir(exist_ok=True)
        lines = (f" {json.dumps(name)}: {json.dumps(each)}" for name, each in found.items())
        FROZEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    assert json.loads(json.dumps(found)) == json.loads(FROZEN.read_text())


def test_what_only_types_need_is_not_loaded(monkeypatch: pytest.MonkeyPatch):
    """DuckDB and NumPy take longer to load than a command line that asks nothing of them may take: all of ours can be
    imported where they cannot."""
    for name in MODULES:  # so that all of them are put back afterwards
        importlib.import_module(name)
    for name in [name for name in sys.modules if name.partition(".")[0] == "kb"]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("duckdb", "numpy"):
        monkeypatch.setitem(sys.modules, name, None)
    for name in MODULES:
        importlib.import_module(name)
    with pytest.raises(ImportError):
        importlib.import_module("kb.sharing.ducklake")
