"""Seals of a journal: each line carries a hash of its own text and of the seal before it, so that a changed, removed or
added line shows. Only a signed lake exposes somebody who recomputes all seals (sharing/signatures.py).
"""

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

_SEAL = re.compile(rb',"seal":"([0-9a-f]{32})"}$')


class Seals(msgspec.Struct, frozen=True):
    unsigned: int  # lines without a seal, written by an older AutoScout
    broken: int  # number, from 1, of the first line that does not match its seal or the line before it; 0: none

    @property
    def sentence(self) -> str:
        """ "" if the seals are intact, else what is wrong."""
        if self.broken:
            return f"line {self.broken} is not what was written there"
        return f"{self.unsigned} lines are unsigned, as an older AutoScout wrote them" if self.unsigned else ""


def sealed(line: bytes, before: str) -> tuple[bytes, str]:
    """Returns a line of JSON with its seal, and the seal; `before`: the seal of the line before it."""
    seal = _hash(before, line)
    return line[:-1] + b',"seal":"' + seal.encode() + b'"}', seal


def after(line: bytes) -> str:
    """The seal on which the next line's seal builds."""
    found = _SEAL.search(line)
    return found[1].decode() if found else _hash("", line) if line else ""


def check(path: Path, known: int = 0) -> Seals:
    """`known`: the number of lines when the journal was last read, since seals do not show that lines are missing at
    the end. Errors: OSError for a journal that cannot be read."""
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
    """The lines of a journal whose texts were changed on purpose, sealed again; lines without a seal stay without."""
    made, before = [], ""
    for line in lines:
        found = _SEAL.search(line)
        kept, before = sealed(line[: found.start()] + b"}", before) if found else (line, after(line))
        made.append(kept + b"\n")
    return b"".join(made)


def _hash(before: str, line: bytes) -> str:
    return hashlib.sha256(before.encode() + line).hexdigest()[:32]
