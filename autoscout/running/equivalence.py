"""The equivalence check: a configuration must not only be fast, but compute the same as the reference.

Before a server is put under load, it answers a fixed set of prompts greedily; the tokens must match those of the
reference.

All layouts of a training job start from the same weights and see the same batches (worker/weights.py and
worker/batches.py), so their first losses and gradient norms may differ only by rounding.
"""

import itertools
import math
from typing import Protocol

import msgspec

from kb.records import Guard, Measurement

# Tolerated relative deviations: (of the first loss; of later losses; of the first gradient norm; of later norms), for a
# model of width 1024 and depth 8. In bf16, they grow with the square root of width and of depth. From the measurements
# in fixtures/recorded/guard.csv, shown in docs/lab/gpu-check.md (a table written by tests/tools/guard_table.py).
TOLERANCES = {"fp32": (1e-5, 1e-5, 2e-4, 2e-4), "bf16": (1e-3, 1e-3, 5e-3, 1e-2)}
_WIDTH, _DEPTH = 1024, 8
GUARDED = 4  # number of prompts, see targets/vllm/worker/prompts.py
# The smallest accepted share of a greedy answer's tokens before the first token that differs from the reference's. In
# measurements with the same number format, answers did not depend on batch limit, block size and speculation; with an
# 8-bit KV cache, answers of random weights diverged after a tenth to a fifth of their tokens. A wrong engine diverges
# at the first token.
_SAME_FORMAT, _OTHER_FORMAT = 0.75, 0.03
_FORMATS = ("kv_cache_dtype", "quantization")  # knobs that set a number format
# Environment key of the user's training settings, if they differ from those of the search. Such runs are not compared,
# because with dropout or a balanced router, losses differ by design.
SETTINGS = "settings"
QUALITY = "quality"  # the metric that a user's own check reports (tuning/quality.py)
_COMPARED = 3  # losses compared per run; worker/train.py trains at least this many steps


class Check(Protocol):
    """Decides whether two runs computed the same results."""

    def flaw(self, measured: Measurement) -> str:
        """The reason why a run's own numbers are wrong (NaN, for example), regardless of other runs; "" if they may be
        right."""
        ...

    def compare(self, reference: Measurement, measured: Measurement) -> str:
        """A description of how the results differ; "" if they agree."""
        ...


class Losses:
    """For training: compares the first losses and gradient norms, within the tolerance of a number format.

    The first loss and norm are computed from identical weights; later ones also differ by the rounding errors of the
    optimizer steps in between."""

    def __init__(self, dtype: str, hidden: int = 0, layers: int = 0) -> None:
        grown = math.sqrt(max(1.0, hidden / _WIDTH) * max(1.0, layers / _DEPTH)) if dtype != "fp32" else 1.0
        first, later, first_norm, later_norms = (value * grown for value in TOLERANCES[dtype])
        self.losses, self.norms = (first, later), (first_norm, later_norms)

    def flaw(self, measured: Measurement) -> str:
        return _flaw("losses", measured.losses) or _flaw("gradient norms", measured.grad_norms)

    def compare(self, reference: Measurement, measured: Measurement) -> str:
        if SETTINGS in reference.environment or SETTINGS in measured.environment:
            return ""
        return _compare("losses", reference.losses, measured.losses, self.losses) or _compare(
            "gradient norms", reference.grad_norms, measured.grad_norms, self.norms
        )


