"""Shadow traces beside the knowledge base: one file a rank, named by a hash of all that it follows from.

What is asked again is answered from here: the same flags, world size, rank, device, versions and code trace the same.
A file that cannot be read is traced anew.
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
    """A disk that is full or read-only costs tracing it again, nothing else."""
    path = folder(kb) / f"{key}.json.gz"
    part = path.with_suffix(f".{os.getpid()}.part")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(gzip.compress(msgspec.json.encode(trace), 4))
        os.replace(part, path)
