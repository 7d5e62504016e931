"""Converts JSON of older versions of AutoScout to today's records: restores NaN and replaces terms that have changed.
kb/sharing/arrivals.py and the migrations do the same in SQL.
"""

import math
from pathlib import Path
from typing import Any

import msgspec

from kb.records import FIRST_WORDS, RECORDS, AutoscoutError

TODAY = {first: word for word, first in FIRST_WORDS.items()}


def measurement(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a measurement, read from JSON of any version, as `Measurement` has them today.

    JSON has no NaN and no infinity; msgspec writes null. Losses and other series get NaN back (the measurement's id
    stays the same, as it is made from that JSON); metrics and conditions that are null are dropped.
    """
    found = dict(fields)
    for name in ("iterations_s", "losses", "grad_norms", "rank_memory_gib"):
        if None in (values := fields.get(name, ())):
            found[name] = _with_nan(values)
    for name in ("metrics", "conditions"):
        if None in (numbers := fields.get(name, {})).values():
            found[name] = {key: x for key, x in numbers.items() if x is not None}
    if "per_rank" in fields:
        found["per_rank"] = {name: _with_nan(values) for name, values in fields["per_rank"].items()}
    if (rung := fields.get("fidelity")) in TODAY:
        found["fidelity"] = TODAY[rung]
    return found


def event(fields: dict[str, Any]) -> dict[str, Any]:
    """Like `measurement`, for the fields of a journal's event; an invalid event is returned unchanged."""
    try:
        if isinstance(fields.get("measurement"), dict):
            return {**fields, "measurement": measurement(fields["measurement"])}
        return {**fields, "to": TODAY[fields["to"]]} if fields.get("to") in TODAY else fields
    except (TypeError, AttributeError):  # a field has a wrong type
        return fields


def _with_nan(values: list[float | None]) -> list[float]:
    return [math.nan if x is None else x for x in values]


def damaged(path: Path, offset: int, error: Exception) -> AutoscoutError:
    """The error for a line that is not an event. It reports that the line is damaged, or that a newer AutoScout wrote
    the journal."""
    if (version := _written_with(path)) > RECORDS:
        return AutoscoutError(
            f"{path} was written by a newer AutoScout (record format {version}, this one reads {RECORDS}); upgrade "
            f"AutoScout",
            2,
        )
    return AutoscoutError(
        f"{path}: the line that ends at byte {offset} is not a journal event ({error}); this line is skipped", 2
    )


def _written_with(path: Path) -> int:
    """The newest format version (records.RECORDS) in any line of a journal."""
    with open(path, "rb") as file:
        return max((_records(line) for line in file if b'"records"' in line), default=0)


def _records(line: bytes) -> int:
    try:
        fields = msgspec.json.decode(line)
    except (ValueError, RecursionError):
        return 0
    version = fields.get("records", 0) if isinstance(fields, dict) else 0
    return version if isinstance(version, int) else 0
