"""Normalizes the headers of tables, which people write in many ways."""

import re

_BETWEEN = re.compile(r"[\s\-()\[\]]+")
_PER_SECOND = re.compile(r"(?:_?/_?|_per_)s(?:ec(?:onds?)?)?(?![a-z])")
_PER_DEVICE = re.compile(r"(?<=_per_s)_?/_?(?=(?:gpu|device)(?![a-z]))")


def header(text: str) -> str:
    """Returns lower case words joined by underscores: "Step Time (s)" → step_time_s, "tokens/sec" → tokens_per_s."""
    words = _BETWEEN.sub("_", text.strip().lower()).strip("_") or text.strip().lower()
    return _PER_DEVICE.sub("_per_", _PER_SECOND.sub("_per_s", words))
