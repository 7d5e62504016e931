"""Asks which configuration is best over several loads (traffic.segments): under each, on average and in the worst one,
and whether the choice holds for a load that had no part in it."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType

import msgspec
import numpy as np

from autoscout.job.objective import from_metric, to_metric
from autoscout.job.segments import segment_jobs
from autoscout.job.words import listed
from autoscout.targets.jobs import JobSpace
from autoscout.tuning.best_predicted import SHARES, PredictedRows, Ranked, best_rows, with_fixed
from autoscout.tuning.predict import Predicted, fitted_simulators, predict, unpriced
from kb.records import AutoscoutError, Objective, Value

_EQUAL = 4  # decimal places to which two means relative to the best are compared; more is below any simulator's error
Codes = tuple[int, ...]


class OneOverSegments(msgspec.Struct, frozen=True):
    """The predictions of one configuration. `mean`: of the metric, in which each segment counts the same; `worst`: the
    metric in the segment `worst_in`."""

    job: str
    name: str
    configuration: dict[str, Value]
    metric: str
    segments: dict[str, Predicted]
    mean: float
    worst: float
    worst_in: str


class SegmentsRow(msgspec.Struct, frozen=True):
    """A configuration that keeps all constraints in every segment. `values`: segment → metric. `mean`: of the metric
    divided by the best one for the segment (1: best in all); `worst`: this quotient in the segment `worst_in`."""

    name: str
    configuration: dict[str, Value]
    values: dict[str, float]
    mean: float
    worst: float
    worst_in: str


class LeftOut(msgspec.Struct, frozen=True):
    """The configuration that the other segments choose without `segment`. `value`: its metric in that segment;
    `relative`: divided by the best one for the segment. Both are None if it does not run there or breaks a limit."""

    segment: str
    name: str
    configuration: dict[str, Value]
    value: float | None
    relative: float | None


class SegmentsRanking(msgspec.Struct, frozen=True):
    """`best`: segment → the best metric for it alone. `rows`: best first. `reference`: the reference's row; None if it
    is predicted not to run or to break a limit in a segment. `unpriced`: as in best_predicted.PredictedRanking."""

    job: str
    metric: str
    searched: int
    best: dict[str, float]
    rows: list[SegmentsRow]
    reference: SegmentsRow | None
    left_out: list[LeftOut]
    unpriced: list[str] = []


def one_over_segments(space: JobSpace, given: Mapping[str, Value], kb: Path | None) -> OneOverSegments:
    """Predicts a configuration under each segment. Errors: as `predict`, naming the segment."""
    found: dict[str, Predicted] = {}
    for segment, job in segment_jobs(space.job).items():
        try:
            found[segment] = predict(space, given, kb, job)
        except AutoscoutError as error:
            raise _named(segment, error) from error
    first = next(iter(found.values()))
    worst_in = max(found, key=lambda segment: from_metric(space.job.objective, found[segment].value))
    return OneOverSegments(
        first.job,
        first.name,
        first.configuration,
        first.metric,
        found,
        mean=float(np.mean([each.value for each in found.values()])),
        worst=found[worst_in].value,
        worst_in=worst_in,
    )


def over_segments(
    whole: JobSpace, kb: Path | None, count: int, knobs: Mapping[str, Value] = MappingProxyType({})
) -> SegmentsRanking:
    """Ranks the configurations with these values of `knobs` over all segments. The space is one for all segments, since
    the server must take the longest request of any of them.

    Errors: AutoscoutError, as `ranking`, naming the segment; exit code 3 if nothing keeps the limits in all of them."""
    space = with_fixed(whole.job, knobs) if knobs else whole
    jobs, reference = segment_jobs(space.job), space.codes_of(whole.reference.knobs)
    firsts: list[Codes] = [tuple(reference)] if reference else []
    loads: dict[str, PredictedRows] = {}
    for segment, job in jobs.items():
        try:
            loads[segment], best = best_rows(space, job, fitted_simulators(job, kb), count)
        except AutoscoutError as error:
            raise _named(segment, error) from error
        firsts += _codes(space, best)
    return _Priced(space, loads, tuple(reference) if reference else None).ranking(firsts, count)


def relative(objective: Objective, costs: np.ndarray, best: np.ndarray) -> np.ndarray:
    """The metrics of (n, segments) costs, divided by those of the `best` cost for each segment.

    A mean of the metrics themselves would be that of the busiest segment: a twentieth of its 4,000 tokens/s is more
    than half of the 300 of a quiet night. As quotients, one per cent is the same loss in each segment. Their
    denominator is what the segment allows at best, not another configuration of the table, so that the order of two
    configurations does not depend on what they are listed with."""
    return costs / best if objective.minimize else best / costs


def mean_costs(objective: Objective, costs: np.ndarray, best: np.ndarray) -> np.ndarray:
    """(n,) the mean over the segments of what `relative` returns, as a cost; inf for configurations that cannot be used
    in one of them."""
    usable = np.isfinite(costs.sum(axis=1))
    means = relative(objective, np.where(usable[:, None], costs, best), best).mean(axis=1)
    means = means if objective.minimize else 1 / means
    return np.where(usable, means, np.inf)


class _Priced:
    """Prices of configurations under each segment. Every configuration is simulated by itself, and only once."""

    def __init__(self, space: JobSpace, loads: dict[str, PredictedRows], reference: Codes | None) -> None:
        self.space, self.loads, self.reference = space, loads, reference
        self.objective = space.job.objective
        self.known: dict[Codes, np.ndarray] = {}

    def ranking(self, firsts: list[Codes], count: int) -> SegmentsRanking:
        """`firsts`: the best configurations for single segments. Those for the mean, and for the mean without one
        segment, are searched here. All of them are candidates of every choice: which of them is chosen without a
        segment depends on the others alone, so more candidates only make that choice better."""
        every = list(range(len(self.loads)))
        best = self._best(firsts)
        others = [[i for i in every if i != out] for out in every]
        found = self._compromises(every, best, count)
        if len(every) > 2:
            found += [code for group in others for code in self._compromises(group, best, 1)]
        pool = [*dict.fromkeys([*firsts, *found])]
        best = self._best(pool)
        usable = self._ordered(pool, every, best)
        if not usable:
            raise AutoscoutError(self._unusable(pool), 3)
        rows = self._unlike(usable)[:count]
        configurations = [self.space.of_codes(code) for code in rows]
        return SegmentsRanking(
            job=self.space.job.name,
            metric=self.objective.metric,
            searched=self.space.count,
            best={name: to_metric(self.objective, cost) for name, cost in zip(self.loads, best.tolist(), strict=True)},
            rows=[self._row(code, best) for code in rows],
            reference=self._row(self.reference, best) if self.reference in usable else None,
            left_out=[self._left_out(out, self._ordered(pool, others[out], best)[0], best) for out in every],
            unpriced=unpriced(self.space, configurations),
        )

    def costs(self, codes: list[Codes]) -> np.ndarray:
        """(n, segments) costs; inf where a configuration is predicted not to run or to break a limit."""
        for code in codes:
            if code not in self.known:
                row = np.array([code], dtype=np.int16)
                found = np.array([load.each_cost(row)[0] for load in self.loads.values()])
                self.known[code] = np.where(np.isfinite(found), found, np.inf)
        return np.array([self.known[code] for code in codes])

    def _best(self, codes: list[Codes]) -> np.ndarray:
        """(segments,) the lowest cost in each segment."""
        best = self.costs(codes).min(axis=0)
        for segment, cost in zip(self.loads, best.tolist(), strict=True):
            if not np.isfinite(cost):
                raise AutoscoutError(f"{segment}: no configuration is predicted to keep the limits in this segment", 3)
        return best

    def _compromises(self, group: list[int], best: np.ndarray, count: int) -> list[Codes]:
        """The configurations with the lowest mean over a group of segments. If what many at once seem to keep is broken
        by each of them alone, the search is repeated with stricter bounds."""
        loads = [load for i, load in enumerate(self.loads.values()) if i in group]

        def cost(codes: np.ndarray, share: float = 1.0) -> np.ndarray:
            found = np.stack([load.costs(codes, share) for load in loads], axis=1)
            return mean_costs(self.objective, found, best[group])

        for share in SHARES:
            rows = loads[0].first_ones(partial(cost, share=share), count)
            codes = [tuple(row) for row in rows.tolist()]
            if codes and (kept := self._ordered(codes, group, best)):
                return [tuple(loads[0].nearest(np.array(code, dtype=np.int16), cost).tolist()) for code in kept[:count]]
        return []

    def _ordered(self, codes: list[Codes], group: list[int], best: np.ndarray) -> list[Codes]:
        """The configurations that can be used in a group of segments, by the mean, then the worst of them, then by the
        number of knobs that differ from the reference."""
        costs = self.costs(codes)[:, group]
        means, worst = mean_costs(self.objective, costs, best[group]), (costs / best[group]).max(axis=1)
        home = self.reference or self.space.codes_of(self.space.reference.knobs)
        apart = (np.array(codes) != home).sum(axis=1)
        order = np.lexsort((apart, worst.round(_EQUAL), means.round(_EQUAL)))
        return [codes[i] for i in order if np.isfinite(means[i])]

    def _unlike(self, codes: list[Codes]) -> list[Codes]:
        """Drops configurations that cost the same as an earlier one in every segment."""
        found: list[Codes] = []
        for code in codes:
            if not any(np.allclose(self.known[code], self.known[other], rtol=10**-_EQUAL, atol=0) for other in found):
                found.append(code)
        return found

    def _row(self, code: Codes, best: np.ndarray) -> SegmentsRow:
        costs, configuration = self.known[code], self.space.of_codes(code)
        quotients = relative(self.objective, costs, best)
        worst = int(np.argmax(costs / best))
        return SegmentsRow(
            self.space.name(configuration),
            configuration.knobs,
            values={
                name: to_metric(self.objective, cost) for name, cost in zip(self.loads, costs.tolist(), strict=True)
            },
            mean=float(quotients.mean()),
            worst=float(quotients[worst]),
            worst_in=list(self.loads)[worst],
        )

    def _left_out(self, out: int, code: Codes, best: np.ndarray) -> LeftOut:
        configuration, cost = self.space.of_codes(code), float(self.known[code][out])
        usable = np.isfinite(cost)
        return LeftOut(
            list(self.loads)[out],
            self.space.name(configuration),
            configuration.knobs,
            value=to_metric(self.objective, cost) if usable else None,
            relative=float(relative(self.objective, self.known[code], best)[out]) if usable else None,
        )

    def _unusable(self, codes: list[Codes]) -> str:
        """A sentence on the configuration that can be used in the most segments."""
        usable = np.isfinite(self.costs(codes))
        most = int(np.argmax(usable.sum(axis=1)))
        name = self.space.name(self.space.of_codes(codes[most]))
        fails = listed(segment for segment, fits in zip(self.loads, usable[most].tolist(), strict=True) if not fits)
        return (
            f"no configuration of {self.space.job.name} is predicted to fit into memory and meet the constraints in "
            f"every segment; {name} does in all but {fails}"
        )


def _codes(space: JobSpace, rows: list[Ranked]) -> list[Codes]:
    found = (space.codes_of(row.configuration) for row in rows)
    return [tuple(codes) for codes in found if codes]


def _named(segment: str, error: AutoscoutError) -> AutoscoutError:
    return AutoscoutError(f"{segment}: {error}", error.exit_code)
