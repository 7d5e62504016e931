"""Finds which of many successive changes made a job slower. Measures pairs of versions (points, between.py), which are
chosen by changepoint.py, until one change is probably the cause.

A point that does not run is left out, so its change and the next one cannot be told apart. Each point has its own
session, so all measurements are in the knowledge base."""

import contextlib
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from autoscout.job.objective import cost_of_run
from autoscout.tuning import changepoint, session
from autoscout.tuning.between import BisectPoint
from autoscout.tuning.changepoint import ChangeSearch
from autoscout.tuning.evidence import factor, percent
from autoscout.tuning.gate import SPOILED, GateSide, opened
from autoscout.tuning.loop import Stop, end
from autoscout.tuning.sides import side
from kb.records import AutoscoutError, Job, Measurement

_OPEN = 6  # number of points whose checkouts, environments and processes are kept for their next run
_LIKELY = 0.02  # smallest probability with which further changes are reported as suspects


class Suspect(msgspec.Struct, frozen=True):
    """A change that may be the cause. `label`: the first point with the change; `before`: the last point without it;
    `p`: its probability; `skipped`: number of points between these two that did not run, whose changes may be the cause
    instead."""

    label: str
    before: str
    p: float
    skipped: int = 0


class Bisected(msgspec.Struct, frozen=True):
    """The result of a bisection. `slower`: expected cost after the change / before it, None without pairs; `suspects`:
    the changes that may be the cause, most probable first."""

    sure: bool
    sentence: str
    slower: float | None
    pairs: int
    suspects: list[Suspect]
    broken: list[str]


def bisect(
    points: Sequence[BisectPoint],
    job: Job,
    kb: Path,
    on_note: Callable[[str], None],
    stop: Stop,
    limit: int = 40,
    sure: float = 0.95,
    wheels: str = "",
) -> Bisected:
    """The changes that may be the cause. Errors: AutoscoutError (exit 1) if an endpoint does not run; Interrupted."""
    session.repair(kb, on_note)
    broken: dict[int, str] = {}
    changes, pair = len(points) - 1, 0
    search, p = changepoint.ChangeSearch(changes), dict[int, float]()
    lie = "1 change lies" if changes == 1 else f"{changes} changes lie"
    on_note(f"{lie} between {points[0].label} and {points[-1].label}")
    open_ = OpenPoints(points, job, kb, on_note, stop, wheels)
    with contextlib.closing(open_):
        while pair < limit:
            both, logs = search.next_pair(broken), {}
            for point in both if np.random.default_rng((pair, 52)).random() < 0.5 else both[::-1]:
                try:
                    found = open_.run(point)
                except AutoscoutError as error:
                    broken[point] = str(error)
                    continue
                value = cost_of_run(job.objective, found)
                if value is not None:
                    logs[point] = math.log(value)
                elif found.status not in SPOILED:
                    broken[point] = found.evidence
            for point in (0, changes):
                if point in broken:
                    raise AutoscoutError(f"{points[point].label} does not run: {broken[point]}")
            if broken.keys() & set(both):
                search = changepoint.ChangeSearch(changes, (s for s in search.pairs if not broken.keys() & set(s[:2])))
            elif len(logs) == 2:
                search.see((*both, logs[both[0]], logs[both[1]]))
            pair += 1
            before, p = p, _of_suspects(search, broken)
            first = max(p, key=p.__getitem__)
            on_note(f"pair {pair}: {_named(points, both)}; the likeliest cause so far: {points[first].label}")
            twice = min(p[first], before.get(first, 0.0))  # two pairs in a row, since a burst of load may distort one
            if twice >= sure and len(search.pairs) > changepoint.FIRST:
                break
    return _bisected(points, search, broken, pair, sure)


class OpenPoints:
    """The points that ran last, each with its checkout or environment and its process, ready to run again."""

    def __init__(
        self,
        points: Sequence[BisectPoint],
        job: Job,
        kb: Path,
        on_note: Callable[[str], None],
        stop: Stop,
        wheels: str,
    ) -> None:
        self._points, self._job, self._kb, self._wheels = points, job, kb, wheels
        self._on_note, self._stop = on_note, stop
        self._open: dict[int, tuple[GateSide, contextlib.ExitStack]] = {}  # ordered by their last run

    def run(self, point: int) -> Measurement:
        """Runs a point once more. Errors: AutoscoutError if it does not start."""
        if point not in self._open:
            self._open[point] = self._started(point)
        self._open[point] = each, _ = self._open.pop(point)
        while len(self._open) > _OPEN:
            self._close(next(iter(self._open)))
        self._stop.now = each.loop.profiler.interrupt
        return each.run()

    def _started(self, point: int) -> tuple[GateSide, contextlib.ExitStack]:
        with contextlib.ExitStack() as held:
            made = held.enter_context(side(self._points[point].side, self._job, self._kb, self._wheels))
            each = opened(held, made, self._kb, self._on_note, self._stop, "bisect")
            held.callback(self._ended, each)
            each.run()  # its time is not used, since caches and compilation make the first run slower
            return each, held.pop_all()

    def _ended(self, each: GateSide) -> None:
        with contextlib.suppress(AutoscoutError):
            end(each.loop.engine, self._kb, "profiled", self._on_note)

    def _close(self, point: int) -> None:
        self._open.pop(point)[1].close()

    def close(self) -> None:
        for point in list(self._open):
            self._close(point)


def _named(points: Sequence[BisectPoint], both: tuple[int, int]) -> str:
    return " and ".join(dict.fromkeys(points[point].label for point in both))


def _of_suspects(search: ChangeSearch, broken: dict[int, str]) -> dict[int, float]:
    """Each point that runs → probability that the cause lies between the previous point that runs and this one."""
    found, together = {}, 0.0
    for point, p in enumerate(search.p.tolist(), 1):
        together += p
        if point not in broken:
            found[point], together = together, 0.0
    return found


def _bisected(
    points: Sequence[BisectPoint], search: ChangeSearch, broken: dict[int, str], pairs: int, sure: float
) -> Bisected:
    p = _of_suspects(search, broken)
    works = [0, *p]
    order = sorted(p, key=lambda point: -p[point])
    suspects = []
    for point in order:
        before = works[works.index(point) - 1]
        if p[point] >= _LIKELY or point == order[0]:
            suspects.append(Suspect(points[point].label, points[before].label, p[point], point - before - 1))
    by = search.slowdown(order[0] - 1) if len(search.pairs) >= changepoint.FIRST else None
    first, is_sure = suspects[0], p[order[0]] >= sure
    between = f" or one of the {first.skipped} changes before it, which do not run" if first.skipped else ""
    slower = "" if by is None else f", {percent(by)}"
    sentence = f"{first.label}{between} made the job slower{slower} (probability {first.p:.2f}, {pairs} pairs)"
    return Bisected(
        sure=is_sure,
        sentence=sentence if is_sure else f"undecided after {pairs} pairs; the likeliest cause: {sentence}",
        slower=None if by is None else factor(by),
        pairs=pairs,
        suspects=suspects,
        broken=[f"{points[point].label}: {why}" for point, why in sorted(broken.items())],
    )
