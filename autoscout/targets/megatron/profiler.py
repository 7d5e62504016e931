"""Runs one experiment on Megatron-core: launches and monitors the ranks, collects results or classifies the failure,
and ends all processes."""

import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from autoscout.job.lengths import tokens_of_step
from autoscout.job.objective import from_metric
from autoscout.running import early, results, symptoms
from autoscout.running import outcome as failures
from autoscout.running.cluster import devices, gpus
from autoscout.running.cluster.choosing import chooser
from autoscout.running.cluster.placement import Placement
from autoscout.running.equivalence import SETTINGS
from autoscout.running.interfaces import Launcher
from autoscout.running.interpreter import context_of
from autoscout.running.outcome import RunOutcome
from autoscout.running.over_hosts import OverHosts
from autoscout.running.torchrun import Torchrun
from autoscout.running.warm_launcher import WarmRunner
from autoscout.targets.megatron import arguments, finetuning, persons
from autoscout.targets.megatron.doubted_layouts import doubts
from autoscout.targets.megatron.environment import WORKER, describe, launcher
from autoscout.targets.megatron.measurement import measurement as measured
from kb import dates
from kb.records import AutoscoutError, Configuration, Job, Measurement, Status, content_hash

RANK = WORKER / "train.py"


def profiler(job: Job) -> "MegatronProfiler":
    """Returns a job's profiler, but starts nothing. Errors: AutoscoutError (exit 2) for an unsuitable launcher."""
    if job.cluster.hosts:
        imports = arguments.variables(job, Configuration({}))
        return MegatronProfiler(job, OverHosts(job, RANK, chooser(job), launcher(job) == "warm", imports))
    if launcher(job) == "warm":
        return MegatronProfiler(job, WarmRunner(job, RANK, arguments.variables(job, Configuration({}))))
    return MegatronProfiler(job, Torchrun(job, RANK))


class MegatronProfiler:
    def __init__(self, job: Job, launcher: Launcher, environment: dict[str, str] | None = None) -> None:
        """`environment`: an earlier result of describe(), since a new call would take about ten seconds."""
        self._job = job
        self._launcher = launcher
        self._environment = environment or {}
        self._stopping = False
        self._final = False
        self._bar: early.Bar | None = None
        self._elsewhere = False
        self._given: list[int] = []
        self._doubts = doubts(job)

    def aim(self, bar: early.Bar | None) -> None:
        """Sets the performance that the next run has to beat to be completed (running/early.py)."""
        self._bar = bar if self._job.launch.end_early else None

    def environment(self) -> dict[str, str]:
        """Returns versions and devices, cached. Errors: see describe()."""
        if not self._environment:
            over = self._launcher if isinstance(self._launcher, OverHosts) else None
            self._environment = describe(self._job, over.probe if over else None)
        return self._environment

    def run(self, configuration: Configuration, name: str, folder: Path) -> Measurement:
        """Runs one experiment in `folder`, after deleting files of an earlier attempt.

        A failure is returned as a measurement, with the status "killed" after interrupt(). Errors: AutoscoutError if
        the configuration cannot be run at all (no mbs) or the folder cannot be written."""
        try:
            return self._run(configuration, name, folder)
        finally:
            self._stopping, self._bar = False, None

    def adopt(self, folder: Path) -> Measurement | None:
        return measured(folder)

    def place(self, elsewhere: bool) -> None:
        """Sets whether the next run should use different GPUs than before, if some are free."""
        self._elsewhere = elsewhere

    def on(self, placement: Placement) -> None:
        """Sets the hosts and devices of the next runs. If the job has no hosts, the devices are this machine's GPUs by
        index."""
        if isinstance(self._launcher, OverHosts):
            self._launcher.on(placement)
        else:
            self._given = [int(device.index) for device in placement.hosts[0].devices]

    def confirming(self, final: bool) -> None:
        """Sets whether the next runs are for the final confirmation, which uses the user's training settings."""
        self._final = final and bool(persons.in_the_end(self._job))

    def interrupt(self) -> None:
        self._stopping = True

    def close(self) -> None:
        self._launcher.close()

    def _spare(self, seen: list[str], memory: Sequence[float], given: str) -> list[int]:
        """Returns the indices of GPUs to use instead of the default ones: the GPUs set by on(), or free GPUs after
        place(True)."""
        if self._given:
            return self._given
        if not self._elsewhere or len(seen) <= self._job.devices:
            return []
        taken = gpus.taken([devices.physical(i, given) for i in range(len(seen))])
        return devices.unused(self._job, seen, memory, taken)

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
            )
        except AutoscoutError as error:  # the target's interpreter does not run
            return _failed(configuration, name, "infrastructure", str(error))
        seen, memory = devices.gpus_of(about.environment), devices.memory_of(about.environment)
        given = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        spare = self._spare(seen, memory, given)
        worker = worker_config(self._job, configuration, seen, memory, spare, self._final)
        worker |= bar_in_seconds(self._job, self._bar)
        worker["arguments"] = arguments.as_installed(worker["arguments"], about.environment)
        chosen = worker["environment"].get("CUDA_VISIBLE_DEVICES", "")
        visible = ",".join(devices.physical(int(index), given) for index in chosen.split(",")) if chosen else given
        if seen and not self._job.cluster.hosts and (busy := gpus.held(visible)):
            reason = symptoms.sentence(symptoms.BY_OTHERS, f"before the start {busy}")
            failed = _failed(configuration, name, "infrastructure", reason)
            return msgspec.structs.replace(failed, context=about.context, environment=about.environment)
        if failed := self._doubts.foretold(configuration, name, lambda: self._stopping):
            return msgspec.structs.replace(failed, context=about.context, environment=about.environment)
        if isinstance(self._launcher, OverHosts) and len({node.device for node in self._job.cluster.nodes}) > 1:
            self._launcher.only(devices.used_nodes(self._job, configuration))
        self._launcher.start(lambda: self._stopping)
        if self._launcher.unfit:
            self._launcher.close()
            self._launcher = Torchrun(self._job, RANK)
        started, began = dates.now(), time.monotonic()
        experiment = results.prepare(folder, about, worker)
        measurement, cost = self._ended(experiment, about, began)
        return results.in_context(measurement, about, started, cost, ranks)

    def _ended(self, experiment: Path, about: results.About, began: float) -> tuple[Measurement, float]:
        """Returns (the run's result, seconds from `began` to the run's end)."""
        kills, folder, limit_s = failures.oom_kills(), experiment.parent, self._job.launch.timeout_s
        outcome = RunOutcome(stopped=True)
        if not self._stopping:
            outcome = self._launcher.run(experiment, about.ranks, limit_s, lambda: self._stopping)
        cost = time.monotonic() - began
        if (measurement := measured(folder)) is not None:
            return measurement, cost
        if os.EX_CANTCREAT in outcome.codes.values():
            raise AutoscoutError(
                f"{folder}: the ranks cannot write to this folder; free space on its disk, or choose a --kb on a disk "
                "that all ranks can reach"
            )
        status, evidence = failures.classify(outcome, folder, limit_s, failures.oom_kills() - kills)
        failed = _failed(about.configuration, about.name, status, evidence)
        lost = {failures.HOST_LOST: 1.0} if outcome.lost else {}
        return msgspec.structs.replace(failed, conditions=lost), cost