class Answers:
    """For serving: compares greedy answers to a fixed set of prompts. All answers have the same number of tokens."""

    def flaw(self, measured: Measurement) -> str:
        return _flaw("greedy answers", measured.losses)

    def compare(self, reference: Measurement, measured: Measurement) -> str:
        expected, found = reference.losses, measured.losses
        if len(found) != len(expected):
            return f"greedy answers have {len(found)} tokens, expected {len(expected)}"
        length = max(1, len(expected) // GUARDED)
        alike = 0
        for start in range(0, len(expected), length):
            pairs = zip(expected[start : start + length], found[start : start + length], strict=True)
            alike += len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
        same_format = all(
            reference.configuration.knobs.get(name) == measured.configuration.knobs.get(name) for name in _FORMATS
        )
        needed = _SAME_FORMAT if same_format else _OTHER_FORMAT
        share = alike / max(1, len(expected))
        if share >= needed:
            return ""
        return (
            f"greedy answers differ: {share:.0%} of their tokens match the reference's up to the first that differs, "
            f"but at least {needed:.0%} must: expected {_series(expected[:8])}…, found {_series(found[:8])}…"
        )


class IfTold:
    """For runs that may lack losses: applies another check if both runs report losses, otherwise accepts the run."""

    def __init__(self, check: Check) -> None:
        self._check = check

    def flaw(self, measured: Measurement) -> str:
        return self._check.flaw(measured) if measured.losses else ""

    def compare(self, reference: Measurement, measured: Measurement) -> str:
        return self._check.compare(reference, measured) if reference.losses and measured.losses else ""


class Floor:
    """For runs with a score from the user's own quality check (`guard`): applies the limits of `guard`, then another
    check."""

    def __init__(self, check: Check, guard: Guard) -> None:
        self._check, self._guard = check, guard

    def flaw(self, measured: Measurement) -> str:
        number, least, most = measured.metrics.get(QUALITY), self._guard.at_least, self._guard.at_most
        if number is not None and least is not None and not number >= least:
            return f"guard.command reports {number:g}, but at least {least:g} is required"
        if number is not None and most is not None and not number <= most:
            return f"guard.command reports {number:g}, but at most {most:g} is allowed"
        return self._check.flaw(measured)

    def compare(self, reference: Measurement, measured: Measurement) -> str:
        return self._check.compare(reference, measured)


def judge(check: Check, reference: Measurement, measured: Measurement) -> Measurement:
    """Returns the measurement. If it is "ok" but disagrees with the reference, its status becomes "wrong", with
    evidence."""
    if measured.status != "ok":
        return measured
    evidence = check.compare(reference, measured)
    return msgspec.structs.replace(measured, status="wrong", evidence=evidence) if evidence else measured


class Reference:
    """The run with which other runs are compared. It is the run of the expert default if that works, or else the first
    run that agrees with a run of a different configuration. (A repeat of the same configuration would agree even if
    both were wrong.)

    Before that agreement, the first run may be wrong and make correct runs look wrong, so runs that disagree with it
    are kept as alternative references.
    """

    def __init__(self, check: Check, default_id: str) -> None:
        """`default_id`: the id of the expert default's configuration."""
        self.measurement: Measurement | None = None
        self._check = check
        self._default_id = default_id
        self._supporters = 0
        self._challengers: list[Measurement] = []

    def judge(self, measurement: Measurement) -> Measurement:
        if measurement.status != "ok":
            return measurement
        reference = self.measurement
        if problem := self._check.flaw(measurement):
            return msgspec.structs.replace(measurement, status="wrong", evidence=problem)
        if reference is None:
            self.measurement = measurement
            return measurement
        judged = judge(self._check, reference, measurement)
        if judged.status == "ok":
            self._supporters += _differ(reference, measurement)
            return judged
        default_is_reference = reference.configuration.id == self._default_id
        if measurement.configuration.id == self._default_id and not default_is_reference:
            self.measurement, self._supporters = measurement, 0
            return measurement
        if default_is_reference or self._supporters:
            return judged
        for challenger in self._challengers:
            if _differ(challenger, measurement) and not self._check.compare(challenger, measurement):
                self.measurement, self._supporters = challenger, 1
                return measurement
        self._challengers.append(measurement)
        return judged

    def rejudge(self, measurement: Measurement) -> Measurement:
        """Like judge(), for a run of an earlier session, which may have found the run wrong by comparison with a
        different reference."""
        if measurement.status == "wrong":
            measurement = msgspec.structs.replace(measurement, status="ok", evidence="")
        return self.judge(measurement)


def _differ(one: Measurement, other: Measurement) -> bool:
    return one.configuration.id != other.configuration.id


def _flaw(what: str, found: list[float]) -> str:
    if len(found) < _COMPARED:
        return f"{what} are missing: expected {_COMPARED}, found {_series(found)}"
    return "" if all(math.isfinite(value) for value in found) else f"{what} are not finite: found {_series(found)}"


def _compare(what: str, expected: list[float], found: list[float], tolerances: tuple[float, float]) -> str:
    """A description of how two series differ; "" if they agree. `tolerances`: (for the first step, for later steps).
    A series has one value for each of _COMPARED steps, and may be followed by another such series (experts' norms)."""
    if not found or len(found) < len(expected):
        return f"{what} are missing: expected {_series(expected)}, found {_series(found)}"
    if not all(math.isfinite(value) for value in found):
        return f"{what} are not finite: expected {_series(expected)}, found {_series(found)}"
    for number, (wanted, value) in enumerate(zip(expected, found, strict=False)):
        deviation, allowed = deviates(wanted, value), tolerances[number % _COMPARED > 0]
        if deviation > allowed:
            step = number % _COMPARED + 1
            return (
                f"{what} deviate by {deviation:.2g} in step {step} (allowed {allowed:.2g}): "
                f"expected {_series(expected)}, found {_series(found)}"
            )
    return ""


def deviates(wanted: float, value: float) -> float:
    return abs(value - wanted) / max(abs(wanted), 1e-12)


def _series(values: list[float]) -> str:
    return "[" + ", ".join(f"{value:.5g}" for value in values) + "]"
