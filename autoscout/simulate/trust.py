"""The guard (AutoScout paper, §3.3) decides whether simulations may replace experiments: it allows this while the MAPE
of the last checks (simulated configurations that were also measured) is at most a tolerance ε. Beyond the paper, it
also judges regions (all configurations with one value of a knob) by the checks within the region."""

from collections import deque
from collections.abc import Mapping

import msgspec

from kb.records import Value

_REGION_CHECKS = 2  # checks that a region needs before it is judged separately; one may be an outlier


class TrustCheck(msgspec.Struct, frozen=True):
    """One simulated configuration that was also measured. `error`: |predicted / measured − 1|."""

    knobs: dict[str, Value]
    error: float


class Region(msgspec.Struct, frozen=True):
    """The checks in which a knob has a certain value. `mape`: MAPE of these checks; `elsewhere`: MAPE of all other
    checks, None if there are none."""

    knob: str
    value: Value
    mape: float
    checks: int
    elsewhere: float | None


class TrustVerdict(msgspec.Struct, frozen=True):
    simulate: bool
    why: str


class TrustGuard:
    def __init__(self, epsilon: float, window: int) -> None:
        self.epsilon = epsilon
        self.errors: deque[float] = deque(maxlen=window)
        self.checks: list[TrustCheck] = []

    def check(self, predicted: float, measured: float | None, knobs: Mapping[str, Value] | None = None) -> float:
        """Adds one check; returns the MAPE of the last `window` checks, as a fraction. `measured` None: the
        configuration was predicted to run but failed, which counts as an error of 100 %."""
        error = 1.0 if measured is None else abs(predicted - measured) / abs(measured)
        self.errors.append(error)
        self.checks.append(TrustCheck(dict(knobs or {}), error))
        return self.mape

    @property
    def mape(self) -> float:
        return sum(self.errors) / len(self.errors) if self.errors else 0.0

    @property
    def trusted(self) -> bool:
        return self.mape <= self.epsilon

    @property
    def why(self) -> str:
        """The guard's decision and its reason, as text."""
        n = len(self.errors)
        checks = "check" if n == 1 else f"{n} checks"
        if n == 0:
            return "the simulators have not been checked yet"
        if self.trusted:
            return (
                f"the simulators err by {self.mape:.0%} over the last {checks}, within the tolerated ε = "
                f"{self.epsilon:.0%}"
            )
        text = (
            f"the simulators err by {self.mape:.0%} over the last {checks}, more than the tolerated ε = "
            f"{self.epsilon:.0%}"
        )
        worst = max(self.regions(), key=lambda r: r.mape, default=None)
        if worst is not None and worst.elsewhere is not None and worst.elsewhere <= self.epsilon < worst.mape:
            text += f"; where {_named(worst)}, they err by {worst.mape:.0%}, elsewhere by {worst.elsewhere:.0%}"
        return text

    def regions(self) -> list[Region]:
        """For each knob, the value whose MAPE most exceeds the MAPE of the knob's other values; sorted by decreasing
        excess."""
        found = []
        for knob in sorted({k for check in self.checks for k in check.knobs}):
            candidates = [self._region(knob, v) for v in _values(self.checks, knob)]
            told = [r for r in candidates if r.checks >= _REGION_CHECKS and r.elsewhere is not None]
            if told:
                found.append(max(told, key=_contrast))
        return sorted(found, key=_contrast, reverse=True)

    def verdict(self, knobs: Mapping[str, Value]) -> TrustVerdict:
        """Whether to simulate or to measure this configuration, and why. It is measured if the overall MAPE or that of
        one of its regions exceeds ε; an accurate region never outweighs a bad overall MAPE."""
        if not self.trusted:
            return TrustVerdict(False, self.why)
        for region in self.regions():
            if knobs.get(region.knob) == region.value and region.mape > self.epsilon:
                return TrustVerdict(
                    False,
                    f"where {_named(region)} the simulators err by {region.mape:.0%} ({region.checks} checks), "
                    f"more than the tolerated ε = {self.epsilon:.0%}",
                )
        unseen = [f"{k} {_shown(v)}" for k, v in knobs.items() if self.checks and v not in _values(self.checks, k)]
        if unseen:
            return TrustVerdict(True, f"{self.why}; no checked configuration had {', '.join(unseen)}")
        return TrustVerdict(True, self.why)

    def _region(self, knob: str, value: Value) -> Region:
        inside = [c.error for c in self.checks if c.knobs.get(knob) == value]
        outside = [c.error for c in self.checks if c.knobs.get(knob) != value]
        elsewhere = sum(outside) / len(outside) if outside else None
        return Region(knob, value, sum(inside) / len(inside), len(inside), elsewhere)


def _values(checks: list[TrustCheck], knob: str) -> list[Value]:
    return list(dict.fromkeys(c.knobs[knob] for c in checks if knob in c.knobs))


def _contrast(region: Region) -> float:
    return region.mape - (region.elsewhere or 0.0)


def _named(region: Region) -> str:
    return f"{region.knob} is {_shown(region.value)}"


def _shown(value: Value) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
