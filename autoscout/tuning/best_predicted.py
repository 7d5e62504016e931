"""Finds the configurations of the whole space that simulators predict to be best, without measuring any."""

import itertools
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType

import msgspec
import numpy as np

from autoscout.job.metrics import DEVICES, HIGHEST_RATE, RATES_APART, REQUESTS_PER_LOAD
from autoscout.job.objective import constraint, latency_limits
from autoscout.job.words import listed
from autoscout.search.candidates import Costs, around, as_costs, favourites
from autoscout.simulate.ensemble import Simulators
from autoscout.simulate.learned.weighing import SPAN
from autoscout.space.attributes import device_counts
from autoscout.space.knob import Knob
from autoscout.targets.jobs import JobSpace, simulators_of
from autoscout.targets.target import reference_of
from autoscout.tuning.bounds import bounded
from autoscout.tuning.fitting import fits_nowhere
from autoscout.tuning.predict import fitted_simulators, unpriced
from kb.records import AutoscoutError, Configuration, Job, Objective, Value

_FEW = 16  # batches this small are simulated exactly; larger ones perhaps by a faster, less exact method
_CLIMBED = 6  # number of layouts in which a local search looks for a configuration that meets the bounds
_ALIKE = 0.01  # configurations that differ by less than this share in predicted time and memory count as one
SHARES = (1.0, 0.85, 0.7, 0.5)  # if results break a bound, the search is repeated with these shares of each bound
_SELDOM = 1e-3  # requests per second, few enough that no two are served at the same time
_MANY = 64  # smaller batches are padded to this size, so that the faster method simulates all (`first_ones`)
_UNLIKELY = 0.05  # a configuration that meets all limits with a lower probability is not listed
_NOTHING = 1e-4  # relative change of the cost below which a knob has no effect


class Ranked(msgspec.Struct, frozen=True):
    """The prediction for a configuration. `value`: the objective's metric; `low`, `high`: its 90 % interval;
    `memory_gib`: of the rank that needs most; `oom_probability`: of running out of memory (both None without a memory
    model). `kept_probability`: of meeting the limit that is most likely to be broken (None if no limit can be
    predicted)."""

    name: str
    configuration: dict[str, Value]
    value: float
    low: float
    high: float
    memory_gib: float | None
    oom_probability: float | None
    kept_probability: float | None = None


