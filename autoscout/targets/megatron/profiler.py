"""One experiment on Megatron-core: launch, watch, collect or classify, and leave nothing running."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from autoscout.cluster import devices, gpus
from autoscout.running import outcome as failures
from autoscout.running import results, symptoms
from autoscout.running.equivalence import SETTINGS
from autoscout.running.interfaces import Launcher
from autoscout.running.interpreter import context_of
from autoscout.running.outcome import Outcome
from autoscout.running.torchrun import Torchrun
from autoscout.running.warm_launcher import Warm
from autoscout.targets.megatron import arguments, persons
from autoscout.targets.megatron.environment import WORKER, describe, launcher
from autoscout.targets.megatron.measurement import measurement as measured
from kb.records import AutoscoutError, Configuration, Job, Measurement, Status, content_hash

RANK = WORKER / "train.py"


def profiler(job: Job) -> "MegatronProfiler":
    """Nothing is started yet. Errors: AutoscoutError (exit 2) for a launcher that will not do."""
    if launcher(job) == "warm":
        return MegatronProfiler(job, Warm(job, RANK, arguments.variables(job, Configuration({}))))
    return MegatronProfiler(job, Torchrun(job, RANK))


class MegatronProfiler:
    """Profiles configurations by really training with Megatron-core."""

    def __init__(self, job: Job, launcher: Launcher) -> None:
        self._job = job
        self._launcher = launcher
        self._environment: dict[str, str] = {}
        self._stopping = False
        self._final = False

    def environment(self) -> dict[str, str]:
        """Versions and devices of the target (looked up once). Errors: AutoscoutError, see describe()."""
        if not self._environment:
            self._environment = describe(self._job)
        return self._environment

    def run(self, configuration: Configuration, name: str, folder: Path) -> Measurement:
        """Runs one experiment in `folder`, which is emptied of an earlier attempt.

        Failures are returned as measurements; after interrupt() the status is "killed".
        Errors: AutoscoutError when the configuration cannot be an experiment at all (no mbs) or the folder
        cannot be written.
        """
        try:
            return self._run(configuration, name, folder)
        finally:
            self._stopping = False

    def adopt(self, folder: Path) -> Measurement | None:
        """The measurement of an experiment that finished while nobody was left to write it down."""
        return measured(folder)

    def confirming(self, final: bool) -> None:
        """Whether the next runs are the final confirmation's, which train as the person does."""
        self._final = final and bool(persons.in_the_end(self._job))

    def interrupt(self) -> None:
        """Ends the experiment that is running, or the next one; safe in a signal handler and from any thread."""
        self._stopping = True

    def close(self) -> None:
        """Ends every process that is still held."""
        self._launcher.close()

    def _run(self, configuration: Configuration, name: str, folder: Path) -> Measurement:
        ranks = arguments.world_size(configuration)
        try:
            environment = {**self.environment(), **settings(self._job, self._final)}
            about = results.About(
                configuration=configuration,
                name=name,
                context=context_of(self._job, environment),
                environment=environment,
                ranks=ranks,
                started=time.time(),
            )
        except AutoscoutError as error:  # the target does not run at all
            return _failed(configuration, name, "infrastructure", str(error))
        seen, memory = devices.gpus_of(about.environment), devices.memory_of(about.environment)
        worker = worker_config(self._job, configuration, seen, memory, self._final)
        visible = worker["environment"].get("CUDA_VISIBLE_DEVICES") or os.environ.get("CUDA_VISIBLE_DEVICES", "")
        if seen and (busy := gpus.held(visible)):
            said = symptoms.sentence(symptoms.BY_OTHERS, f"before the start {busy}")
            failed = _failed(configuration, name, "infrastructure", said)
            return msgspec.structs.replace(failed, context=about.context, environment=about.environment)
        self._launcher.start(lambda: self._stopping)
        started, began = time.time(), time.monotonic()
        experiment = results.prepare(folder, msgspec.structs.replace(about, started=started), worker)
        kills = failures.oom_kills()
        outcome = Outcome(stopped=True)
        if not self._stopping:
            outcome = self._launcher.run(experiment, ranks, self._job.launch.timeout_s, lambda: self._stopping)
        cost = time.monotonic() - began
        measurement = measured(folder)
        if measurement is None and os.EX_CANTCREAT in outcome.codes.values():
            raise AutoscoutError(f"{folder}: the ranks cannot write there (disk full, or not the target's disk)")
        if measurement is None:
            kills = failures.oom_kills() - kills
            status, evidence = failures.classify(outcome, folder, self._job.launch.timeout_s, kills)
            measurement = _failed(configuration, name, status, evidence)
        return msgspec.structs.replace(
            measurement,
            context=about.context,
            environment=about.environment,
            cost_s=cost,
            device_s=cost * ranks,
            at=started + cost,
        )


def settings(job: Job, final: bool) -> dict[str, str]:
    """Of the environment: what the person says of training, where that is not what is searched with."""
    theirs = persons.in_the_end(job) if final else {}
    return {SETTINGS: content_hash(theirs)} if theirs else {}


def worker_config(
    job: Job, configuration: Configuration, seen: list[str], memory: Sequence[float] = (), final: bool = False
) -> dict[str, Any]:
    """What worker/train.py reads beside what it is about; `seen`: the names of the machine's GPUs, and their
    `memory` in GiB; `final`: in the confirmation.

    Errors: AutoscoutError (exit 2) for a configuration that no flags say.
    """
    launch = job.launch
    variables = arguments.variables(job, configuration)
    if devices.device_kind(job) == "cuda":  # the order in which the probe counts them
        chosen = devices.variables(job, configuration, seen, arguments.world_size(configuration), memory)
        variables |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", **chosen}
    theirs = persons.in_the_end(job) if final else persons.while_searching(job)
    flags = {**arguments.flags(job, configuration), **theirs}
    if launch.path:
        flags |= persons.stand_ins(job, flags)
    return {
        "device": devices.device_kind(job),
        "environment": variables,
        "arguments": flags,
        "checkout": launch.path,
        "warmup": launch.warmup,
        "iterations": launch.iterations,
        "measure_s": launch.measure_s,
        "group_timeout_s": max(15.0, launch.timeout_s / 2),
    }


def _failed(configuration: Configuration, name: str, status: Status, evidence: str) -> Measurement:
    return Measurement(
        configuration=configuration, name=name, context="", status=status, evidence=evidence, at=time.time()
    )
