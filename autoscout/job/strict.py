"""Files that people write: strict TOML, where every mistake is one sentence that names the file and the key."""

import tomllib
import types
import typing
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from autoscout.job.words import nearest_name
from kb.records import AutoscoutError

S = TypeVar("S", bound=msgspec.Struct)


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """Errors: AutoscoutError (exit 2) when the file cannot be read or is not TOML; `what`: the kind of file, for the
    sentence."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise AutoscoutError(f"{path}: cannot read this {what} ({error.strerror})", 2) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise AutoscoutError(f"{path}: not valid TOML: {error}", 2) from error


def converted(path: Path, data: dict[str, Any], kind: type[S]) -> S:
    """Errors: AutoscoutError (exit 2) naming the file and the key, and for an unknown key the nearest known one."""
    _check_keys(path, data, kind, "")
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise AutoscoutError(f"{path}: {_in_words(error)}", 2) from error


def _check_keys(path: Path, data: Any, kind: Any, where: str) -> None:
    """msgspec stops at an unknown key too, but cannot name the nearest known one."""
    if isinstance(kind, types.GenericAlias) and typing.get_origin(kind) is list and isinstance(data, list):
        for i, item in enumerate(data):
            _check_keys(path, item, typing.get_args(kind)[0], f"{where}[{i}]")
    if isinstance(kind, types.UnionType):  # an optional struct
        kind = next((k for k in typing.get_args(kind) if isinstance(k, type) and issubclass(k, msgspec.Struct)), kind)
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct) and isinstance(data, dict)):
        return
    written = dict(zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True))
    hints = {written[name]: hint for name, hint in typing.get_type_hints(kind).items() if name in written}
    for key, value in data.items():
        full = f"{where}.{key}" if where else key
        if key not in hints:
            raise AutoscoutError(f"{path}: the key {full}{nearest_name(key, hints)}", 2)
        _check_keys(path, value, hints[key], full)


def _in_words(error: msgspec.ValidationError) -> str:
    """ "Expected `int`, got `str` - at `$.model.layers`" → "model.layers: expected `int`, got `str`"."""
    message, _, where = str(error).partition(" - at ")
    key = where.strip("`").removeprefix("$.").removeprefix("$")
    return f"{key + ': ' if key else ''}{message[0].lower()}{message[1:]}"
