"""The configurations that are predicted to be best, of the whole space and without a device."""

import math
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from autoscout.job.metrics import HIGHEST_RATE, REQUESTS_PER_LOAD
from autoscout.job.objective import constraint, latency_limits
from autoscout.job.words import listed
from autoscout.search.candidates import Costs, around, as_costs, favourites
from autoscout.simulate.ensemble import Simulators
from autoscout.simulate.learned.other_jobs import measured_by_others
from autoscout.simulate.learned.weighing import SPAN
from autoscout.targets.jobs import JobSpace, simulators_of
from autoscout.tuning.bounds import bounded
from autoscout.tuning.fitting import fits_nowhere
from autoscout.tuning.predict import newest_context, unpriced
from kb.records import AutoscoutError, Configuration, Job, Objective, Value

_FEW = 16  # layouts of which each is looked at by itself
_CLIMBED = 6  # layouts of which what comes nearest to the bounds is looked for knob by knob
_ALIKE = 0.01  # of two layouts that are predicted as near as this in time and memory one is told
_SHARES = (1.0, 0.85, 0.7, 0.5)  # of a bound, by which its keepers are looked for among all
_SELDOM = 1e-3  # requests a second, none of which meets another
_MANY = 64  # configurations; fewer at once are simulated one by one
_NOTHING = 1e-4  # a knob that changes the cost by less than this does nothing


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


class PredictedRanking(msgspec.Struct, frozen=True, kw_only=True):
    """`best`: best first, where a chance to run out of memory counts as that much of the cost. They differ in more than
    a switch: at most one is of each layout (devices and parallelism), unless there are too few of these (`layouts` is
    false), and of what is predicted alike one is told. `searched`: configurations of the space. `reference`: None if it
    is predicted not to run, or to break a constraint. `rows`: measurements of this job that the prediction rests on.
    `unpriced`: what is set in what is told whose effect on time no simulator knows."""

    job: str
    metric: str
    rows: int
    searched: int
    reference: Ranked | None
    best: list[Ranked]
    layouts: bool = True
    unpriced: list[str] = []


def predicts(space: JobSpace) -> bool:
    """Whether `ranking` has anything to say before something is measured."""
    return Simulators(space.job, space, [], bases=partial(simulators_of, space.job)).predictor() is not None


def ranking(space: JobSpace, job: Job, kb: Path | None, count: int) -> PredictedRanking:
    """`space`: of the job, or a part of it. What is predicted to run out of memory or to break a constraint is left
    out.

    Errors: AutoscoutError; exit code 1 if nothing can predict the job, 3 if nothing is predicted to run."""
    rows, _ = newest_context(job, kb)
    past = measured_by_others(kb, job) if kb is not None and kb.exists() else []
    said = _Said(space, job, Simulators(job, space, rows, past=past, bases=partial(simulators_of, job)))
    chosen = said.unlike(said.chosen(count))[:count]
    reference = space.codes_of(space.reference.knobs)
    runs = np.isfinite(said.costs(np.array([reference], np.int16)))[0]
    plain = dict.fromkeys(tuple(row) for row in said.plain(chosen).tolist())
    best = said.told([space.of_codes(row) for row in plain])
    told = [Configuration(row.configuration) for row in best]
    return PredictedRanking(
        job=job.name,
        metric=job.objective.metric,
        rows=said.simulators.ensemble.rows,
        searched=space.count,
        reference=said.told([space.reference])[0] if runs else None,
        best=best,
        layouts=len({tuple(row[i] for i in said.layout) for row in plain}) == len(plain),
        unpriced=unpriced(space, told),
    )


