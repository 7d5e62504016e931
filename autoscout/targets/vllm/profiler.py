"""Profiles configurations of a serving job on a real vLLM under the job's load."""

import os
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from autoscout.job.metrics import HIGHEST_RATE
from autoscout.line.visible_gpus import named
from autoscout.running import interpreter as environment
from autoscout.running import outcome as failures
from autoscout.running import results, symptoms
from autoscout.running.cluster import devices, gpus
from autoscout.running.cluster.placement import Placement
from autoscout.running.outcome import RunOutcome
from autoscout.running.warm_launcher import WarmRunner
from autoscout.targets.vllm import arguments as vllm
from autoscout.targets.vllm import failures as serving_failures
from autoscout.targets.vllm import fleet_servers, load_plan, reuse
from autoscout.targets.vllm import measurement as serving
from autoscout.targets.vllm.first_rate import FirstRate
from autoscout.targets.vllm.kept import identity_of
from autoscout.targets.vllm.reuse import Reuse
from autoscout.targets.vllm.served_model import OFFLINE, draft_of, model_folder, model_of
from autoscout.targets.vllm.server import Server
from kb import dates
from kb.records import AutoscoutError, Configuration, Job, Measurement

_WORKER = Path(__file__).parent / "worker"
_ENDING = 0.05  # fraction of an experiment's time limit that is reserved for ending it
_IN_PROCESS = {"VLLM_LOGGING_LEVEL": "WARNING"}
_REMEDY = (
    "`make .venv-vllm/ready` installs vLLM for CPUs, `pip install vllm` for GPUs; set launch.python to that interpreter"
)


