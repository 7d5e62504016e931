"""Parses durations such as "1h30m"."""

import re

from kb.records import AutoscoutError

_PART = re.compile(r"(\d+(?:\.\d+)?)([hms])")
_DURATION = re.compile(r"(?=.)(\d+(\.\d+)?h)?(\d+(\.\d+)?m)?(\d+(\.\d+)?s)?")


def seconds(duration: str) -> float:
    """Converts "90s", "20m", "1.5h" or "1h30m" to seconds, and "" to infinity. Errors: AutoscoutError (exit 2)."""
    if not duration:
        return float("inf")
    if not _DURATION.fullmatch(duration):
        raise AutoscoutError(f"'{duration}' is not a duration; write 90s, 20m, 1.5h or 1h30m", 2)
    return sum(float(number) * {"s": 1, "m": 60, "h": 3600}[unit] for number, unit in _PART.findall(duration))
