"""Builds parts of messages: lists, and suggestions for unknown names."""

import difflib
from collections.abc import Iterable
from typing import Any

PLAIN = "the plain run"  # the name of the only configuration of a job without knobs


def nearest_name(name: str, known: Iterable[str], listing: Iterable[str] = ()) -> str:
    """Returns the end of a message that begins with an unknown name: " is unknown; did you mean 'mbs'?" `listing`:
    names to list if no known name is similar (default: all known names)."""
    return f" is unknown{meant(name, known, listing)}"


def meant(name: str, known: Iterable[str], listing: Iterable[str] = ()) -> str:
    """Like `nearest_name`, for a message that already states that the name is unknown."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else f"; known: {listed(sorted(listing or known))}"


def none_of(name: str, known: Iterable[str]) -> str:
    """Returns the end of a message about a value that is not one of a few allowed names."""
    few = list(known)
    close = difflib.get_close_matches(name, few, n=1, cutoff=0.5)
    return f" is not one of {listed(few)}" + (f"; did you mean '{close[0]}'?" if close else "")


def several(count: int, what: str) -> str:
    """Returns a count with its noun, such as "1 row" or "2,000 rows"."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def listed(values: Any) -> str:
    return ", ".join(str(v).lower() if isinstance(v, bool) else str(v) for v in values)
