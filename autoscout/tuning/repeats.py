"""Estimates the machine's noise from repeated runs of the reference before the final rounds. It determines how many
rounds are needed.

This module imports neither numpy nor scipy, because the first frame of the screens would have to wait for that."""

import math
from collections.abc import Sequence

import msgspec

QUIET = 0.005  # standard deviation of a log-cost on a quiet machine; dedicated systems repeat within 0.1 to 0.5 %
FLOOR = 2e-4  # lower bound on the standard deviation of a log-cost, from the precision of clocks and schedulers
_DOUBT = 0.001  # significance level of the test that a machine is not quiet
_LONG, _LONGEST = 150, 200  # the limit on rounds grows between these numbers of measured configurations


class Noise(msgspec.Struct, frozen=True):
    """Scatter of the log-cost in repeats of one configuration: sum of squares about the mean, degrees of freedom."""

    squares: float = 0.0
    dof: int = 0

    @property
    def quiet(self) -> bool:
        """Whether the repeats are consistent with a dedicated system; False without repeats."""
        return self.dof > 0 and beyond(self.squares / QUIET**2, self.dof) >= _DOUBT

    @staticmethod
    def of(costs: Sequence[float]) -> "Noise":
        if not len(costs):
            return Noise()
        logs = [math.log(cost) for cost in costs]
        mean = math.fsum(logs) / len(logs)
        return Noise(math.fsum((log - mean) ** 2 for log in logs), len(logs) - 1)


def beyond(x: float, dof: int) -> float:
    """Probability that chi-squared with `dof` degrees of freedom exceeds `x`: the complement of the series 26.4.6 of
    Abramowitz and Stegun, Handbook of Mathematical Functions (1964)."""
    if x <= 0:
        return 1.0
    if not math.isfinite(x):
        return 0.0
    term = total = 1.0
    k = dof
    while term > 1e-17 * total:
        k += 2
        term *= x / k
        total += term
        if not math.isfinite(total):
            return 0.0
    return max(0.0, 1.0 - math.exp(dof / 2 * math.log(x / 2) - x / 2 - math.lgamma(dof / 2 + 1)) * total)


def most_rounds(repeats: int, searched: int) -> int:
    """The limit on the number of rounds, which a noisy machine reaches. `repeats`: launch.repeats; `searched`: number
    of measured configurations, with which the number of configurations close to the best grows."""
    return max(2, round(2 * repeats * min(max(searched, _LONG), _LONGEST) / _LONG))
