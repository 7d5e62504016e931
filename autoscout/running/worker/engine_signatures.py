"""Prints the signatures of an engine's functions; runs in the engine's own interpreter.

    engine_signatures.py WORKER.py cpu|cuda < '["megatron.core.utils.get_batch_on_this_cp_rank", …]'

WORKER.py has load(device), which imports the engine as an experiment does. The last line printed is one object: name →
"batch, is_hybrid_cp, cp_group=…"; "" if it is not callable or is a configuration of many fields; null if it is missing.
"""

import importlib
import inspect
import json
import sys
from pathlib import Path
from typing import Any

_MANY = 50  # a dataclass with more fields gets no signature, since callers look up the fields by name
_MARKS = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


def resolved(name: str) -> Any:
    """Imports the object with a dotted name. Errors: ImportError or AttributeError."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        module = ".".join(parts[:count])
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise
            continue
        for part in parts[count:]:
            found = getattr(found, part)
        return found
    raise ImportError(name)


def signature(name: str) -> str | None:
    try:
        found: Any = resolved(name)
    except (ImportError, AttributeError):
        return None
    fields = getattr(found, "__dataclass_fields__", ())
    if not callable(found) or len(fields) > _MANY:
        return ""
    try:
        return written(inspect.signature(found))
    except (TypeError, ValueError):
        return ""


def written(found: inspect.Signature) -> str:
    """A signature as text without types and default values, such as "batch, /, cp_group=…, *, deep, **more"."""
    words, before = [], None
    for parameter in found.parameters.values():
        if before is inspect.Parameter.POSITIONAL_ONLY and parameter.kind is not before:
            words.append("/")
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and before not in (
            inspect.Parameter.VAR_POSITIONAL,
            inspect.Parameter.KEYWORD_ONLY,
        ):
            words.append("*")
        default = "" if parameter.default is inspect.Parameter.empty else "=…"
        words.append(f"{_MARKS.get(parameter.kind, '')}{parameter.name}{default}")
        before = parameter.kind
    return ", ".join([*words, "/"] if before is inspect.Parameter.POSITIONAL_ONLY else words)


if __name__ == "__main__":
    script = Path(sys.argv[1])
    sys.path.insert(0, str(script.parent))
    importlib.import_module(script.stem).load(sys.argv[2])
    print(json.dumps({name: signature(name) for name in json.load(sys.stdin)}))
