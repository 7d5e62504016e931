"""Summarizes runs: medians, quartiles, ratios of the evaluations that two strategies need, with bootstrap intervals.

A run that does not reach the target counts as budget + 1 evaluations, so a median above the budget is a lower bound."""

import itertools
from collections.abc import Sequence

import msgspec
import numpy as np

from autoscout.studies.bench.landscape import SHUFFLED
from autoscout.studies.bench.run import MARKS, BenchRun

ALL = "all"
_DRAWS = 2000
_QUARTILES = (25, 50, 75)


class Spread(msgspec.Struct, frozen=True):
    median: float
    q1: float
    q3: float


class SummaryRow(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one strategy on one landscape, or on several (pooled runs)."""

    landscape: str
    strategy: str
    seeds: int
    solved: int
    solved_5pct: int
    evaluations_to_target: Spread
    evaluations_to_5pct: Spread
    regret_at: dict[str, Spread | None]
    recommended_regret: Spread | None
    recommended_within_target: int
    failures: float  # median over the runs
    evaluations: float  # median; the whole budget, unless a run ended by itself
    closing: float  # median, outside the budget
    # runs that missed the target count with their whole cost, so this is a lower bound
    cost_to_target: Spread | None
    cost_to_5pct: Spread | None
    fast: float  # median share of the cost spent on configurations within 10 % of the best one
    engine_ms_per_step: float  # median


class Pair(msgspec.Struct, frozen=True):
    """Ratio of the median evaluations of strategies `a` and `b` to reach the target; for several landscapes, the
    geometric mean of their ratios. `low`, `high`: 95 % bootstrap interval over the seeds."""

    landscape: str
    a: str
    b: str
    ratio: float
    low: float
    high: float


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    unsolved_as: int
    target: float
    strategies: list[SummaryRow]
    pairs: list[Pair]


def summarize(runs: Sequence[BenchRun], budget: int, target: float) -> Summary:
    landscapes = list(dict.fromkeys(r.landscape for r in runs))
    strategies = list(dict.fromkeys(r.strategy for r in runs))
    by = {
        (land, s): [r for r in runs if (r.landscape, r.strategy) == (land, s)]
        for land in landscapes
        for s in strategies
    }
    rows = [_row(land, s, by[land, s], budget, target) for land in landscapes for s in strategies if by[land, s]]
    pairs = [
        pair
        for land in landscapes
        for a, b in itertools.combinations(strategies, 2)
        if (pair := _pair(land, a, b, [(by[land, a], by[land, b])], budget)) is not None
    ]
    for name, pooled in pools(landscapes).items():
        rows += [
            _row(name, s, [r for r in runs if r.strategy == s and r.landscape in pooled], budget, target)
            for s in strategies
        ]
        for a, b in itertools.combinations(strategies, 2):
            both = [(by[land, a], by[land, b]) for land in pooled]
            if (pair := _pair(name, a, b, both, budget)) is not None:
                pairs.append(pair)
    return Summary(unsolved_as=budget + 1, target=target, strategies=rows, pairs=pairs)


def pools(landscapes: Sequence[str]) -> dict[str, list[str]]:
    """Name → landscapes that are pooled. If there are several landscapes, all plain ones form a pool, and all shuffled
    ones form another."""
    shuffled = [name for name in landscapes if name.endswith(SHUFFLED)]
    plain = [name for name in landscapes if name not in shuffled]
    return {name: some for name, some in ((ALL, plain), (ALL + SHUFFLED, shuffled)) if len(some) > 1}


def spread(values: Sequence[float | None]) -> Spread | None:
    known = [v for v in values if v is not None]
    if not known:
        return None
    q1, median, q3 = (float(v) for v in np.percentile(known, _QUARTILES))
    return Spread(median, q1, q3)


def _row(landscape: str, strategy: str, runs: list[BenchRun], budget: int, target: float) -> SummaryRow:
    recommended = [r.recommended.regret if r.recommended else None for r in runs]
    to_target, to_5pct = (
        spread(_counted(runs, budget, name)) for name in ("evaluations_to_target", "evaluations_to_5pct")
    )
    assert to_target is not None
    assert to_5pct is not None
    return SummaryRow(
        landscape=landscape,
        strategy=strategy,
        seeds=len(runs),
        solved=sum(r.evaluations_to_target is not None for r in runs),
        solved_5pct=sum(r.evaluations_to_5pct is not None for r in runs),
        evaluations_to_target=to_target,
        evaluations_to_5pct=to_5pct,
        regret_at={str(n): spread([r.regret_at[str(n)] for r in runs]) for n in MARKS},
        recommended_regret=spread(recommended),
        recommended_within_target=sum(v is not None and v <= target for v in recommended),
        failures=float(np.median([r.failures for r in runs])),
        evaluations=float(np.median([r.evaluations for r in runs])),
        closing=float(np.median([r.closing for r in runs])),
        cost_to_target=spread([r.cost_to_target or r.cost_total for r in runs]),
        cost_to_5pct=spread([r.cost_to_5pct or r.cost_total for r in runs]),
        fast=float(np.median([r.fast for r in runs])),
        engine_ms_per_step=float(np.median([r.engine_ms_per_step for r in runs])),
    )


def _counted(runs: Sequence[BenchRun], budget: int, name: str = "evaluations_to_target") -> list[float]:
    return [budget + 1 if getattr(r, name) is None else getattr(r, name) for r in runs]


def _pair(
    landscape: str, a: str, b: str, both: list[tuple[list[BenchRun], list[BenchRun]]], budget: int
) -> Pair | None:
    both = [(x, y) for x, y in both if x and y]
    if not both:
        return None
    rng = np.random.default_rng(0)
    logs, drawn = [], []
    for x, y in both:
        left, right = np.array(_counted(x, budget)), np.array(_counted(y, budget))
        logs.append(np.log(np.median(left) / np.median(right)))
        resampled_left = np.median(rng.choice(left, (_DRAWS, len(left))), axis=1)
        resampled_right = np.median(rng.choice(right, (_DRAWS, len(right))), axis=1)
        drawn.append(np.log(resampled_left / resampled_right))
    low, high = np.exp(np.percentile(np.mean(drawn, axis=0), [2.5, 97.5]))
    return Pair(landscape, a, b, float(np.exp(np.mean(logs))), float(low), float(high))
