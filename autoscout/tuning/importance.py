"""Finds which knobs matter, and which of them cause the gain.

Ablation turns the expert default into the best configuration by changing one knob at a time, always the one that gains
most (Fawcett & Hoos 2016); configurations that were not measured are predicted (Biedenkapp et al. 2017). Importance is
the share of the variance of the log-cost that a knob's value alone explains, over all valid configurations as predicted
by the ensemble (first-order effects of a functional ANOVA, Hutter et al. 2014).
"""

import itertools
import math
import statistics
from collections.abc import Iterable
from functools import partial

import msgspec
import numpy as np

from autoscout.job.objective import cost, from_metric, to_metric
from autoscout.search.pool import CandidatePool
from autoscout.simulate.ensemble import Simulators
from autoscout.space.graph import Space
from autoscout.targets.target import target_of
from kb.journal import Confirmed
from kb.records import Configuration, Job, Measurement, Value

_LEAST = 0.001  # smallest share of the variance that is reported
_ALIKE = 1e-12  # a variance of log-costs below this is a rounding error
_TOGETHER = 3  # most knobs that one step changes to stay valid; if more are needed, the step changes all that are left


class GainStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step of the ablation: `knobs` get the best configuration's values. `gain`: cost before / cost after."""

    knobs: list[str]
    before: list[Value | None]
    after: list[Value | None]
    value: float | None  # the objective's metric after the step; None if the default did not run
    measured: bool  # whether `value` was measured, not predicted
    gain: float | None


class Importance(msgspec.Struct, frozen=True, kw_only=True):
    steps: list[GainStep]  # the first one is the default and changes no knob
    effects: dict[str, float]  # knob → share of the predicted variance, largest first
    error: float  # expected error of the predictions
    rows: int


def importance(
    job: Job,
    space: Space,
    rows: Iterable[Measurement],
    default: Configuration,
    confirmed: Confirmed | None = None,
) -> Importance:
    """Computes the ablation and the knobs' importance. `rows`: the job's measurements; `confirmed`: the verdict of a
    session's final rounds, whose winner and reference are then used, instead of the best measured configuration and
    `default`. There are no steps if no run succeeded."""
    rows = list(rows)
    ran = [m for m in rows if (m.counts or m.fidelity == "short") and space.is_valid(m.configuration)]
    rows = [m for m in ran if m.counts]
    simulators = Simulators(job, space, ran, bases=partial(target_of(job).simulators, job))
    known = _median_costs(job, rows)
    best = min(known, key=lambda c: known[c], default=None)
    if confirmed is not None and confirmed.winner in known:
        best = confirmed.winner
        default = next((m.configuration for m in rows if m.name == confirmed.default_name), default)
        judged = {default: confirmed.default_value, best: confirmed.value}
        known |= {c: from_metric(job.objective, value) for c, value in judged.items() if value is not None}
    return Importance(
        steps=[] if best is None else _ablation(job, space, simulators, known, default, best),
        effects=_effects(space, simulators),
        error=simulators.expected_error,
        rows=len(ran),
    )


def _median_costs(job: Job, rows: list[Measurement]) -> dict[Configuration, float]:
    """Median cost of each configuration, except for those with a run that failed the equivalence check."""
    costs: dict[Configuration, list[float]] = {}
    for m in rows:
        if (c := cost(job.objective, m)) is not None:
            costs.setdefault(m.configuration, []).append(c)
    wrong = {m.configuration for m in rows if m.status == "wrong"}
    return {
        configuration: statistics.median(values)
        for configuration, values in costs.items()
        if configuration not in wrong
    }


def _ablation(
    job: Job,
    space: Space,
    simulators: Simulators,
    known: dict[Configuration, float],
    default: Configuration,
    best: Configuration,
) -> list[GainStep]:
    def worth(configuration: Configuration) -> tuple[float, bool]:
        """(cost, whether it was measured)"""
        if configuration in known:
            return known[configuration], True
        predicted = simulators.predict(configuration)[0]
        return predicted if job.objective.minimize else 1 / predicted, False

    here, (before, measured) = default, worth(default)
    value = to_metric(job.objective, before) if math.isfinite(before) else None
    steps = [GainStep(knobs=[], before=[], after=[], value=value, measured=measured, gain=None)]
    while here != best:
        options = _moves(space, here, best)
        worths = {names: worth(moved) for names, moved in options.items()}
        # If no step's cost is known, all differing knobs are changed at once.
        if not any(math.isfinite(value) for value, _ in worths.values()):
            options = {tuple(k.name for k in space.knobs if here.knobs.get(k.name) != best.knobs.get(k.name)): best}
            worths = {names: worth(best) for names in options}
        worths = {names: pair for names, pair in worths.items() if math.isfinite(pair[0])}
        chosen = min(worths, key=lambda names: worths[names][0])
        after, measured = worths[chosen]
        steps.append(
            GainStep(
                knobs=list(chosen),
                before=[here.knobs.get(n) for n in chosen],
                after=[best.knobs.get(n) for n in chosen],
                value=to_metric(job.objective, after),
                measured=measured,
                gain=before / after if math.isfinite(before) else None,
            )
        )
        here, before = options[chosen], after
    return steps


def _moves(space: Space, here: Configuration, best: Configuration) -> dict[tuple[str, ...], Configuration]:
    """The smallest sets of knobs that, set to the best configuration's values, give a valid result."""
    differing = [k.name for k in space.knobs if here.knobs.get(k.name) != best.knobs.get(k.name)]
    for size in range(1, min(_TOGETHER, len(differing) - 1) + 1):
        found = {}
        for names in itertools.combinations(differing, size):
            source = {k.name: (best if k.name in names else here).knobs.get(k.name) for k in space.knobs}
            moved = Configuration({name: value for name, value in source.items() if value is not None})
            if space.is_valid(moved):
                found[names] = moved
        if found:
            return found
    return {tuple(differing): best}


def _effects(space: Space, simulators: Simulators) -> dict[str, float]:
    predict = simulators.predictor()
    if predict is None:
        return {}
    pool = CandidatePool(space, np.random.default_rng(0))
    value = np.asarray(predict(pool.codes), dtype=float)
    ran = np.isfinite(value) & (value > 0)
    if ran.sum() < 2:
        return {}
    y, codes = np.log(value[ran]), pool.codes[ran]
    y = y - y.mean()
    total = float((y**2).mean())
    if total < _ALIKE:
        return {}
    shares = {}
    for column, knob in enumerate(space.knobs):
        _, group = np.unique(codes[:, column], return_inverse=True)
        count = np.bincount(group)
        means = np.bincount(group, weights=y) / count
        shares[knob.name] = float((count * means**2).sum() / len(y) / total)
    return {name: share for name, share in sorted(shares.items(), key=lambda item: -item[1]) if share >= _LEAST}
