"""Jobs of one small model on some of the devices, and their experiments, shared by the steps of a proof (prove.py)."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from autoscout.job.device_names import device_meant, is_cpu
from autoscout.running.cluster import gpus
from autoscout.running.interfaces import Profiler
from autoscout.running.torchrun import Torchrun
from autoscout.running.warm_launcher import WarmRunner
from autoscout.simulate.ensemble import Simulators
from autoscout.targets.jobs import JobSpace, simulators_of
from autoscout.targets.megatron import arguments
from autoscout.targets.megatron.environment import launcher
from autoscout.targets.megatron.profiler import RANK, MegatronProfiler
from autoscout.targets.megatron.shadow import shadow
from kb.records import (
    AutoscoutError,
    Cluster,
    Configuration,
    Job,
    LaunchSettings,
    Measurement,
    Model,
    Node,
    Objective,
    Traffic,
)

_SHADOW_S = 120.0


class Runs:
    """Experiments that share interpreter and devices. The first step sets `environment` (versions and devices)."""

    def __init__(self, job: Job | None, folder: Path, say: Callable[[str], None]) -> None:
        """`job`: whose interpreter and devices are used; None: ours and this machine's."""
        self._folder, self._say = folder, say
        self.launch = job.launch if job else LaunchSettings()
        self.node = _node(job)
        self.on_gpus = not is_cpu(self.node.device)
        self.environment: dict[str, str] = {}
        self._count = 0
        self._warm: dict[str, WarmRunner] = {}

    def job(self, count: int, experts: int = 0, **changes: Any) -> Job:
        """A job with a model that is large enough to be meaningful on a GPU, and small enough for a CPU."""
        model: dict[str, Any] = {"layers": 4, "hidden": 2048, "heads": 16, "vocab": 32000, "ffn": 5632}
        traffic = Traffic(seq_len=2048, global_batch=8)
        if not self.on_gpus:
            model = {"layers": 4, "hidden": 64, "heads": 4, "vocab": 512}
            traffic = Traffic(seq_len=64, global_batch=8)
        model |= {"gated": True, "norm": "rmsnorm", "bias": False, "position": "rope", "dtype": "bf16"}
        model |= {"experts": experts} | ({"vocab": changes.pop("vocab")} if "vocab" in changes else {})
        launch = msgspec.structs.replace(
            self.launch, iterations=3, measure_s=4.0, transformer_engine=self.on_gpus, **changes
        )
        if "command_prefix" in changes and not self.on_gpus:
            launch = msgspec.structs.replace(launch, launcher="warm")
        return Job(
            name=f"prove-{count}",
            target="megatron",
            model=Model(**model),
            traffic=traffic,
            cluster=Cluster(nodes=[msgspec.structs.replace(self.node, count=count)]),
            objective=Objective(minimize="step_time_s"),
            launch=launch,
        )

    def profiler(self, job: Job) -> Profiler:
        """A profiler with a warm process, which is kept, with its imports, as long as ranks start in the same way."""
        if launcher(job) != "warm":
            return MegatronProfiler(job, Torchrun(job, RANK), self.environment)
        key = " ".join(job.launch.command_prefix)
        if key not in self._warm:
            self.close()  # keep only one waiting process with torch in memory
            self._warm[key] = WarmRunner(job, RANK, arguments.variables(job, Configuration({})))
        return MegatronProfiler(job, self._warm[key], self.environment)

    def close(self) -> None:
        for warm in self._warm.values():
            warm.close()
        self._warm.clear()

    def measured(self, job: Job, knobs: dict[str, Any]) -> Measurement:
        self._count += 1
        configuration = Configuration({"mbs": 4, **knobs})
        return self.profiler(job).run(configuration, _named(configuration), self._folder / f"{self._count:02d}")

    def traced(self, job: Job, measured: Measurement) -> float | None:
        if not self.on_gpus or measured.status != "ok":
            return None
        try:
            found = shadow(job, measured.configuration, measured.name, None, _SHADOW_S)
        except AutoscoutError as error:
            self._say(f"  no shadow: {error}")
            return None
        return found.allocated if found.verdict == "starts" else None

    @contextlib.contextmanager
    def faulty(self, fault: str, rank: int | None = None, reading: int = 3) -> Iterator[list[str]]:
        """A command prefix that makes a rank (1, or the only one) run `fault` at its `reading`-th reading of the clock
        (by default in its second step)."""
        folder = self._folder / "fault"
        folder.mkdir(parents=True, exist_ok=True)
        rank = min(1, self.node.count - 1) if rank is None else rank
        (folder / "sitecustomize.py").write_text(
            "import os, sys, time\nplain, seen = time.perf_counter, []\n"
            "def perf_counter():\n"
            f"    if sys._getframe(1).f_code.co_name == '_iteration' and os.environ.get('RANK') == '{rank}':\n"
            f"        seen.append(1)\n        if len(seen) == {reading}:\n            {fault}\n"
            "    return plain()\ntime.perf_counter = perf_counter\n"
        )
        self.close()  # a warm process would not have the new fault
        path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))
        yield ["env", f"PYTHONPATH={path}", *self.launch.command_prefix]


def _node(job: Job | None) -> Node:
    """The job's first kind of device, or this machine's: GPUs by their name, else four CPU ranks."""
    if job is not None:
        return job.cluster.nodes[0]
    seen = gpus.ours()
    if not seen:
        return Node(device="cpu", count=4)
    kind = device_meant(seen[0].name, seen[0].total_gib)
    return Node(device=kind or "gpu", count=len(seen), memory_gib=seen[0].total_gib or 0.0)


def _of(kind: str, count: int) -> Job:
    cluster = Cluster(nodes=[Node(device=kind, count=count)])
    return Job(name="prove", target="megatron", objective=Objective(minimize="step_time_s"), cluster=cluster)


def predicted(job: Job, configuration: Configuration) -> float | None:
    space = JobSpace.of_job(job)
    simulators = Simulators(job, space, [], bases=lambda: simulators_of(job))
    if not space.is_valid(configuration):  # the space has active knobs that are not set here
        found = space.nearest(configuration.knobs, firm=configuration.knobs)
        if found is None:
            return None
        configuration = found
    value = float(simulators.ensemble.explain(simulators.columns([configuration]))[0].value[0])
    return value if 0 < value < float("inf") else None


def _named(configuration: Configuration) -> str:
    return " ".join(f"{name}={value}" for name, value in configuration.knobs.items())