class PredictedRanking(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `ranking`. `best`: the listed configurations, best first, by cost / probability to fit into memory,
    with at most one configuration of each layout (devices and parallelism), unless there are too few layouts (then
    `layouts` is false). If no configuration is expected to meet the limits, those with the highest probability are
    listed. `searched`: size of the space. `reference`: None if it is predicted not to run. `rows`: number of
    this job's measurements on which the prediction rests. `unpriced`: settings of the listed configurations
    whose effect on time no simulator knows. `fits`: if the reference breaks its limits at the job's load, a sentence on
    the load at which it is expected to meet them."""

    job: str
    metric: str
    rows: int
    searched: int
    reference: Ranked | None
    best: list[Ranked]
    layouts: bool = True
    unpriced: list[str] = []
    fits: str = ""

    @property
    def doubtful(self) -> bool:
        """Whether no listed configuration is expected to meet the limits."""
        return _doubtful(self.best)


def predicts(space: JobSpace) -> bool:
    """Whether `ranking` can predict anything before the first measurement."""
    return Simulators(space.job, space, [], bases=partial(simulators_of, space.job)).predictor() is not None


def ranking(
    whole: JobSpace, job: Job, kb: Path | None, count: int, knobs: Mapping[str, Value] = MappingProxyType({})
) -> PredictedRanking:
    """Ranks the configurations of the job's space in which `knobs` have these values. They are compared with the whole
    space's reference. Configurations that are predicted to run out of memory or to break a constraint are left out,
    unless none would remain.

    Errors: AutoscoutError; exit code 1 if nothing can predict the job, 3 if nothing is predicted to run."""
    simulators = fitted_simulators(job, kb)
    space = with_fixed(job, knobs) if knobs else whole
    rows_of_space, best = best_rows(space, job, simulators, count)
    names = [space.knobs[i].name for i in rows_of_space.layout]
    layouts = {tuple(map(row.configuration.get, names)) for row in best}
    return PredictedRanking(
        job=job.name,
        metric=job.objective.metric,
        rows=rows_of_space.simulators.ensemble.rows,
        searched=space.count,
        reference=(PredictedRows(whole, job, simulators(whole)) if knobs else rows_of_space).reference(),
        best=best,
        layouts=len(layouts) == len(best),
        unpriced=unpriced(space, [Configuration(row.configuration) for row in best]),
        fits=rows_of_space.fitting_load() if _doubtful(best) else "",
    )


def best_rows(
    space: JobSpace, job: Job, simulators: Callable[[JobSpace], Simulators], count: int
) -> tuple["PredictedRows", list[Ranked]]:
    """(predictions for the space, its best configurations). `simulators`: of any space of the job."""

    def predicted(some: JobSpace) -> "PredictedRows":
        return PredictedRows(some, job, simulators(some))

    rows = predicted(space)
    counts = [k for k in space.knobs if job.objective.metric == DEVICES and k.name in device_counts(job)]
    return rows, _fewest(space, counts, predicted, count) if counts else rows.best(count)


def with_fixed(job: Job, knobs: Mapping[str, Value]) -> JobSpace:
    fix = {**job.space.fix, **knobs}
    return JobSpace.of_job(msgspec.structs.replace(job, space=msgspec.structs.replace(job.space, fix=fix)))


def _doubtful(rows: list[Ranked]) -> bool:
    return all(row.kept_probability is not None and row.kept_probability < 0.5 for row in rows)


def _fewest(
    space: JobSpace, counts: list[Knob], predicted: "Callable[[JobSpace], PredictedRows]", count: int
) -> list[Ranked]:
    """The best configuration for each number of devices with which the limits can be met, fewest devices first. Each
    number is searched separately, because all configurations with one number have the same cost."""
    numbers = sorted(itertools.product(*(map(int, knob.values) for knob in counts)), key=sum)
    found: list[Ranked] = []
    for number in filter(any, numbers):
        fixed = {knob.name: n for knob, n in zip(counts, number, strict=True)}
        try:
            found += predicted(with_fixed(space.job, fixed)).best(1)
        except AutoscoutError as error:
            if error.exit_code not in (2, 3) or (number == numbers[-1] and not found):
                raise
        if len(found) == count:
            break
    return found


class PredictedRows:
    """Predictions for configurations, given as rows of codes (indices of their knobs' values)."""

    def __init__(self, space: JobSpace, job: Job, simulators: Simulators, of: Job | None = None) -> None:
        """`of`: if `job` is a variant with one request at a time (see `_alone`), the original job, else None."""
        predictor = simulators.predictor()
        if predictor is None:
            raise AutoscoutError(
                f"nothing can predict {job.objective.metric} of {job.name} yet; `autoscout predict` explains why"
            )
        self.space, self.job, self.simulators, self.searched = space, job, simulators, of
        self.of_objective = as_costs(job.objective, predictor)
        placed = ((i, k) for i, k in enumerate(space.knobs) if k.layer in ("devices", "parallelism"))
        # Relative difference below which costs count as equal; request rates are only searched on a coarse grid.
        self.alike = RATES_APART - 1 if job.objective.metric == HIGHEST_RATE else _NOTHING
        self.layout = [i for i, knob in placed if not isinstance(knob.values[0], bool)]
        self.recipes = np.array([space.codes_of(c.knobs) for c in space.recipes], dtype=np.int16)

    def costs(self, codes: np.ndarray, share: float = 1.0) -> np.ndarray:
        """(n,) expected cost of one successful run: the objective's cost / the probability to fit into memory. `share`:
        multiplies all bounds, to search with stricter ones."""
        columns = self.simulators.columns_of(codes)
        found = np.where(self._used(columns) <= share, self.of_objective(codes), np.inf)
        return found / self._fitting(columns)

    def _fitting(self, columns: dict[str, np.ndarray]) -> np.ndarray | float:
        memory = self.simulators.memory
        chance = 1.0 if memory is None else 1 - np.nan_to_num(memory.oom_probability(columns))
        return np.maximum(chance, 1e-9)

    def best(self, count: int) -> list[Ranked]:
        chosen = self.unlike(self.chosen(count))[:count]
        costs = self.each_cost(chosen)
        if np.isfinite(costs).any():  # false if all are expected to break a limit
            chosen = self.plain(chosen, costs)
        plain = dict.fromkeys(tuple(row) for row in chosen.tolist())
        return self.ranked([self.space.of_codes(row) for row in plain])

    def reference(self) -> Ranked | None:
        """The reference's prediction, even if it breaks its bounds; None if it is predicted not to run."""
        code = np.array([self.space.codes_of(self.space.reference.knobs)], np.int16)
        return self.ranked([self.space.reference])[0] if np.isfinite(self.of_objective(code))[0] else None

    def _chance(self, codes: np.ndarray) -> np.ndarray:
        """(n,) probability to meet the bound that is most likely to be broken; 1 without bounds."""
        found = bounded(self.job, self.simulators.memory, self.simulators.columns_of(codes))
        return np.min([np.ones(len(codes)), *(bound.chance for bound in found)], axis=0)

    def fitting_load(self) -> str:
        """A sentence on the load at which the reference is expected to meet its bounds, found by halving the job's load
        repeatedly; "" if the load cannot be scaled."""
        name = "concurrency" if self.job.traffic.concurrency else "rate"
        now = load = getattr(self.job.traffic, name)
        if self.job.traffic.sessions or not now:
            return ""
        while load > (1 if name == "concurrency" else now / 100):
            load = max(1, load // 2) if name == "concurrency" else load / 2
            job = msgspec.structs.replace(self.job, traffic=msgspec.structs.replace(self.job.traffic, **{name: load}))
            simulators = Simulators(job, self.space, [], bases=partial(simulators_of, job))
            columns = simulators.columns([self.space.reference])
            if all(bound.kept[0] for bound in bounded(job, simulators.memory, columns)):
                return f"with traffic.{name} = {load:g}, {reference_of(self.job)} is expected to meet the limits"
        return f"{reference_of(self.job)} is not expected to meet the limits even with traffic.{name} = {load:g}"

    def shortfall(self, codes: np.ndarray) -> np.ndarray:
        """(n,) factor by which a configuration misses its tightest bound (≤ 1: met); inf if it does not run."""
        used = self._used(self.simulators.columns_of(codes))
        return np.where(np.isfinite(self.of_objective(codes)), used, np.inf)

    def _used(self, columns: dict[str, np.ndarray]) -> np.ndarray:
        """(n,) ratio of the predicted metric to its bound, for the tightest bound; 0 without bounds."""
        from autoscout.search.belief.limits import closeness  # imports scipy

        most = np.zeros(1)
        for bound in bounded(self.job, self.simulators.memory, columns):
            most = np.maximum(
                most, np.nan_to_num(np.exp(closeness(bound.predicted.value, *constraint(bound.text)[1:])))
            )
        return most

    def chosen(self, count: int) -> np.ndarray:
        """(n, knobs) codes of the best configuration of each layout, and of others if there are fewer than `count`
        layouts. Many configurations are first simulated together, less exactly than the few best ones afterwards. If
        all of these then break a bound, the search is repeated with stricter bounds. If that fails, too, it looks
        for the configurations with the smallest `shortfall`."""
        bounds = any(True for _ in bounded(self.job, self.simulators.memory, self.simulators.any_row))
        for share in SHARES if bounds else SHARES[:1]:
            found = self.first_ones(partial(self.costs, share=share), count)
            if len(kept := self._kept(found)):
                return kept
        if self.job.objective.metric == HIGHEST_RATE:
            self._alone().chosen(count)
        if bounds:
            nearest = self.first_ones(self.shortfall, count)
            nearest = np.array([self._nearer(row) for row in nearest[:_CLIMBED]] or nearest, dtype=np.int16)
            if len(kept := self._kept(nearest)):
                return kept
            if len(nearest):
                chance = self._chance(nearest)
                if self.searched is None and self.job.objective.metric != DEVICES and chance.max() >= _UNLIKELY:
                    order = np.argsort(-chance, kind="stable")
                    return nearest[order[chance[order] >= _UNLIKELY]]
                raise AutoscoutError(f"{self._nothing()}; {self._missed(nearest)}", 3)
        raise AutoscoutError(fits_nowhere(self.space) or self._nothing(), 3)

    def _alone(self) -> "PredictedRows":
        """Predictions for one request at a time. A configuration that breaks a limit at this load breaks it at any
        load."""
        limits = [f"{metric} <= {bound:g}" for metric, bound in latency_limits(self.job.objective)]
        objective = Objective(minimize=constraint(limits[0])[0], constraints=limits)
        traffic = msgspec.structs.replace(self.job.traffic, rate=_SELDOM, requests=REQUESTS_PER_LOAD)
        job = msgspec.structs.replace(self.job, objective=objective, traffic=traffic)
        return PredictedRows(
            self.space, job, Simulators(job, self.space, [], bases=partial(simulators_of, job)), self.job
        )

    def _nearer(self, row: np.ndarray) -> np.ndarray:
        """The configuration with the row's layout that misses the bounds least, by a local search over single knobs."""
        missed = self.shortfall(row[None])[0]
        while missed > 1:
            neighbours = around(self.space, row[None])
            neighbours = neighbours[(neighbours == row)[:, self.layout].all(axis=1)]
            found = np.concatenate(
                [self.shortfall(neighbours[at : at + _FEW]) for at in range(0, len(neighbours), _FEW)]
            )
            least = int(np.argmin(found))
            if found[least] >= missed * (1 - _NOTHING):
                break
            row, missed = neighbours[least], found[least]
        return row

    def first_ones(self, order: Costs, count: int) -> np.ndarray:
        """The best rows of each layout. In a large space, even a few rows are simulated with the method for many, so
        that their costs are comparable."""

        def of_many(codes: np.ndarray) -> np.ndarray:
            return order(np.resize(codes, (max(len(codes), _MANY), codes.shape[1])))[: len(codes)]

        many = of_many if self.space.count > _MANY else order
        codes, cost = favourites(self.space, many, np.random.default_rng(0), self.recipes)
        codes, cost = codes[np.isfinite(cost)], cost[np.isfinite(cost)]
        first = np.sort(np.unique(codes[:, self.layout], axis=0, return_index=True)[1])
        if len(first) < count:
            # Rows that cost more than the row before, so that each cost occurs once.
            dearer = np.flatnonzero(np.diff(cost, prepend=0.0) > _NOTHING * cost)
            first = np.concatenate([first, np.setdiff1d(dearer, first)])
        return codes[first[: max(2 * count, _FEW)]]

    def _kept(self, codes: np.ndarray) -> np.ndarray:
        """The rows that meet all bounds, by cost; rows of equal cost by the distance to their bounds, largest first."""
        if not len(codes):
            return codes
        cost = self.costs(codes)
        order = np.lexsort((self._used(self.simulators.columns_of(codes)) + np.zeros(len(codes)), cost))
        return codes[order[np.isfinite(cost[order])]]

    def ranked(self, configurations: list[Configuration]) -> list[Ranked]:
        columns = self.simulators.columns(configurations)
        predicted, memory = self.simulators.ensemble.predict(columns), self.simulators.memory
        gib: list[float | None] = [None] * len(configurations)
        chance = gib
        if memory is not None:
            gib, chance = memory.predict(columns).value.tolist(), memory.oom_probability(columns).tolist()
        spans = [math.exp(SPAN * error) for error in predicted.error.tolist()]
        kept = [bound.chance.tolist() for bound in bounded(self.job, memory, columns)]
        least = [min(each) for each in zip(*kept, strict=True)] if kept else [None] * len(configurations)
        each = zip(configurations, predicted.value.tolist(), spans, gib, chance, least, strict=True)
        return [Ranked(self.space.name(c), c.knobs, v, v / span, v * span, g, p, k) for c, v, span, g, p, k in each]

    def unlike(self, codes: np.ndarray) -> np.ndarray:
        """Drops rows with the same prediction as an earlier row, except for request rates, which are so coarse that
        different rows often have the same one."""
        if self.job.objective.metric == HIGHEST_RATE:
            return codes
        found: list[tuple[int, Ranked]] = []
        for i, row in enumerate(self.ranked([self.space.of_codes(row) for row in codes.tolist()])):
            if not any(_alike(row, other) for _, other in found):
                found.append((i, row))
        return codes[[i for i, _ in found]]

    def plain(self, codes: np.ndarray, costs: np.ndarray) -> np.ndarray:
        """Replaces each row by the configuration of the same layout and cost that is most similar to the reference, and
        sorts the rows by cost, then by the number of knobs that differ from the reference. `costs`: the cost of each
        row, simulated by itself."""
        nearest, now = np.array([self.nearest(row, self.costs) for row in codes]), costs.copy()
        moved = (nearest != codes).any(axis=1)
        now[moved] = self.each_cost(nearest[moved])
        same = now <= costs * (1 + self.alike)
        rows = np.where(same[:, None], nearest, codes)
        return rows[np.lexsort(((rows != self.recipes[0]).sum(axis=1), np.where(same, now, costs)))]

    def each_cost(self, codes: np.ndarray) -> np.ndarray:
        """The cost of each row, simulated by itself, because single rows are simulated more exactly."""
        return np.array([float(self.costs(row[None])[0]) for row in codes])

    def nearest(self, row: np.ndarray, order: Costs) -> np.ndarray:
        """The configuration of the row's layout and cost that is nearest to the reference. Request rates are so coarse
        that a nearer configuration may even be better; with other metrics, a better one has its own place in the
        ranking."""

        def cost(one: np.ndarray) -> float:
            # The first row is `row`, because the search for the highest rate starts from the previous row's rate.
            return float(order(np.array([row, one]))[1])

        least = cost(row)
        better = math.inf if self.job.objective.metric == HIGHEST_RATE else _ALIKE

        def same(found: float) -> bool:
            return least * (1 - better) <= found <= least * (1 + self.alike)

        if same(cost(last := self._last(row))):
            return last
        while True:
            each = ((one, cost(one)) for one in self._towards_reference(row))
            nearer = next(((one, found) for one, found in each if same(found)), None)
            if nearer is None:
                return row
            row, least = nearer[0], min(least, nearer[1])

    def _last(self, row: np.ndarray) -> np.ndarray:
        """The configuration of the row's layout that repeated steps towards the reference reach."""
        while len(nearer := self._towards_reference(row)):
            row = nearer[0]
        return row

    def _towards_reference(self, row: np.ndarray) -> np.ndarray:
        """Neighbours of the row with the same layout and fewer differences from the reference, fewest first."""
        reference = self.recipes[0]
        free = np.isin(np.arange(len(row)), self.layout, invert=True)
        beside = around(self.space, row[None])
        apart = (beside != reference)[:, free].sum(axis=1)
        nearer = (beside == row)[:, ~free].all(axis=1) & (apart < (row != reference)[free].sum())
        return beside[nearer][np.argsort(apart[nearer], kind="stable")]

    def _nothing(self) -> str:
        if self.searched is not None:
            return f"no configuration of {self.job.name} is predicted to meet the job's limits at any request rate"
        return f"no configuration of {self.job.name} is predicted to fit into memory and meet the constraints"

    def _missed(self, codes: np.ndarray) -> str:
        """A sentence on the limits that the configuration with the smallest shortfall is predicted to break."""
        nearest = self.nearest(codes[int(np.argmin(self.shortfall(codes)))], self.shortfall)[None]
        missed = [
            f"{bound.text} is predicted to be {bound.predicted.value[0]:,.4g}"
            for bound in bounded(self.job, self.simulators.memory, self.simulators.columns_of(nearest))
            if not bound.kept[0]
        ]
        fits = f"; {found}" if self.searched is None and (found := self.fitting_load()) else ""
        alone = "" if self.searched is None else "even if requests arrive one at a time, "
        name = self.space.name(self.space.of_codes(nearest[0].tolist()))
        return f"the configuration nearest to the limits is {name}; {alone}{listed(missed)}{fits}"


def _alike(one: Ranked, other: Ranked) -> bool:
    if one.memory_gib is None or other.memory_gib is None:
        return math.isclose(one.value, other.value, rel_tol=_NOTHING)
    near = math.isclose(one.value, other.value, rel_tol=_ALIKE)
    return near and math.isclose(one.memory_gib, other.memory_gib, rel_tol=_ALIKE)
