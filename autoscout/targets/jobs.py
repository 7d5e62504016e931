"""Loads and checks jobs of any target, and creates their spaces."""

import importlib.metadata
from collections.abc import Iterable, Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import msgspec

from autoscout.job import metrics
from autoscout.job.load import job_of_file, read_job, refuse
from autoscout.running.equivalence import Check, Floor
from autoscout.running.interfaces import Profiler
from autoscout.running.replay import Replay
from autoscout.simulate.hardware.capacity import capacities
from autoscout.simulate.member import Member
from autoscout.space.attributes import attributes_of, device_knobs, whole_devices
from autoscout.space.declared import extended
from autoscout.space.graph import Space
from autoscout.space.knob import Catalog, instantiate
from autoscout.space.language.expression import Expression
from autoscout.space.opened import opened, still_open
from autoscout.targets.target import target_of
from kb.records import AutoscoutError, Configuration, Job


def load_job(path: str | Path, segmented: bool = False) -> Job:
    """Loads and checks a job file. `segmented`: whether its traffic may consist of segments, of which only predictions
    and what needs no load can make use. Errors: AutoscoutError (exit 2) naming the file, the key and the nearest known
    key."""
    job = _checked(read_job(path), path)
    if job.traffic.segments and not segmented:
        raise AutoscoutError(
            f"{path}: traffic.segments is answered by `autoscout predict JOB.toml`, with KNOB=VALUE or --best N; for "
            "anything else, give one segment as traffic.trace",
            2,
        )
    return job


def drafted_job(data: dict[str, Any], folder: Path) -> Job:
    """Returns the job of a draft that will be written to `folder`. Errors: as `load_job`, but without a file name."""
    try:
        return _checked(job_of_file(data, Path("job"), folder), Path("job"))
    except AutoscoutError as error:
        raise AutoscoutError(str(error).removeprefix("job: "), error.exit_code) from error


def _checked(job: Job, path: str | Path) -> Job:
    refuse(path, _problems(job))
    return job


def _problems(job: Job) -> Iterator[str]:
    kind = target_of(job)
    if job.task not in kind.tasks:
        yield f"target = '{job.target}' does not support task = '{job.task}'; it supports {', '.join(kind.tasks)}"
    if kind.needs_model and not job.model.layers:
        yield f"target = '{job.target}' needs a [model]: layers, hidden, heads, vocab, or a preset"
    yield from metrics.metric_problems(job, kind.metrics(job))
    yield from kind.problems(job)


def catalog_of(job: Job) -> Catalog:
    """Returns the target's catalog for the engine's installed version, with the user's own additions. Errors:
    AutoscoutError (exit 2) naming the file and the key."""
    kind = target_of(job)
    return kind.adapted(declared(job), job)


def declared(job: Job) -> Catalog:
    """Like `catalog_of`, but not adapted to the installed version: for the engine version that the catalog
    describes."""
    kind = target_of(job)
    return extended(job, kind.catalog(job), kind.refuses_knob)


def meanings(job: Job) -> dict[str, str]:
    """Returns the meaning of each knob; {} if the job's catalog can no longer be read."""
    try:
        knobs = [*device_knobs(job)[1], *declared(job).knob]
    except AutoscoutError:
        return {}
    return {knob.name: knob.meaning for knob in knobs}


def notes(job: Job) -> list[str]:
    """Returns notes on differences between the catalog and the engine's installed version."""
    return target_of(job).notes(declared(job), job)


class JobSpace(Space):
    job: Job

    @property
    def reference(self) -> Configuration:
        """The baseline, which is the first of the target's recipes. Errors: AutoscoutError (exit 3)."""
        return self.recipes[0]

    @property
    def recipes(self) -> list[Configuration]:
        """The expert configurations from which searches start, without duplicates. The first one is the reference.
        Errors: AutoscoutError (exit 3)."""
        return self._recipes

    @cached_property
    def _recipes(self) -> list[Configuration]:
        found = list(target_of(self.job).recipes(self))
        return [c for i, c in enumerate(found) if c not in found[:i]]

    @staticmethod
    def load(path: str | Path) -> "JobSpace":
        return JobSpace.of_job(load_job(path))

    @staticmethod
    def of_job(job: Job) -> "JobSpace":
        """Creates the space of a job. Errors: AutoscoutError for an invalid [space] (exit 2) naming the job."""
        try:
            return JobSpace._of_job(job)
        except AutoscoutError as error:
            if error.exit_code != 2:
                raise
            raise AutoscoutError(f"job {job.name}: {error}", 2) from error

    @staticmethod
    def _of_job(job: Job) -> "JobSpace":
        attributes = attributes_of(job)
        derived, knobs_of_devices = device_knobs(job)
        kinds = [knob.name for knob in knobs_of_devices]
        rules = [whole_devices(), *target_of(job).device_rules(kinds)] if kinds else []
        catalog = catalog_of(job)
        limits = still_open(job.space, catalog)
        catalog = opened(catalog, attributes, limits)
        catalog = msgspec.structs.replace(
            catalog,
            knob=[*knobs_of_devices, *catalog.knob],
            rule=[*rules, *catalog.rule],
            derived={**catalog.derived, **derived},
        )
        if catalog.simulated:
            _check_simulated(catalog.simulated, job)
        knobs, found = instantiate(catalog, attributes, limits)
        space = JobSpace(knobs, found, attributes, limits, job.objective, catalog.derived)
        space.job, space.capacities, space.closed = job, capacities(job), catalog.closed
        space.simulated = {name: Expression(text, catalog.derived) for name, text in catalog.simulated.items()}
        return space


def check_of(job: Job) -> Check:
    """Returns the job's equivalence check, including its quality floor."""
    return Floor(target_of(job).equivalence(job), job.guard)


def profiler_of(job: Job) -> Profiler:
    """Returns the profiler for `job.launch`, without starting anything. Errors: AutoscoutError."""
    if job.launch.launcher == "replay":
        return Replay(job)
    return target_of(job).profiler(job)


@cache
def _simulators_of_packages() -> importlib.metadata.EntryPoints:
    return importlib.metadata.entry_points(group="autoscout.simulators")


def simulators_of(job: Job) -> list[Member]:
    """Returns new simulators of the job's objective that work without measurements: those of the target, and those that
    packages register under the entry point group `autoscout.simulators`.

    Errors: AutoscoutError for a package that cannot be loaded."""
    found = target_of(job).simulators(job)
    for entry in _simulators_of_packages():
        try:
            found = [*found, *entry.load()(job)]
        except Exception as error:  # any exception of a plug-in's code
            raise AutoscoutError(f"the simulators '{entry.name}' ({entry.value}) cannot be loaded: {error}") from error
    return found


def _check_simulated(names: Iterable[str], job: Job) -> None:
    """Checks the names of simulator inputs. Errors: AutoscoutError (exit 2) for a name that no simulator has."""
    from autoscout.job.words import meant
    from autoscout.simulate.training.inputs import READ

    read: tuple[str, ...] = READ
    if job.task == "serve":
        from autoscout.simulate.serving.setup import READ as read
    elif job.task == "rl":
        from autoscout.simulate.iteration.iteration_columns import READ as read
    for name in names:
        if name not in read:
            raise AutoscoutError(f"simulated.{name} is not a column of the simulators{meant(name, read)}", 2)
