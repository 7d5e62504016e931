"""Reads TensorBoard event files and W&B offline runs without the packages of these tools.

Both are sequences of protocol buffer records. Only the needed fields are parsed; a truncated last record is skipped."""

import json
import struct
from array import array
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

Field = tuple[int, Any]  # (field number, an integer or the bytes of anything else)
# sizes in W&B's format, in bytes. _BLOCK: a block; _HEAD: the file's header, and also the header of a record's fragment
_BLOCK, _HEAD = 32768, 7
_FULL, _LAST = 1, 4  # fragment types: whole record, last fragment (2 is a first fragment, 3 a middle one)


def tensorboard(path: Path) -> dict[str, Any]:
    """Returns {"series": {tag: values in order}, "hparams": the plugin's data, "began", "ended": unix seconds}.

    Errors: ValueError if the file is not an event file."""
    series: dict[str, array[float]] = defaultdict(lambda: array("d"))
    found: dict[str, Any] = {"series": series, "hparams": {}, "began": None, "ended": None}
    with open(path, "rb") as file:
        for number, record in enumerate(_framed(file)):
            if not number and b"brain.Event:" not in record:
                raise ValueError("is not an event file of TensorBoard")
            for field, content in _fields(record):
                if field == 1:
                    [at] = struct.unpack("<d", content)
                    found["began"] = found["began"] or at
                    found["ended"] = at
                elif field == 5:
                    for each, value in _fields(content):
                        if each == 1:
                            _of_summary(list(_fields(value)), series, found)
    if found["began"] is None:
        raise ValueError("is not an event file of TensorBoard")
    return found


def wandb(path: Path) -> dict[str, Any]:
    """Returns {"series": {key: values in order}, "config", "summary", "exit_code" (None: not ended yet), "runtime"
    (seconds), "began" (unix seconds), "name", "project", "version" (W&B's)}. Errors: ValueError if the file is not a
    W&B run."""
    series: dict[str, array[float]] = defaultdict(lambda: array("d"))
    found: dict[str, Any] = {"series": series, "config": {}, "summary": {}, "exit_code": None, "began": None}
    with open(path, "rb") as file:
        if file.read(4) != b":W&B":
            raise ValueError("is not a W&B run")
        file.seek(_HEAD)
        for record in _of_blocks(file):
            for field, content in _fields(record):
                _of_wandb(field, content, found)
    return found


def _of_wandb(field: int, content: Any, found: dict[str, Any]) -> None:
    match field:
        case 2:  # a step of the run's history
            for _, item in (each for each in _fields(content) if each[0] == 1):
                key, value = _item(item)
                if isinstance(value, int | float) and not isinstance(value, bool) and key[:1] != "_":
                    found["series"][key].append(value)
        case 3 | 5:  # the run's summary or its config
            _updated(found["summary" if field == 3 else "config"], content)
        case 17:  # the run's metadata
            for number, value in _fields(content):
                if number == 4:
                    _updated(found["config"], value)
                elif number in (3, 8):
                    found["project" if number == 3 else "name"] = value.decode(errors="replace")
                elif number == 17:
                    seconds = dict(_fields(value))
                    found["began"] = seconds.get(1, 0) + seconds.get(2, 0) / 1e9
        case 18:  # exit code; protocol buffers omit a field with value 0
            fields = dict(_fields(content))
            found["exit_code"], found["runtime"] = fields.get(1, 0), fields.get(2, 0)
        case 21:  # header, with the version of W&B that wrote the file
            found["version"] = next((dict(_fields(v)).get(1, b"").decode() for n, v in _fields(content) if n == 1), "")


def _updated(table: dict[str, Any], content: bytes) -> None:
    for number, item in _fields(content):
        if number == 1:
            key, value = _item(item)
            if not key.startswith("_"):
                table[key] = value


def _item(content: bytes) -> tuple[str, Any]:
    key, nested, value = "", [], b"null"
    for number, part in _fields(content):
        if number == 1:
            key = part.decode(errors="replace")
        elif number == 2:
            nested.append(part.decode(errors="replace"))
        elif number == 16:
            value = part
    return key or ".".join(nested), json.loads(value)


def _of_summary(value: list[Field], series: dict[str, Any], found: dict[str, Any]) -> None:
    fields = dict(value)
    tag = fields.get(1, b"").decode(errors="replace")
    if 2 in fields:
        series[tag].append(struct.unpack("<f", fields[2])[0])
    elif 8 in fields:
        tensor = dict(_fields(fields[8]))
        content, kind = tensor.get(4) or tensor.get(5) or tensor.get(6) or b"", tensor.get(1)
        size = {1: "<f", 2: "<d"}.get(kind if isinstance(kind, int) else 0, "")
        if size and len(content) == struct.calcsize(size):
            series[tag].append(struct.unpack(size, content)[0])
    elif 9 in fields:
        plugin = dict(_fields(dict(_fields(fields[9])).get(1, b"")))
        if plugin.get(1) == b"hparams":
            _of_hparams(plugin.get(2, b""), found["hparams"])


def _of_hparams(content: bytes, into: dict[str, Any]) -> None:
    for _, session in (each for each in _fields(content) if each[0] == 3):
        for _, entry in (each for each in _fields(session) if each[0] == 1):
            pair = dict(_fields(entry))
            for kind, value in _fields(pair.get(2, b"")):
                known = {2: lambda v: struct.unpack("<d", v)[0], 3: lambda v: v.decode(errors="replace"), 4: bool}
                if kind in known:
                    into[pair.get(1, b"").decode(errors="replace")] = known[kind](value)


def _framed(file: IO[bytes]) -> Iterator[bytes]:
    """Yields TensorBoard's records, each stored as length, checksum, data, checksum."""
    while len(head := file.read(12)) == 12:
        length = struct.unpack("<Q", head[:8])[0]
        if length > 2**28:
            raise ValueError("is not an event file of TensorBoard")
        content = file.read(length + 4)
        if len(content) < length + 4:
            return
        yield content[:length]


def _of_blocks(file: IO[bytes]) -> Iterator[bytes]:
    """Yields records of LevelDB's log format, which splits a record into fragments at block boundaries."""
    parts: list[bytes] = []
    while True:
        left = _BLOCK - file.tell() % _BLOCK
        if left < _HEAD:
            file.seek(left, 1)
        head = file.read(_HEAD)
        if len(head) < _HEAD:
            return
        length, kind = struct.unpack("<HB", head[4:])
        content = file.read(length)
        if len(content) < length:
            return
        parts.append(content)
        if kind in (_FULL, _LAST):
            yield b"".join(parts)
            parts = []


def _fields(content: bytes) -> Iterator[Field]:
    """Yields the fields of a protocol buffer message. Errors: ValueError if the bytes are not such a message."""
    at = 0
    while at < len(content):
        key, at = _varint(content, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = _varint(content, at)
            yield number, value
            continue
        if kind == 2:
            length, at = _varint(content, at)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ValueError("is not a protocol buffer")
        yield number, content[at : at + length]
        at += length


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(content):
        byte = content[at]
        value |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return value, at
        shift += 7
    raise ValueError("is not a protocol buffer")
