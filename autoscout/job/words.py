"""Parts of sentences for people: lists, and the known name nearest to an unknown one; and the names of jobs."""

import difflib
import re
from collections.abc import Iterable
from typing import Any

LONGEST_NAME = 170  # of a job, in characters: its sessions' names, which name files, are longer


def is_name(text: str) -> bool:
    """Whether a job may be called so."""
    return len(text) <= LONGEST_NAME and bool(re.fullmatch(r"[A-Za-z0-9][\w.-]*", text, re.ASCII))


def as_name(text: str, otherwise: str) -> str:
    """A name for a job, made from that of a file, a folder or a model; `otherwise` where nothing is left of it."""
    return re.sub(r"[^\w.-]", "-", text, flags=re.ASCII).lstrip("-_.")[:LONGEST_NAME] or otherwise


def nearest_name(name: str, known: Iterable[str]) -> str:
    """Continues a sentence about an unknown name: "did you mean …?", or a list of the known ones."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return (
        f", which is unknown; did you mean '{close[0]}'?"
        if close
        else f", which is unknown; known: {listed(sorted(known))}"
    )


def none_of(name: str, known: Iterable[str]) -> str:
    """Continues a sentence about what is none of a few names."""
    few = list(known)
    close = difflib.get_close_matches(name, few, n=1, cutoff=0.5)
    return f" is none of {listed(few)}" + (f"; did you mean '{close[0]}'?" if close else "")


def listed(values: Any) -> str:
    return ", ".join(str(v).lower() if isinstance(v, bool) else str(v) for v in values)
