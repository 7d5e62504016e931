"""Decides from pairs of runs, as early as errors allow, whether side B of a gate is slower than side A by more than a
margin.

    log cost = side + pair + ε        (a randomised block design, as in evidence.py)

Pairs are counterbalanced: each random order of the two sides is followed by its reverse. After planned numbers of pairs
(looks), the verdict is "worse" if the one-sided interval of log(cost of B / cost of A) lies above the margin, and "no
worse" if it lies below. All looks together err in at most 5 % of gates in either direction. This error is distributed
over the looks by the power function α (pairs / limit)^ρ of Kim and DeMets (1987), and the significance level of each
look is found by simulation, since looks are correlated. For "worse", most of the error goes to the first pairs, because
large slowdowns show early; for "no worse" it is spread over all pairs, because small slowdowns have to be excluded.

If the two runs of a pair are not more alike than other runs, the differences between pairs also measure the noise. So
the model is fitted with and without the effect of pairs, and the fit with less noise is used. The simulation makes the
same choice, with independent runs; runs that are alike within pairs make errors rarer.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import msgspec
import numpy as np
from scipy.special import ndtr, stdtr, stdtrit

from autoscout.tuning import evidence, modes
from autoscout.tuning.evidence import Contrast
from autoscout.tuning.modes import Division

ERROR = 0.05  # largest share of gates that are decided wrongly, in each direction
EARLY = 20  # number of pairs within which a large slowdown is expected to show
_EARLY = 0.9  # share of the error of "worse" that goes to the first EARLY pairs
_POWER = 0.7  # ρ: favours early looks less than Pocock's boundary, and more than O'Brien and Fleming's
# Numbers of pairs after which a gate may end.
_LOOKS = (4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 18, 20, 24, 28, 32, 36, 40, 50, 60, 80, 100)
_PATHS = 100_000
_TWO_SPEEDS = 6  # smallest number of pairs in which slow runs are searched for (modes.py); fewer mislead
_HOPELESS = 0.05  # a gate ends undecided if the probability of a decision at the limit is below this
A, B = "A", "B"

Kind = Literal["worse", "no worse", "undecided"]
Pair = tuple[float, float]  # costs of A and of B


class PairsStanding(msgspec.Struct, frozen=True):
    """The state after some pairs. `log`: log(cost of B / cost of A); `low`, `high`: its 90 % interval, which is valid
    although several looks are taken; `p_worse`: posterior probability, with a flat prior, that B is slower by more than
    the margin; `over`: whether the gate ends here; `slow`: number of slow runs (modes.py)."""

    kind: Kind
    log: float
    low: float
    high: float
    p_worse: float
    pairs: int
    over: bool
    slow: int = 0


@lru_cache(maxsize=16)
def levels(limit: int, early: int | None = None) -> dict[int, float]:
    """The planned looks (interim decisions): number of pairs → one-sided significance level. `early`: number of pairs
    to which most of the error goes; by default all pairs."""
    looks = [*(n for n in _LOOKS if n < limit), limit]
    rng = np.random.default_rng(0)
    # Running sums, and sums of squares, of the differences within pairs and of the pairs' means.
    sums, squares = np.zeros((2, _PATHS)), np.zeros((2, _PATHS))
    spent, before, found = 0.0, 0, {}
    for n in looks:
        more = n - before  # pairs since the last look, whose sum and sum of squares about the mean are independent
        added = math.sqrt(more) * rng.standard_normal(sums.shape)
        sums, before = sums + added, n
        squares = squares + added**2 / more + (rng.chisquare(more - 1, sums.shape) if more > 1 else 0.0)
        about = squares - sums**2 / n
        pooled = about.sum(axis=0) < 2 * about[0]
        dof = np.where(pooled, 2 * n - 2, n - 1)
        noise = np.where(pooled, about.sum(axis=0), about[0]) / dof
        p = stdtr(dof, -sums[0] / np.sqrt(n * noise))
        crossing = round((ERROR * _spent(n, early or limit, limit) - spent) * _PATHS)
        found[n] = float(np.partition(p, crossing)[crossing])
        going = p >= found[n]
        spent += float((~going).sum()) / _PATHS
        sums, squares = sums[:, going], squares[:, going]
    return found


def _spent(n: int, early: int, limit: int) -> float:
    """Share of the error probability that is spent in all looks up to n pairs."""
    if early >= limit:
        return (n / limit) ** _POWER
    return _EARLY * (n / early) ** _POWER if n <= early else _EARLY + (1 - _EARLY) * (n - early) / (limit - early)


def quantile(level: float, dof: int) -> float:
    return float(stdtrit(dof, 1 - level))


def order(pair: int) -> tuple[str, str]:
    """The order in which the two sides run in a pair (pairs are counted from 0)."""
    first = bool(np.random.default_rng((pair // 2, 51)).random() < 0.5) ^ bool(pair % 2)
    return (A, B) if first else (B, A)


def standing(pairs: Sequence[Pair], margin: float, limit: int) -> PairsStanding:
    """The state after these pairs. `margin`: tolerated relative slowdown, such as 0.01; `limit`: the number of pairs
    after which the gate ends at the latest."""
    n, edge = len(pairs), math.log1p(margin)
    plans = levels(limit, min(limit, EARLY)), levels(limit)
    now = next((look for look in plans[0] if look >= n), limit)  # between two looks, the level of the next one is used
    rounds = [[(A, a), (B, b)] for a, b in pairs]
    _, design, y = evidence.design_of(rounds)
    divisions = modes.divisions(design, y, 2)
    below, above = (_contrast(rounds, plan[now], divisions) for plan in plans)
    slow = int(divisions[0].slow.sum()) if divisions else 0
    if slow and n < min(_TWO_SPEEDS, limit):
        below, above = (msgspec.structs.replace(each, share=0.0) for each in (below, above))
    p_worse = 1 - float(stdtr(above.dof, (edge - above.log) / above.error)) if above.dof else math.nan
    kind: Kind = "worse" if below.low > edge else "no worse" if above.high < edge else "undecided"
    hopeless = n in plans[1] and n >= min(EARLY, 0.75 * limit) and _hopeless(above, edge, n, limit)
    over = kind != "undecided" or n >= limit or hopeless
    return PairsStanding(kind, above.log, below.low, above.high, p_worse, n, over, slow)


def _contrast(rounds: Sequence[evidence.Round], level: float, divisions: Sequence[Division]) -> Contrast:
    """log(cost of B / cost of A), with an interval at a one-sided significance `level`."""
    share, together = 2 * level / (1 - evidence.LEVEL), [[run for pair in rounds for run in pair]]
    first, *others = (
        min((evidence.fit(each, share, slow=slow) for each in (rounds, together)), key=lambda fit: fit.noise)
        for slow in divisions or [None]
    )
    return msgspec.structs.replace(first, others=others).contrast(B, A)


def _hopeless(contrast: Contrast, edge: float, n: int, limit: int) -> bool:
    """Whether a decision at the limit is improbable: given today's estimate, the estimate at the limit is normally
    distributed around it, and has to be far enough from the margin (`edge`) for a decision."""
    later = contrast.error * math.sqrt(n / limit)
    needed = later * quantile(levels(limit)[limit], max(1, contrast.dof + limit - n))
    spread = math.sqrt(max(contrast.error**2 - later**2, 1e-18))
    above, below = contrast.log - edge - needed, edge - contrast.log - needed
    return float(ndtr(above / spread) + ndtr(below / spread)) < _HOPELESS
