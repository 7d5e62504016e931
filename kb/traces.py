"""Shadow traces, kept next to the knowledge base: one file per rank, named by a hash of everything that determines it.

The same flags, world size, rank, device, versions and code give the same trace, so a repeated request is answered from
here. A file that cannot be read is traced anew.
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
    """Saves a trace. If the disk is full or read-only, it is just traced again later."""
    path = folder(kb) / f"{key}.json.gz"
    part = path.with_suffix(f".{os.getpid()}.part")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(gzip.compress(msgspec.json.encode(trace), 4))
        os.replace(part, path)
