"""One experiment: launch, watch, collect or classify, and leave nothing running."""

import os
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from autoscout.cluster import devices
from autoscout.running import environment, failures, results
from autoscout.running.failures import Outcome
from autoscout.running.replay import Replay
from autoscout.running.torchrun import Torchrun, torchrun_command
from autoscout.running.warm_launcher import Warm
from autoscout.targets.megatron import arguments
from autoscout.targets.vllm import arguments as vllm
from autoscout.targets.vllm.profiler import VllmProfiler
from kb.records import AutoscoutError, Configuration, Job, Measurement, Status


class Profiler(Protocol):
    """What a session needs. One experiment at a time."""

    def environment(self) -> dict[str, str]: ...

    def run(self, configuration: Configuration, name: str, folder: Path) -> Measurement: ...

    def interrupt(self) -> None: ...

    def close(self) -> None: ...


class Launcher(Protocol):
    """Starts the ranks of one experiment and waits for their end. Both calls return soon after `stopping()`."""

    def start(self, stopping: Callable[[], bool]) -> None: ...

    def run(self, experiment: Path, ranks: int, timeout_s: float, stopping: Callable[[], bool]) -> Outcome: ...

    def close(self) -> None: ...


def profiler_for(job: Job) -> Profiler:
    """The profiler that `job.launch` asks for. Nothing is started yet. Errors: AutoscoutError."""
    if job.launch.launcher == "replay":
        return Replay(job)
    if job.target == "vllm":
        return VllmProfiler(job)
    _check_target(job)
    kind = arguments.launcher(job)
    return MegatronProfiler(job, Warm(job) if kind == "warm" else Torchrun(job))


def launch_line(job: Job, configuration: Configuration, experiment: Path) -> str:
    """The shell command that runs one experiment by itself; of a serving job, the server that it loads."""
    if job.target == "vllm":
        model = job.launch.model_path or "MODEL"
        return shlex.join(vllm.serve_command(job, model, vllm.engine_arguments(job, configuration), 8000))
    _check_target(job)
    python = environment.target_python(job)
    return shlex.join(torchrun_command(python, experiment, arguments.world_size(configuration)))


def _check_target(job: Job) -> None:
    if job.target != "megatron":
        raise AutoscoutError(
            f"nothing profiles target = '{job.target}' yet, so this job cannot be run; `autoscout space` and "
            f"`autoscout explain` work on it",
            2,
        )


class MegatronProfiler:
    """Profiles configurations by really training with Megatron-core."""

    def __init__(self, job: Job, launcher: Launcher) -> None:
        self._job = job
        self._launcher = launcher
        self._environment: dict[str, str] = {}
        self._stopping = False

    def environment(self) -> dict[str, str]:
        """Versions and devices of the target (looked up once). Errors: AutoscoutError, see describe()."""
        if not self._environment:
            self._environment = environment.describe(self._job)
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

    def interrupt(self) -> None:
        """Ends the experiment that is running, or the next one; safe in a signal handler and from any thread."""
        self._stopping = True

    def close(self) -> None:
        """Ends every process that is still held."""
        self._launcher.close()

    def _run(self, configuration: Configuration, name: str, folder: Path) -> Measurement:
        ranks = arguments.world_size(configuration)
        try:
            about = results.About(
                configuration=configuration,
                name=name,
                context=environment.context_of(self._job, self.environment()),
                environment=self.environment(),
                ranks=ranks,
                started=time.time(),
            )
        except AutoscoutError as error:  # the target does not run at all
            return _failed(configuration, name, "error", str(error))
        worker = arguments.worker_config(self._job, configuration, devices.gpus_of(about.environment))
        self._launcher.start(lambda: self._stopping)
        started = time.time()
        experiment = results.prepare(folder, msgspec.structs.replace(about, started=started), worker)
        kills = failures.oom_kills()
        outcome = Outcome(stopped=True)
        if not self._stopping:
            outcome = self._launcher.run(experiment, ranks, self._job.launch.timeout_s, lambda: self._stopping)
        cost = time.time() - started
        measurement = results.collect(folder)
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


def _failed(configuration: Configuration, name: str, status: Status, evidence: str) -> Measurement:
    return Measurement(
        configuration=configuration, name=name, context="", status=status, evidence=evidence, at=time.time()
    )