class VllmProfiler:
    """Runs one experiment at a time. The launcher "warm" forks a process that has imported vLLM; "reuse" keeps the fork
    for the next experiments that can share its engine; "serve" starts a server."""

    def __init__(self, job: Job) -> None:
        """Starts nothing yet. Errors: AutoscoutError (exit 2) for an unsuitable launcher or trace."""
        self._job = job
        self._kind = vllm.launcher(job)
        variables = {**OFFLINE, **vllm.environment_variables(job)}
        self._reuse = Reuse(job) if self._kind == "reuse" else None
        if self._kind == "serve":
            self._variables = variables
            self._launcher: Server | WarmRunner = Server(job)
        else:
            self._variables = {**variables, **_IN_PROCESS}
            self._launcher = WarmRunner(job, _WORKER / "serve.py", self._variables)
        self._plan = load_plan.plan(job)
        self._first = FirstRate(job) if load_plan.searches_rate(job) else None
        self._environment: dict[str, str] = {}
        self._model = ""
        self._stopping = False
        self._given: list[int] = []

    def on(self, placement: Placement) -> None:
        """Sets which of this machine's GPUs, by index, the next runs use."""
        self._given = [int(device.index) for device in placement.hosts[0].devices]

    def environment(self) -> dict[str, str]:
        """Returns versions, devices, the model, and the method of measuring, cached.

        Errors: AutoscoutError if the interpreter does not run or lacks vLLM, if the machine lacks the job's GPUs, or if
        launch.model_path is not a model of the job's shape."""
        if not self._environment:
            self._environment = self._described()
        return self._environment

    def run(self, configuration: Configuration, name: str, folder: Path) -> Measurement:
        """Runs one experiment in `folder`, after deleting files of an earlier attempt. A failure is returned as a
        measurement, with the status "killed" after interrupt(). If vLLM builds the same engine as for an experiment in
        a sibling folder, that experiment's measurement is returned. Errors: AutoscoutError if the folder cannot be
        written or the random model cannot be created."""
        try:
            return self._run(configuration, name, folder)
        finally:
            self._stopping = False

    def adopt(self, folder: Path) -> Measurement | None:
        return serving.measurement(folder)

    def interrupt(self) -> None:
        self._stopping = True

    def close(self) -> None:
        self._launcher.close()

    def _run(self, configuration: Configuration, name: str, folder: Path) -> Measurement:
        ceiling = self._reuse.ceiling(configuration) if self._reuse else {}
        if self._reuse is None or not ceiling:
            return self._measured(configuration, name, folder, {})
        reused = self._measured(configuration, name, folder, ceiling)
        if reused.status == "killed" or (reused.status == "ok" and not self._reuse.due()):
            return reused
        fresh = self._measured(configuration, name, folder / "fresh", {})
        return msgspec.structs.replace(
            fresh,
            evidence=fresh.evidence or self._reuse.disagreement(reused, fresh),
            cost_s=reused.cost_s + fresh.cost_s,
            device_s=reused.device_s + fresh.device_s,
        )

    def _measured(self, configuration: Configuration, name: str, folder: Path, ceiling: dict[str, Any]) -> Measurement:
        """Returns the measurement of a configuration on an engine. `ceiling`: arguments of the engine that is kept for
        reuse; {} for a new engine."""
        ranks = fleet_servers.devices_of(configuration)
        about = results.About(
            configuration=configuration,
            name=name,
            context=environment.context_of(self._job, self.environment()),
            environment=self.environment(),
            ranks=1,  # one process reports for the engine
        )
        self._model = self._model or model_folder(self._job)
        self._launcher.start(lambda: self._stopping)
        started, began = dates.now(), time.monotonic()
        seen, memory = devices.gpus_of(about.environment), devices.memory_of(about.environment)
        chosen = devices.variables(self._job, configuration, seen, ranks, memory, self._given)
        visible = chosen.get("CUDA_VISIBLE_DEVICES") or os.environ.get("CUDA_VISIBLE_DEVICES", "")
        if seen and (busy := gpus.held(visible)):
            return Measurement(
                configuration=configuration,
                name=name,
                context=about.context,
                status="infrastructure",
                evidence=symptoms.sentence(symptoms.BY_OTHERS, f"before the start {busy}"),
                environment=about.environment,
                at=dates.now(),
            )
        worker = {
            "job": self._job,
            "driver": about.environment["driver"],
            "model": self._model,
            "served_name": vllm.SERVED_NAME,
            "arguments": vllm.engine_arguments(self._job, configuration),
            "servers": _servers(self._job, configuration, visible if seen else None),
            "router": _router(self._job, configuration),
            "environment": {**self._variables, **chosen},
            "plan": self._planned(configuration),
            "limit_s": self._job.launch.timeout_s * (1 - _ENDING),
            "known": serving.engines(folder.parent, configuration),
            "ceiling": ceiling,
            # the first `ranks` visible GPUs, by index or UUID
            "gpus": (named(visible) or [str(i) for i in range(ranks)])[:ranks] if seen else [],
        }
        experiment = results.prepare(folder, about, worker)
        keep = reuse.key(self._job, configuration, ceiling) if ceiling else ""
        measurement, cost = self._ended(experiment, about, keep, began)
        if self._first and (rate := measurement.metrics.get(HIGHEST_RATE, 0.0)) > 0:
            self._first.learn(configuration, rate)
        return results.in_context(measurement, about, started, cost, ranks)

    def _planned(self, configuration: Configuration) -> dict[str, Any]:
        start = self._first.of(configuration) if self._first else None
        return self._plan if start is None else {**self._plan, "search": {**self._plan["search"], "start": start}}

    def _ended(self, experiment: Path, about: results.About, keep: str, began: float) -> tuple[Measurement, float]:
        """Returns (the run's result, seconds from `began` to the run's end)."""
        kills = failures.oom_kills()
        outcome = RunOutcome(stopped=True) if self._stopping else self._outcome(experiment, keep)
        cost = time.monotonic() - began
        folder = experiment.parent
        if (measurement := serving.measurement(folder)) is not None:
            return measurement, cost
        kills = failures.oom_kills() - kills
        status, evidence = serving_failures.classify(outcome, folder, self._job.launch.timeout_s, kills)
        failed = Measurement(
            configuration=about.configuration, name=about.name, context="", status=status, evidence=evidence
        )
        return failed, cost

    def _outcome(self, experiment: Path, keep: str) -> RunOutcome:
        timeout_s = self._job.launch.timeout_s
        if isinstance(self._launcher, WarmRunner):
            return self._launcher.run(experiment, 1, timeout_s, lambda: self._stopping, keep)
        return self._launcher.run(experiment, 1, timeout_s, lambda: self._stopping)

    def _described(self) -> dict[str, str]:
        job, kind = self._job, devices.device_kind(self._job)
        python = environment.target_python(job)
        interpreter = " ".join(python)
        found = environment.probe(
            [*python, str(_WORKER / "probe.py"), kind], f"{interpreter} (the job's vLLM; {_REMEDY})"
        )
        if "vllm" not in found:
            raise AutoscoutError(f"{interpreter}: has no vLLM; {_REMEDY}", 2)
        if kind == "cuda" and found["vllm"].endswith("+cpu"):
            wanted = " + ".join(f"{node.count} {node.device}" for node in job.cluster.nodes)
            raise AutoscoutError(
                f"{interpreter}: its vLLM {found['vllm']} is a build for CPUs, but the job has {wanted}; install "
                "vLLM for GPUs in a different environment (`pip install vllm`), and set launch.python to its "
                "interpreter",
                2,
            )
        if kind == "cuda" and (problem := devices.shortage(job, devices.gpus_of(found), devices.memory_of(found))):
            raise AutoscoutError(problem, 2)
        asked = fleet_servers.asked_for(job)
        for knob, package in fleet_servers.NEEDS.items():
            if knob in asked and package not in found:
                raise AutoscoutError(
                    f"{interpreter}: [space] allows {knob}, which needs the package {package} there; install it "
                    f"(`{python[-1]} -m pip install {package}`), or remove {knob} from [space]",
                    2,
                )
        unused = {package for knob, package in fleet_servers.NEEDS.items() if knob not in asked}
        return {
            **{name: value for name, value in found.items() if name not in unused},
            "model": model_of(job),
            **identity_of(job),
            **({"draft": draft_of(job)} if job.launch.draft else {}),
            "driver": {"serve": "http", "warm": "in process", "reuse": "in process, reused"}[self._kind],
            "clock": "wall" if self._kind == "serve" else "processor",
            "worker": environment.hash_of([*sorted(_WORKER.glob("*.py")), Path(load_plan.__file__)]),
            "launcher": self._kind,
        }


def _servers(job: Job, configuration: Configuration, visible: str | None) -> list[dict[str, Any]]:
    """Returns the start parameters of each server. `visible`: CUDA_VISIBLE_DEVICES; None without GPUs."""
    found: list[dict[str, Any]] = []
    ids = named(visible or "") or [str(i) for i in range(fleet_servers.devices_of(configuration))]
    several = fleet_servers.is_routed(configuration)
    for one in fleet_servers.servers(job, configuration):
        own = {"CUDA_VISIBLE_DEVICES": ",".join(ids[: one.devices])} if several and visible is not None else {}
        found.append({"arguments": one.arguments, "environment": own})
        ids = ids[one.devices :]
    return found


def _router(job: Job, configuration: Configuration) -> list[str]:
    """Returns the router's command: the program in the folder of the job's interpreter, else the program in PATH."""
    if not fleet_servers.is_routed(configuration):
        return []
    name, *more = fleet_servers.router_words(configuration)
    beside = Path(job.launch.python or sys.executable).absolute().with_name(name)
    return [*job.launch.command_prefix, str(beside) if beside.is_file() else name, *more]
