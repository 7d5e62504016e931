"""Asks one serving question of several engines: the same model, load, limits and devices."""

import itertools
import shlex
from pathlib import Path

import msgspec
import numpy as np

from autoscout.job.objective import from_metric
from autoscout.search.hypervolume import front
from autoscout.targets.jobs import JobSpace
from autoscout.targets.launch import words
from autoscout.targets.target import names, target, target_of
from autoscout.tuning.best_predicted import PredictedRanking, ranking
from autoscout.tuning.predicted_front import Compromise, predicted_front, second_of
from kb.records import AutoscoutError, Configuration, Job, Value


class EngineRanking(msgspec.Struct, frozen=True):
    """The best configurations of an engine by prediction, and its Pareto front, each with its launch line ("" for
    several servers behind a router). `second`: the front's second metric. `ranking`: None if the engine cannot serve
    the job, for the reason `refused`."""

    engine: str
    job: Job
    ranking: PredictedRanking | None = None
    line: str = ""
    refused: str = ""
    second: str = ""
    front: list[Compromise] = []
    lines: list[str] = []


def over_engines(space: JobSpace, job: Job, kb: Path | None, count: int) -> list[EngineRanking]:
    """The ranking of the job's own engine, then that of each other engine whose server can be predicted.

    Errors: AutoscoutError (exit 2) if the job serves no model, or as `ranking` for the job itself."""
    model = target_of(job).served(job)
    if model is None:
        raise AutoscoutError(f"{job.name} starts no server whose model AutoScout can read: no engines to compare", 2)
    found = [_ranked(model.engine, space, job, kb, count)]
    asked = {engine: other for name in names() for engine, other in target(name).servers_of(job, model).items()}
    for engine, other in asked.items():
        if isinstance(other, str):
            found.append(EngineRanking(engine, job, refused=other))
            continue
        try:
            found.append(_ranked(engine, JobSpace.of_job(other), other, kb, count))
        except AutoscoutError as error:
            found.append(EngineRanking(engine, other, refused=str(error)))
    return found


def unbeaten(found: list[EngineRanking]) -> list[tuple[EngineRanking, Compromise, str]]:
    """(engine, point, launch line) of the points that no engine's point dominates, best in the objective first."""
    one = found[0].job.objective
    two = second_of(one) or one
    points = [(each, p, line) for each in found for p, line in zip(each.front, each.lines, strict=True)]
    costs = [(from_metric(one, p.x), from_metric(two, p.y)) for _, p, _ in points]
    best = {(x, y) for x, y in front(np.array(costs).reshape(-1, 2)).tolist()}
    order = sorted(range(len(points)), key=lambda i: costs[i][0])
    return [points[i] for i in order if costs[i] in best]


def _ranked(engine: str, space: JobSpace, job: Job, kb: Path | None, count: int) -> EngineRanking:
    found, second = ranking(space, job, kb, count), second_of(job.objective)
    return EngineRanking(
        engine,
        job,
        found,
        _line(job, found.best[0].configuration),
        second=second.metric if second else "",
        front=(points := predicted_front(space, job, second, kb) if second else []),
        lines=[_line(job, each.configuration) for each in points],
    )


def _line(job: Job, knobs: dict[str, Value]) -> str:
    launch = target_of(job).launch(job, Configuration(knobs))
    return "" if launch.servers else shlex.join([*launch.program, *itertools.chain(*words(launch))])
