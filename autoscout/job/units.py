"""Conversion of units. A value is converted only if its own unit and the wanted unit are stated."""

import re

from kb.records import AutoscoutError

_TIME = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_SIZE = {"bytes": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30}
_QUANTITY = re.compile(r"^\s*(\d+\.?\d*(?:[eE][+-]?\d+)?)\s*([A-Za-z]+)\s*$")
_SPELLINGS = {
    **dict.fromkeys(("sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("msec", "msecs", "millis", "millisecond", "milliseconds"), "ms"),
    **dict.fromkeys(("nsec", "nsecs", "nanosecond", "nanoseconds"), "ns"),
    **dict.fromkeys(("usec", "usecs", "µs", "μs", "microsecond", "microseconds"), "us"),
    **dict.fromkeys(("mins", "minute", "minutes"), "min"),
    **dict.fromkeys(("hr", "hrs", "hour", "hours"), "h"),
    "b": "bytes",
}


def unit_of(name: str) -> str:
    """Returns the unit at the end of a column's name; "" if there is none, as in rates such as tokens_per_s."""
    lower = name.lower().strip().rstrip(")").replace(" (", "_").replace("(", "_").replace(" ", "_")
    if lower.endswith(("_per_s", "_rps", "/s")):
        return ""
    last = lower.rpartition("_")[2]
    last = _SPELLINGS.get(last, last)
    return last if last in _TIME or last in _SIZE else ""


def quantity(text: str, wanted: str) -> float | None:
    """Converts a text such as "12 ms" to the unit `wanted`; None if the text has no unit, or a unit of a different
    kind."""
    match = _QUANTITY.match(text)
    unit = _SPELLINGS.get(match[2].lower(), match[2].lower()) if match else ""
    for kind in (_TIME, _SIZE):
        if match and unit in kind and wanted in kind:
            return float(match[1]) * kind[unit] / kind[wanted]
    return None


def factor(column: str, unit: str, wanted: str) -> float:
    """Returns the factor that converts a value in `unit` to `wanted`. Errors: AutoscoutError (exit 2) for an unknown
    unit."""
    unit = _SPELLINGS.get(unit.lower(), unit.lower())
    for kind in (_TIME, _SIZE):
        if unit in kind and wanted in kind:
            # Division gives exactly 1 for equal units and exactly 0.001 for a thousandth; multiplication would give
            # 0.0009999….
            return kind[unit] / kind[wanted]
    known = ", ".join((*_TIME, *_SIZE))
    raise AutoscoutError(f"column {column}: '{unit}' cannot be converted to {wanted}; known units: {known}", 2)
