"""Is one side slower than another by more than a margin? Decided from interleaved pairs, as early as errors allow.

    log cost = side + pair + ε        (a randomised block design, as in evidence.py)

Pairs are counterbalanced: a random order, then its reverse. A planned look decides if the one-sided interval of
log(cost of B / cost of A) lies above the margin (worse) or below it (no worse). All looks together err in at most 5 %
of gates in either direction: errors are spent as the power function α (pairs / limit)^ρ of Kim and DeMets (1987), and
what a look may spend is found on simulated paths of Student's t, since looks are correlated.
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

ERROR = 0.05  # share of gates that are decided wrongly in one direction
_POWER = 1.5  # ρ: between Pocock's early looks and O'Brien and Fleming's late ones
_LOOKS = (4, 5, 6, 8, 10, 12, 14, 16, 18, 20, 24, 28, 32, 36, 40, 50, 60, 80, 100)  # pairs
_PATHS = 200_000
_TWO_SPEEDS = 6  # pairs from which a second speed of the machine is believed; fewer runs may divide by chance
_HOPELESS = 0.05  # chance of a decision at the limit below which a gate ends undecided
A, B = "A", "B"

Kind = Literal["worse", "no worse", "undecided"]
Pair = tuple[float, float]  # costs of A and of B


class PairsStanding(msgspec.Struct, frozen=True):
    """The state after some pairs. `log`: log(cost of B / cost of A); `low`, `high`: its 90 % interval, which holds
    under repeated looks; `p_worse`: posterior probability, by a flat prior, that B is slower by more than the margin.
    `over`: whether no further pair is to be measured."""

    kind: Kind
    log: float
    low: float
    high: float
    p_worse: float
    pairs: int
    over: bool
    slow: int = 0


@lru_cache(maxsize=8)
def levels(limit: int) -> dict[int, float]:
    """Pairs at a look → the one-sided significance level at which it decides."""
    looks = [*(n for n in _LOOKS if n < limit), limit]
    rng = np.random.default_rng(0)
    total, squares = np.zeros(_PATHS), np.zeros(_PATHS)  # sums over the differences so far, for the open paths
    spent, before, found = 0.0, 0, {}
    for n in looks:
        more = n - before  # pairs since the last look; their sum and their squares about their mean are independent
        added = math.sqrt(more) * rng.standard_normal(len(total))
        total, before = total + added, n
        squares = squares + added**2 / more + (rng.chisquare(more - 1, len(total)) if more > 1 else 0.0)
        mean = total / n
        p = stdtr(n - 1, -mean * np.sqrt(n * (n - 1) / (squares - n * mean**2)))
        crossing = round((ERROR * (n / limit) ** _POWER - spent) * _PATHS)
        found[n] = float(np.partition(p, crossing)[crossing])
        going = p >= found[n]
        spent += float((~going).sum()) / _PATHS
        total, squares = total[going], squares[going]
    return found


def quantile(level: float, dof: int) -> float:
    """Of Student's t, one-sided."""
    return float(stdtrit(dof, 1 - level))


def order(pair: int) -> tuple[str, str]:
    """Which side runs first in a pair, counted from 0."""
    first = bool(np.random.default_rng((pair // 2, 51)).random() < 0.5) ^ bool(pair % 2)
    return (A, B) if first else (B, A)


def standing(pairs: Sequence[Pair], margin: float, limit: int) -> PairsStanding:
    """`margin`: relative slowdown that is tolerated, such as 0.01; `limit`: pairs at most."""
    n, plan, edge = len(pairs), levels(limit), math.log1p(margin)
    level = next((level for look, level in plan.items() if look >= n), 0.0)  # a gate that ends early misses that look
    contrast, slow = _contrast(pairs, level)
    if slow and n < min(_TWO_SPEEDS, limit):
        contrast = msgspec.structs.replace(contrast, share=0.0)
    p_worse = 1 - float(stdtr(contrast.dof, (edge - contrast.log) / contrast.error)) if contrast.dof else math.nan
    kind: Kind = "worse" if contrast.low > edge else "no worse" if contrast.high < edge else "undecided"
    over = (
        kind != "undecided" or n >= limit or (n in plan and 4 * n >= 3 * limit and _hopeless(contrast, edge, n, limit))
    )
    return PairsStanding(kind, contrast.log, contrast.low, contrast.high, p_worse, n, over, slow)


def _contrast(pairs: Sequence[Pair], level: float) -> tuple[Contrast, int]:
    """log cost of B − log cost of A at a one-sided `level`, and how many runs were at a slower speed of the machine."""
    rounds = [[(A, a), (B, b)] for a, b in pairs]
    share = 2 * level / (1 - evidence.LEVEL)
    _, design, y = evidence.design_of(rounds)
    found = modes.divisions(design, y, 2)
    first, *others = [evidence.fit(rounds, share, slow=each) for each in found] or [evidence.fit(rounds, share)]
    fit = msgspec.structs.replace(first, others=others)
    return fit.contrast(B, A), fit.slow


def _hopeless(contrast: Contrast, edge: float, n: int, limit: int) -> bool:
    """Whether the limit will hardly decide if the costs go on like this. The estimate at the limit is normal about
    today's, and must be `edge` away from the margin."""
    later = contrast.error * math.sqrt(n / limit)
    needed = later * quantile(levels(limit)[limit], max(1, contrast.dof + limit - n))
    spread = math.sqrt(max(contrast.error**2 - later**2, 1e-18))
    above, below = contrast.log - edge - needed, edge - contrast.log - needed
    return float(ndtr(above / spread) + ndtr(below / spread)) < _HOPELESS
