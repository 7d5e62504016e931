"""Knowledge from an earlier job for the search of a new one."""

import msgspec

from kb.records import Configuration


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """Measured rows of one earlier job, and the tree orderings that won there. A strategy must find out by itself
    whether they help or mislead: `distance` (0: the same job; from kb/similar.py) is only a starting point."""

    name: str
    distance: float
    rows: list[tuple[Configuration, float | None]]  # cost, lower is better; None: failed
    orderings: list[list[str]] = []
    broken: list[tuple[Configuration, float]] = []  # (configuration, cost) of runs that broke a constraint there
