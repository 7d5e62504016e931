"""The configurations that are predicted to be best, of the whole space and without a device."""

import math
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from autoscout.job.objective import constraint
from autoscout.job.words import listed
from autoscout.search.belief.limits import closeness
from autoscout.search.candidates import Costs, as_costs, favourites
from autoscout.simulate.ensemble import Simulators
from autoscout.simulate.learned.other_jobs import measured_by_others
from autoscout.simulate.learned.weighing import SPAN
from autoscout.targets.jobs import JobSpace, simulators_of
from autoscout.tuning.bounds import bounded
from autoscout.tuning.predict import newest_context
from kb.records import AutoscoutError, Configuration, Job, Value

_FEW = 16  # layouts of which each is looked at by itself


class Ranked(msgspec.Struct, frozen=True):
    """`value`: in the objective's unit, with its 90 % interval. `memory_gib`: of the fullest rank, and the chance that
    it runs out of memory; None where nothing models it."""

    name: str
    configuration: dict[str, Value]
    value: float
    low: float
    high: float
    memory_gib: float | None
    oom_probability: float | None


class Ranking(msgspec.Struct, frozen=True, kw_only=True):
    """`best`: best first, at most one of each layout (devices and parallelism), so that they differ in more than a
    switch. `searched`: configurations of the space. `reference`: None if it is predicted not to run, or to break a
    constraint. `rows`: measurements of this job that the prediction rests on."""

    job: str
    metric: str
    rows: int
    searched: int
    reference: Ranked | None
    best: list[Ranked]


def ranking(space: JobSpace, job: Job, kb: Path | None, count: int) -> Ranking:
    """`space`: of the job, or a part of it. What is predicted to run out of memory or to break a constraint is left
    out.

    Errors: AutoscoutError; exit code 1 if nothing can predict the job, 3 if nothing is predicted to run."""
    rows, _ = newest_context(job, kb)
    past = measured_by_others(kb, job) if kb is not None and kb.exists() else []
    simulators = Simulators(job, space, rows, past=past, bases=partial(simulators_of, job))
    predictor = simulators.predictor()
    if predictor is None:
        raise AutoscoutError(
            f"nothing can predict {job.objective.metric} of {job.name} yet; `autoscout predict` says why"
        )
    of_objective = as_costs(job.objective, predictor)

    def costs(codes: np.ndarray) -> np.ndarray:
        found, columns = of_objective(codes), simulators.columns_of(codes)
        for bound in bounded(job, simulators.memory, columns):
            found = np.where(bound.kept, found, np.inf)
        return found

    def told(configurations: list[Configuration]) -> list[Ranked]:
        columns = simulators.columns(configurations)
        said, memory = simulators.ensemble.predict(columns), simulators.memory
        gib: list[float | None] = [None] * len(configurations)
        chance = gib
        if memory is not None:
            gib, chance = memory.predict(columns).value.tolist(), memory.oom_probability(columns).tolist()
        spans = [math.exp(SPAN * error) for error in said.error.tolist()]
        each = zip(configurations, said.value.tolist(), spans, gib, chance, strict=True)
        return [Ranked(space.name(c), c.knobs, v, v / span, v * span, g, p) for c, v, span, g, p in each]

    def shortfall(codes: np.ndarray) -> np.ndarray:
        """How far the bound that is missed most is missed, as a factor."""
        worst = np.where(np.isfinite(of_objective(codes)), 0.0, np.inf)
        for bound in bounded(job, simulators.memory, simulators.columns_of(codes)):
            worst = np.maximum(worst, np.nan_to_num(np.exp(closeness(bound.said.value, *constraint(bound.text)[1:]))))
        return worst

    recipes = np.array([space.codes_of(c.knobs) for c in space.recipes], dtype=np.int16)

    def first_ones(order: Costs) -> np.ndarray:
        """The codes of the first of each layout."""
        codes, cost = favourites(space, order, np.random.default_rng(0), recipes)
        codes = codes[np.isfinite(cost)]
        layout = [i for i, knob in enumerate(space.knobs) if knob.layer in ("devices", "parallelism")]
        return codes[np.sort(np.unique(codes[:, layout], axis=0, return_index=True)[1])[: max(count, _FEW)]]

    def kept(codes: np.ndarray) -> np.ndarray:
        return codes[np.isfinite(costs(codes))] if len(codes) else codes

    # Few at once are simulated more exactly than all: of those that would be told, the ones that break a bound so are
    # left out if any keeps it, and where all at once break one, the nearest are looked at.
    chosen = first_ones(costs)
    chosen = found if len(found := kept(chosen)) else chosen
    if not len(chosen) and job.objective.constraints:
        nearest = first_ones(shortfall)
        chosen = kept(nearest)
        if len(nearest) and not len(chosen):
            raise AutoscoutError(f"{_nothing(job)}; {_missed(job, space, simulators, nearest, shortfall)}", 3)
    if not len(chosen):
        raise AutoscoutError(_nothing(job), 3)
    best = told([space.of_codes(row) for row in chosen[:count].tolist()])
    reference = space.reference if np.isfinite(costs(recipes[:1])[0]) else None
    return Ranking(
        job=job.name,
        metric=job.objective.metric,
        rows=simulators.ensemble.rows,
        searched=space.count,
        reference=told([reference])[0] if reference is not None else None,
        best=sorted(best, key=lambda r: r.value, reverse=bool(job.objective.maximize)),
    )


def _nothing(job: Job) -> str:
    return f"nothing of {job.name} is predicted to run within its memory and its constraints"


def _missed(job: Job, space: JobSpace, simulators: Simulators, codes: np.ndarray, shortfall: Costs) -> str:
    """What is predicted of the one that comes nearest."""
    nearest = codes[[int(np.argmin(shortfall(codes)))]]
    said = [
        f"{bound.text} is predicted {bound.said.value[0]:,.4g}"
        for bound in bounded(job, simulators.memory, simulators.columns_of(nearest))
        if not bound.kept[0]
    ]
    return f"{space.name(space.of_codes(nearest[0].tolist()))} comes nearest, of which {listed(said)}"
