"""Valid job names, and job names derived from other names."""

import re

LONGEST_NAME = 170  # in characters; file names of sessions consist of the job's name and a suffix


def is_name(text: str) -> bool:
    return len(text) <= LONGEST_NAME and bool(re.fullmatch(r"[A-Za-z0-9][\w.-]*", text, re.ASCII))


def as_name(text: str, otherwise: str) -> str:
    """Derives a job name from the name of a file, folder or model; `otherwise` if no allowed character is left."""
    return re.sub(r"[^\w.-]", "-", text, flags=re.ASCII).lstrip("-_.")[:LONGEST_NAME] or otherwise
