"""The base class of journal events, and structs that are fields of events."""

import msgspec

from kb.records import Value


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    at: float = 0.0


class ValueBelief(msgspec.Struct, frozen=True, kw_only=True):
    """What the search believes about one value of a knob (None: the knob is inactive). `cost`: expected cost of the
    best configuration with this value, relative to the best measured cost, with the 95 % interval [`low`, `high`];
    `runs`: probability that this configuration runs; `measured`: number of measured configurations with this value."""

    value: Value | None
    cost: float
    low: float
    high: float
    runs: float
    measured: int


class WarmSource(msgspec.Struct, frozen=True, kw_only=True):
    """A similar job from which a warm start carried over knowledge."""

    job: str
    cluster: str
    distance: float
    rows: int
    failures: int
    orderings: int


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A metric of the two versions that a gate compares: their medians `a` and `b`, and the mean ratio b / a with its
    95 % interval, which is not corrected for repeated looks at the data."""

    name: str
    a: float
    b: float
    ratio: float
    low: float | None = None
    high: float | None = None
