"""Parses TOML files of users strictly: each mistake is reported in a sentence that names the file and the key."""

import codecs
import math
import re
import tomllib
import types
import typing
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from autoscout.job.words import nearest_name, none_of
from kb.records import AutoscoutError

S = TypeVar("S", bound=msgspec.Struct)


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """Reads a TOML file. Errors: AutoscoutError (exit 2) if the file cannot be read or parsed. `what`: the kind of
    file, for the message."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8-sig"))
        _check_values(path, data, "")
        return data
    except OSError as error:
        raise AutoscoutError(f"{path}: cannot read this {what} ({error.strerror})", 2) from error
    except tomllib.TOMLDecodeError as error:
        problem = str(error).replace("Illegal character '\\n'", "a text ends without its closing quote")
        raise AutoscoutError(f"{path}: not valid TOML: {problem}", 2) from error
    except RecursionError:
        raise AutoscoutError(f"{path}: not valid TOML: it is nested too deeply", 2) from None
    except UnicodeDecodeError as error:
        wide = error.object[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        where = "it is UTF-16" if wide else f"line {error.object[: error.start].count(10) + 1} is not UTF-8"
        raise AutoscoutError(f"{path}: {where}; save this {what} as UTF-8", 2) from error


def converted(path: Path, data: dict[str, Any], kind: type[S]) -> S:
    """Converts parsed TOML to a struct. Errors: AutoscoutError (exit 2) naming the file, the key and a similar key."""
    _check_keys(path, data, kind, "")
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise AutoscoutError(f"{path}: {_in_words(error, '')}", 2) from error


def unsaid(value: Any) -> Any:
    """Returns the value with fields that equal a default (`rate = 0.0`) replaced by the default object itself.
    Otherwise, such fields would change the job's hash, because msgspec's omit_defaults compares by identity."""
    if isinstance(value, list):
        return [unsaid(each) for each in value]
    if not isinstance(value, msgspec.Struct):
        return value
    said = {f.name: unsaid(getattr(value, f.name)) for f in msgspec.structs.fields(value)}
    usual = {f.name: f.default for f in msgspec.structs.fields(value) if said[f.name] == f.default}
    return msgspec.structs.replace(value, **said | usual)


def _check_keys(path: Path, data: Any, kind: Any, where: str) -> None:
    """Reports unknown keys, each with the most similar known key (msgspec's errors lack it)."""
    if typing.get_origin(kind) is typing.Literal:
        known = typing.get_args(kind)
        if data not in known and type(data) is type(known[0]):
            nearest = none_of(str(data), [str(each) for each in known if each != ""])
            raise AutoscoutError(f"{path}: {where} = {data!r}{nearest}", 2)
    if isinstance(kind, types.GenericAlias) and typing.get_origin(kind) is list and isinstance(data, list):
        for i, item in enumerate(data):
            _check_keys(path, item, typing.get_args(kind)[0], f"{where}[{i}]")
    if isinstance(kind, types.GenericAlias) and typing.get_origin(kind) is dict and isinstance(data, dict):
        for key, item in data.items():
            _check_keys(path, item, typing.get_args(kind)[1], f"{where}.{key}")
            try:
                msgspec.convert(item, typing.get_args(kind)[1])
            except msgspec.ValidationError as error:  # msgspec's error does not name the key inside a table
                raise AutoscoutError(f"{path}: {_in_words(error, f'{where}.{key}')}", 2) from error
    if isinstance(kind, types.UnionType):  # an optional struct: take the struct
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


def _check_values(path: Path, data: Any, where: str) -> None:
    """Rejects infinity and nan, because journals (JSON) cannot contain them, and the NUL character, because paths
    cannot contain it."""
    if isinstance(data, float) and not math.isfinite(data):
        raise AutoscoutError(f"{path}: {where} = {data} must be a finite number", 2)
    if isinstance(data, str) and "\0" in data:
        raise AutoscoutError(f"{path}: {where} = {data!r} contains a NUL character; remove it", 2)
    if isinstance(data, dict):
        for key, item in data.items():
            _check_values(path, item, f"{where}.{key}".removeprefix("."))
    if isinstance(data, list):
        for i, item in enumerate(data):
            _check_values(path, item, f"{where}[{i}]")


def _in_words(error: msgspec.ValidationError, within: str) -> str:
    """Returns an error of msgspec in a readable form: "Expected `int`, got `str` - at `$.layers`" in the table "model"
    becomes "model.layers: expected `int`, got `str`"."""
    message, _, where = str(error).partition(" - at ")
    key = f"{within}{where.strip('`').removeprefix('$')}".removeprefix(".")
    if missing := re.fullmatch(r"Object missing required field `(.*)`", message):
        return f"the key {key + '.' if key else ''}{missing[1]} is missing"
    return f"{key + ': ' if key else ''}{message[0].lower()}{message[1:]}"
