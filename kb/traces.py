"""A cache of shadow traces (of the framework's own code with fake tensors) next to the knowledge base, with one file
per rank.

A file's name is a hash of everything that determines the trace: flags, world size, rank, device, versions and code. If
a file cannot be read, the trace is made again.
"""

import contextlib
import gzip
import os
from pathlib import Path
from typing import TypeVar

import msgspec

T = TypeVar("T")


def folder(kb: Path) -> Path:
    return kb.parent / "shadows"


def known(kb: Path, key: str, kind: type[T]) -> T | None:
    path = folder(kb) / f"{key}.json.gz"
    try:
        return msgspec.json.decode(gzip.decompress(path.read_bytes()), type=kind)
    except (OSError, EOFError, msgspec.DecodeError):
        return None


def keep(kb: Path, key: str, trace: msgspec.Struct) -> None:
    """Saves a trace. If it cannot be written, it will be made again when it is needed."""
    path = folder(kb) / f"{key}.json.gz"
    part = path.with_suffix(f".{os.getpid()}.part")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(gzip.compress(msgspec.json.encode(trace), 4))
        os.replace(part, path)
