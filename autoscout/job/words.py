"""Parts of sentences for people: lists, and the known name nearest to an unknown one."""

import difflib
from collections.abc import Iterable
from typing import Any


def nearest_name(name: str, known: Iterable[str], listing: Iterable[str] = ()) -> str:
    """Ends a sentence that begins with an unknown name: "… is unknown; did you mean 'mbs'?" `listing`: the names to
    list if no known one is near, if not all known names."""
    return f" is unknown{meant(name, known, listing)}"


def meant(name: str, known: Iterable[str], listing: Iterable[str] = ()) -> str:
    """Like `nearest_name`, for a sentence that already says that there is no such name."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else f"; known: {listed(sorted(listing or known))}"


def none_of(name: str, known: Iterable[str]) -> str:
    """Continues a sentence about a value that must be one of a few names."""
    few = list(known)
    close = difflib.get_close_matches(name, few, n=1, cutoff=0.5)
    return f" is not one of {listed(few)}" + (f"; did you mean '{close[0]}'?" if close else "")


def several(count: int, what: str) -> str:
    """ "1 row", "2,000 rows"."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def listed(values: Any) -> str:
    return ", ".join(str(v).lower() if isinstance(v, bool) else str(v) for v in values)