def settings(job: Job, final: bool) -> dict[str, str]:
    """Returns {SETTINGS: hash of the user's training settings} for the final confirmation; {} for the search, or if
    both have the same settings."""
    theirs = persons.in_the_end(job) if final else {}
    return {SETTINGS: content_hash(theirs)} if theirs else {}


def worker_config(
    job: Job,
    configuration: Configuration,
    seen: list[str],
    memory: Sequence[float] = (),
    spare: Sequence[int] = (),
    final: bool = False,
) -> dict[str, Any]:
    """Returns the input of worker/train.py without `about`. `seen`: names of the machine's GPUs, with `memory` in GiB.
    `spare`: indices of GPUs to use instead of the default ones. `final`: for the final confirmation.

    Errors: AutoscoutError (exit 2) for a configuration that has no flags."""
    launch = job.launch
    variables = arguments.variables(job, configuration)
    if devices.device_kind(job) == "cuda":
        variables["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # so that GPU indices have the same order as in probe.py
    if job.cluster.hosts:  # the agent process on each host chooses devices and network interface
        if "GLOO_SOCKET_IFNAME" not in launch.environment:
            variables.pop("GLOO_SOCKET_IFNAME", None)
    elif devices.device_kind(job) == "cuda":
        chosen = devices.variables(job, configuration, seen, arguments.world_size(configuration), memory, spare)
        variables |= chosen
    theirs = persons.in_the_end(job) if final else persons.while_searching(job)
    flags = {**arguments.flags(job, configuration), **theirs}
    if launch.path:
        flags |= persons.stand_ins(job, flags)
    return {
        "device": devices.device_kind(job),
        "kinds": _cpu_kinds(job, configuration),
        "environment": variables,
        "arguments": flags,
        "checkout": launch.path,
        **finetuning.worker(job),
        "warmup": launch.warmup,
        "iterations": launch.iterations,
        "measure_s": launch.measure_s,
        "group_timeout_s": max(15.0, launch.timeout_s / 2),
    }


def _cpu_kinds(job: Job, configuration: Configuration) -> list[str]:
    """Returns each rank's kind of CPU if the job has several, since a rank cannot detect it."""
    if devices.device_kind(job) != "cpu" or len({node.device for node in job.cluster.nodes}) == 1:
        return []
    return [node.device for node in devices.used_nodes(job, configuration) for _ in range(node.count)]


def bar_in_seconds(job: Job, bar: early.Bar | None) -> dict[str, Any]:
    """Returns the worker's entries `spread` and `best_s`, the step time that the next run has to beat; {} if the
    objective is neither step time nor throughput."""
    of_a_second = {"step_time_s": 1.0, "tokens_per_s": tokens_of_step(job.traffic)}.get(job.objective.metric)
    if bar is None or of_a_second is None:
        return {}
    settings = {"spread": bar.spread}
    return (
        settings | {"best_s": bar.cost / from_metric(job.objective, of_a_second)} if bar.cost < math.inf else settings
    )


def _failed(configuration: Configuration, name: str, status: Status, evidence: str) -> Measurement:
    return Measurement(
        configuration=configuration, name=name, context="", status=status, evidence=evidence, at=dates.now()
    )
