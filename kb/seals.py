"""Seals of a journal: each line has a hash of its own text and of the previous line's seal, so that changed, removed or
added lines are detected. Somebody may recompute all seals, which only a signature detects (sharing/signatures.py).
"""

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

_SEAL = re.compile(rb',"seal":"([0-9a-f]{32})"}$')


class Seals(msgspec.Struct, frozen=True):
    unsigned: int  # lines without a seal, written by an older AutoScout
    broken: int  # number, from 1, of the first line whose seal is wrong or missing; 0: none

    @property
    def sentence(self) -> str:
        """A sentence on what is wrong; "" if all seals are right."""
        if self.broken:
            return f"line {self.broken} was changed after it was written"
        return f"{self.unsigned} lines are unsigned, because an older AutoScout wrote them" if self.unsigned else ""


def sealed(line: bytes, before: str) -> tuple[bytes, str]:
    """Returns a line of JSON with its seal, and the seal. `before`: the previous line's seal."""
    seal = _hash(before, line)
    return line[:-1] + b',"seal":"' + seal.encode() + b'"}', seal


def after(line: bytes) -> str:
    """The value of `before` for the next line: this line's seal, or its hash if it has no seal."""
    found = _SEAL.search(line)
    return found[1].decode() if found else _hash("", line) if line else ""


def check(path: Path, known: int = 0) -> Seals:
    """Checks a journal's seals. `known`: number of lines when it was last read, because seals do not show whether lines
    are missing at the end. Errors: OSError if the journal cannot be read."""
    with open(path, "rb") as file:
        return _check((line.rstrip(b"\n") for line in file if line.endswith(b"\n")), known)


def _check(lines: Iterable[bytes], known: int) -> Seals:
    before, unsigned, signed, number = "", 0, False, 0
    for number, line in enumerate(lines, 1):
        found = _SEAL.search(line)
        if found and found[1].decode() != _hash(before, line[: found.start()] + b"}"):
            return Seals(unsigned, number)
        if not found and signed:
            return Seals(unsigned, number)
        signed, unsigned = signed or bool(found), unsigned + (not found)
        before = after(line)
    return Seals(unsigned, number + 1 if number < known else 0)


def anew(lines: Iterable[bytes]) -> bytes:
    """Recomputes the seals of a journal in which secrets were replaced; lines without a seal get none."""
    made, before = [], ""
    for line in lines:
        found = _SEAL.search(line)
        kept, before = sealed(line[: found.start()] + b"}", before) if found else (line, after(line))
        made.append(kept + b"\n")
    return b"".join(made)


def _hash(before: str, line: bytes) -> str:
    return hashlib.sha256(before.encode() + line).hexdigest()[:32]
