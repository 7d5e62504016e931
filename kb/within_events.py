"""Building blocks of journal events: their base class, and parts of which an event has several."""

import msgspec

from kb.records import Value


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    at: float = 0.0


class ValueBelief(msgspec.Struct, frozen=True, kw_only=True):
    """One value of a knob (None: the knob is off): the expected cost of the best configuration with it, relative to the
    best measured cost, with a 95 % interval; the probability that it runs; how many measured ones have the value."""

    value: Value | None
    cost: float
    low: float
    high: float
    runs: float
    measured: int


class WarmSource(msgspec.Struct, frozen=True, kw_only=True):
    """One similar job from which something was carried over."""

    job: str
    cluster: str
    distance: float
    rows: int
    failures: int
    orderings: int


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A metric of both sides of a gate: medians, and the mean ratio b / a with its 95 % interval for a single look."""

    name: str
    a: float
    b: float
    ratio: float
    low: float | None = None
    high: float | None = None
