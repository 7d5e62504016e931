"""The names that jobs may have."""

import re

LONGEST_NAME = 170  # of a job, in characters: its sessions' names, which name files, are longer


def is_name(text: str) -> bool:
    """Whether a job may be called so."""
    return len(text) <= LONGEST_NAME and bool(re.fullmatch(r"[A-Za-z0-9][\w.-]*", text, re.ASCII))


def as_name(text: str, otherwise: str) -> str:
    """A name for a job, made from that of a file, a folder or a model; `otherwise` where nothing is left of it."""
    return re.sub(r"[^\w.-]", "-", text, flags=re.ASCII).lstrip("-_.")[:LONGEST_NAME] or otherwise
