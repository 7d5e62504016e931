"""The names that jobs may have, and names made from other texts."""

import re

LONGEST_NAME = 170  # of a job, in characters; sessions' names, which become file names, are longer


def is_name(text: str) -> bool:
    """Whether a job may have this name."""
    return len(text) <= LONGEST_NAME and bool(re.fullmatch(r"[A-Za-z0-9][\w.-]*", text, re.ASCII))


def as_name(text: str, otherwise: str) -> str:
    """A job's name made from that of a file, a folder or a model; `otherwise` if no allowed character is left."""
    return re.sub(r"[^\w.-]", "-", text, flags=re.ASCII).lstrip("-_.")[:LONGEST_NAME] or otherwise