class _Said:
    """What is predicted of rows of codes."""

    def __init__(self, space: JobSpace, job: Job, simulators: Simulators, of: Job | None = None) -> None:
        """`of`: the job whose highest rate is searched, where `job` is of one request at a time."""
        predictor = simulators.predictor()
        if predictor is None:
            raise AutoscoutError(
                f"nothing can predict {job.objective.metric} of {job.name} yet; `autoscout predict` says why"
            )
        self.space, self.job, self.simulators, self.searched = space, job, simulators, of
        self.of_objective = as_costs(job.objective, predictor)
        placed = ((i, k) for i, k in enumerate(space.knobs) if k.layer in ("devices", "parallelism"))
        self.layout = [i for i, knob in placed if not isinstance(knob.values[0], bool)]
        self.recipes = np.array([space.codes_of(c.knobs) for c in space.recipes], dtype=np.int16)

    def costs(self, codes: np.ndarray, share: float = 1.0) -> np.ndarray:
        """Of one run that starts: the objective's over the chance that it fits. `share`: of each bound that a
        configuration may use up."""
        columns = self.simulators.columns_of(codes)
        found = np.where(self._used(columns) <= share, self.of_objective(codes), np.inf)
        return found / self._fitting(columns)

    def _fitting(self, columns: dict[str, np.ndarray]) -> np.ndarray | float:
        memory = self.simulators.memory
        chance = 1.0 if memory is None else 1 - np.nan_to_num(memory.oom_probability(columns))
        return np.maximum(chance, 1e-9)

    def shortfall(self, codes: np.ndarray) -> np.ndarray:
        """How far the bound that is missed most is missed, as a factor; inf of what does not run."""
        used = self._used(self.simulators.columns_of(codes))
        return np.where(np.isfinite(self.of_objective(codes)), used, np.inf)

    def _used(self, columns: dict[str, np.ndarray]) -> np.ndarray:
        """The share of its bound that a configuration uses up, of the bound where that is largest; 0 without bounds."""
        from autoscout.search.belief.limits import closeness  # imports scipy

        most = np.zeros(1)
        for bound in bounded(self.job, self.simulators.memory, columns):
            most = np.maximum(most, np.nan_to_num(np.exp(closeness(bound.said.value, *constraint(bound.text)[1:]))))
        return most

    def chosen(self, count: int) -> np.ndarray:
        """The codes of the best of each layout, of others where there are fewer than `count`. Few at once are
        simulated more exactly than all: where what would be told breaks a bound so, the best of those are looked at
        that are farther from it, and at last the nearest."""
        bounds = any(True for _ in bounded(self.job, self.simulators.memory, self.simulators.any_row))
        for share in _SHARES if bounds else _SHARES[:1]:
            found = self._first_ones(partial(self.costs, share=share), count)
            if len(kept := self._kept(found)):
                return kept
        if self.job.objective.metric == HIGHEST_RATE:
            self._alone().chosen(count)
        if bounds:
            nearest = self._first_ones(self.shortfall, count)
            nearest = np.array([self._nearer(row) for row in nearest[:_CLIMBED]] or nearest, dtype=np.int16)
            if len(kept := self._kept(nearest)):
                return kept
            if len(nearest):
                raise AutoscoutError(f"{self._nothing()}; {self._missed(nearest)}", 3)
        raise AutoscoutError(fits_nowhere(self.space) or self._nothing(), 3)

    def _alone(self) -> "_Said":
        """Of requests that come one at a time, which keep the limits of a rate that is searched if any do."""
        limits = [f"{metric} <= {bound:g}" for metric, bound in latency_limits(self.job.objective)]
        objective = Objective(minimize=constraint(limits[0])[0], constraints=limits)
        traffic = msgspec.structs.replace(self.job.traffic, rate=_SELDOM, requests=REQUESTS_PER_LOAD)
        job = msgspec.structs.replace(self.job, objective=objective, traffic=traffic)
        return _Said(self.space, job, Simulators(job, self.space, [], bases=partial(simulators_of, job)), self.job)

    def _nearer(self, row: np.ndarray) -> np.ndarray:
        """Of its layout, knob by knob, what misses its bounds least where it is simulated exactly."""
        missed = self.shortfall(row[None])[0]
        while missed > 1:
            beside = around(self.space, row[None])
            beside = beside[(beside == row)[:, self.layout].all(axis=1)]
            found = np.concatenate([self.shortfall(beside[at : at + _FEW]) for at in range(0, len(beside), _FEW)])
            least = int(np.argmin(found))
            if found[least] >= missed * (1 - _NOTHING):
                break
            row, missed = beside[least], found[least]
        return row

    def _first_ones(self, order: Costs, count: int) -> np.ndarray:
        """Of a space of many all are priced as many, so that they compare."""

        def of_many(codes: np.ndarray) -> np.ndarray:
            return order(np.resize(codes, (max(len(codes), _MANY), codes.shape[1])))[: len(codes)]

        many = of_many if self.space.count > _MANY else order
        codes, cost = favourites(self.space, many, np.random.default_rng(0), self.recipes)
        codes, cost = codes[np.isfinite(cost)], cost[np.isfinite(cost)]
        first = np.sort(np.unique(codes[:, self.layout], axis=0, return_index=True)[1])
        if len(first) < count:
            dearer = np.flatnonzero(np.diff(cost, prepend=0.0) > _NOTHING * cost)  # than the one before
            first = np.concatenate([first, np.setdiff1d(dearer, first)])
        return codes[first[: max(2 * count, _FEW)]]

    def _kept(self, codes: np.ndarray) -> np.ndarray:
        """Those that keep all bounds, best first."""
        if not len(codes):
            return codes
        cost = self.costs(codes)
        order = np.argsort(cost, kind="stable")
        return codes[order[np.isfinite(cost[order])]]

    def told(self, configurations: list[Configuration]) -> list[Ranked]:
        columns = self.simulators.columns(configurations)
        said, memory = self.simulators.ensemble.predict(columns), self.simulators.memory
        gib: list[float | None] = [None] * len(configurations)
        chance = gib
        if memory is not None:
            gib, chance = memory.predict(columns).value.tolist(), memory.oom_probability(columns).tolist()
        spans = [math.exp(SPAN * error) for error in said.error.tolist()]
        each = zip(configurations, said.value.tolist(), spans, gib, chance, strict=True)
        return [Ranked(self.space.name(c), c.knobs, v, v / span, v * span, g, p) for c, v, span, g, p in each]

    def unlike(self, codes: np.ndarray) -> np.ndarray:
        """Without those that are predicted as one before them is."""
        found: list[tuple[int, Ranked]] = []
        for i, row in enumerate(self.told([self.space.of_codes(row) for row in codes.tolist()])):
            if not any(_alike(row, other) for _, other in found):
                found.append((i, row))
        return codes[[i for i, _ in found]]

    def plain(self, codes: np.ndarray) -> np.ndarray:
        """The same layouts as near to the reference as they cost the same, best first."""
        nearest = np.array([self._nearest(row, self.costs) for row in codes])
        costs = [[float(self.costs(row[None])[0]) for row in rows] for rows in (codes, nearest)]  # alone, so exactly
        same = np.array(costs[1]) <= np.array(costs[0]) * (1 + _NOTHING)
        return np.where(same[:, None], nearest, codes)[np.argsort(np.where(same, costs[1], costs[0]), kind="stable")]

    def _nearest(self, row: np.ndarray, order: Costs) -> np.ndarray:
        reference = self.recipes[0]
        free = np.isin(np.arange(len(row)), self.layout, invert=True)
        while True:
            beside = around(self.space, row[None])
            apart = (beside != reference)[:, free].sum(axis=1)
            nearer = (beside == row)[:, ~free].all(axis=1) & (apart < (row != reference)[free].sum())
            beside = beside[nearer][np.argsort(apart[nearer], kind="stable")]
            costs = order(np.concatenate([row[None], beside]))
            same = beside[np.abs(costs[1:] - costs[0]) <= costs[0] * _NOTHING]
            if not len(same):
                return row
            row = same[0]

    def _nothing(self) -> str:
        if self.searched is not None:
            return f"nothing of {self.job.name} is predicted to keep its limits at any rate of requests"
        return f"nothing of {self.job.name} is predicted to run within its memory and its constraints"

    def _missed(self, codes: np.ndarray) -> str:
        """What is predicted of the one that comes nearest."""
        nearest = self._nearest(codes[int(np.argmin(self.shortfall(codes)))], self.shortfall)[None]
        said = [
            f"{bound.text} is predicted {bound.said.value[0]:,.4g}"
            for bound in bounded(self.job, self.simulators.memory, self.simulators.columns_of(nearest))
            if not bound.kept[0]
        ]
        of = ", of which" if self.searched is None else ": of requests that come one at a time"
        return f"{self.space.name(self.space.of_codes(nearest[0].tolist()))} comes nearest{of} {listed(said)}"


def _alike(one: Ranked, other: Ranked) -> bool:
    if one.memory_gib is None or other.memory_gib is None:
        return math.isclose(one.value, other.value, rel_tol=_NOTHING)
    near = math.isclose(one.value, other.value, rel_tol=_ALIKE)
    return near and math.isclose(one.memory_gib, other.memory_gib, rel_tol=_ALIKE)
