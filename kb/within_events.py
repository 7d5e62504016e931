"""What events of the journal hold more than one of."""

import msgspec

from kb.records import Value


class ValueBelief(msgspec.Struct, frozen=True, kw_only=True):
    """One value of a knob (None: the knob is off): what the best configuration with it is believed to cost, in times
    the best measured cost, with its 95 % interval; the chance that it runs; how many with it were measured."""

    value: Value | None
    cost: float
    low: float
    high: float
    runs: float
    measured: int


class WarmSource(msgspec.Struct, frozen=True, kw_only=True):
    """One similar job that something was carried over from."""

    job: str
    cluster: str
    distance: float
    rows: int
    failures: int
    orderings: int
