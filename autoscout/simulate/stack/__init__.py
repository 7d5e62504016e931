"""Whole clusters as columns: multi-dimensional networks, their collectives, transformers on them, cost and power."""

import hashlib
from pathlib import Path


def parts_version() -> str:
    """Version of the models and prices: only designs of the same version are comparable."""
    folder = Path(__file__).parent
    files = [*sorted(folder.glob("*.py")), folder / "parts.toml", folder.parent / "hardware" / "fabric.py"]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]
