"""The posterior of the finalists' costs, from the search and the final rounds together. It determines which finalist is
recommended, which has to be decided in any case, and the value of further rounds. Claims rest on the rounds alone
(evidence.py).

    log costs ~ N(believed, deviation²) from the search, times N(level, covariance) from the rounds

Both are known only up to a common additive constant. A posterior stays valid if it is inspected after every round.
"""

import math
from collections.abc import Iterable, Mapping

import msgspec
import numpy as np
from scipy.special import stdtr

from autoscout.tuning.evidence import Fit, expected_excess
from autoscout.tuning.modes import EXPECTED

_DOUBTED = 2.0  # factor by which the search may underestimate its standard deviations
_LEAST = 1e-4  # lower bound on standard deviations
_COMMON = 100.0  # prior variance of the common constant
_BLIND = 0.1  # assumed standard deviation of one log cost if there are too few rounds to estimate it

Beliefs = Mapping[str, tuple[float, float]]  # configuration id → (log-cost above the best, its standard deviation)


def doubted(deviation: float) -> float:
    """The search's standard deviation, widened for overconfidence."""
    return max(_DOUBTED * deviation, _LEAST) if math.isfinite(deviation) else EXPECTED / math.sqrt(2)


class FinalChoice(msgspec.Struct, frozen=True):
    """The posterior of the finalists' costs. `level`: configuration id → expected log-cost, up to a common constant;
    `covariance`: that of the log-costs; `dof`: degrees of freedom of the noise estimate."""

    level: dict[str, float]
    covariance: np.ndarray
    dof: int

    def gap(self, one: str, other: str) -> tuple[float, float]:
        """Mean and standard deviation of log(cost of `one` / cost of `other`); above 0, `other` is cheaper."""
        names = list(self.level)
        i, j = names.index(one), names.index(other)
        variance = self.covariance[i, i] + self.covariance[j, j] - 2 * self.covariance[i, j]
        return self.level[one] - self.level[other], max(math.sqrt(max(variance, 0.0)), 1e-12)

    def p_better(self, one: str, other: str) -> float:
        mean, deviation = self.gap(one, other)
        return float(stdtr(self.dof, mean / deviation)) if self.dof else 0.5

    def gain(self, leader: str, name: str, known: float = 1.0) -> float:
        """Expected gain if `name` can be chosen instead of `leader` after more measurements. `known`: the share of the
        remaining variance that they remove."""
        mean, deviation = self.gap(leader, name)
        return expected_excess(mean, max(deviation * math.sqrt(known), 1e-9))

    def left(self, leader: str, names: Iterable[str]) -> float:
        """Upper bound (Bonferroni) on the expected excess log-cost of `leader` over the best of `names`."""
        return sum(self.gain(leader, name) for name in names if name != leader)


def choice(fit: Fit, believed: Beliefs) -> FinalChoice:
    """The posterior from the rounds and the search together. A belief counts at most as one measurement, because it may
    be overconfident."""
    noise = fit.noise if fit.dof else _BLIND
    names = list(fit.level)
    prior = [believed.get(name, (math.nan, math.inf)) for name in names]
    known = [mean for mean, _ in prior if math.isfinite(mean)]
    middle = sum(known) / len(known) if known else 0.0
    expected = np.array([mean if math.isfinite(mean) else middle for mean, _ in prior])
    before = np.diag([max(doubted(deviation), noise) ** 2 for _, deviation in prior]) + _COMMON
    rounds = fit.covariance * noise**2 + _COMMON
    share = before @ np.linalg.inv(before + rounds)
    level = expected + share @ (np.array([fit.level[name] for name in names]) - expected)
    return FinalChoice(
        level={name: float(each) for name, each in zip(names, level, strict=True)},
        covariance=before - share @ before,
        dof=fit.dof,
    )
