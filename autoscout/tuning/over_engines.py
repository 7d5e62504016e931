"""Asks one serving question of several engines: the same model, load, limits and devices."""

import itertools
import shlex
from pathlib import Path

import msgspec

from autoscout.targets.jobs import JobSpace
from autoscout.targets.launch import words
from autoscout.targets.target import names, target, target_of
from autoscout.tuning.best_predicted import PredictedRanking, ranking
from kb.records import AutoscoutError, Configuration, Job


class EngineRanking(msgspec.Struct, frozen=True):
    """The best configurations of an engine by prediction. `line`: the launch line of the best one ("" for several
    servers behind a router). `ranking`: None if the engine cannot serve the job, for the reason `refused`."""

    engine: str
    job: Job
    ranking: PredictedRanking | None = None
    line: str = ""
    refused: str = ""


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


def _ranked(engine: str, space: JobSpace, job: Job, kb: Path | None, count: int) -> EngineRanking:
    found = ranking(space, job, kb, count)
    launch = target_of(job).launch(job, Configuration(found.best[0].configuration))
    line = "" if launch.servers else shlex.join([*launch.program, *itertools.chain(*words(launch))])
    return EngineRanking(engine, job, found, line)
