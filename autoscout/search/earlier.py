"""Results of an earlier job, from which the search of a new job can start."""

import msgspec

from kb.records import Configuration


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of an earlier job, and the tree orderings that won its tournaments. `distance`: dissimilarity of the
    jobs (kb/similar.py; 0: the same job), which is only a hint, so a strategy must detect whether the measurements
    mislead."""

    name: str
    distance: float
    rows: list[tuple[Configuration, float | None]]  # cost, lower is better; None: failed
    orderings: list[list[str]] = []
    broken: list[tuple[Configuration, float]] = []  # (configuration, cost) of runs that broke a constraint there
