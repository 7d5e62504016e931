"""Tiny jobs and a bench to run them on, for the tests of autoscout/profile."""

from pathlib import Path
from typing import Any

from autoscout.running.interfaces import Profiler
from autoscout.running.warm_launcher import WarmRunner
from autoscout.targets.jobs import profiler_of
from autoscout.targets.megatron import arguments
from autoscout.targets.megatron.environment import launcher
from autoscout.targets.megatron.profiler import RANK, MegatronProfiler
from kb.records import Cluster, Configuration, Job, LaunchSettings, Measurement, Model, Node, Objective, Traffic


def tiny_job(**changes: Any) -> Job:
    """A model that trains in a second on 4 CPU ranks; `changes` are fields of Model, Traffic and Launch."""
    model: dict[str, Any] = {"layers": 4, "hidden": 64, "heads": 4, "vocab": 512, "dtype": "fp32"}
    traffic: dict[str, Any] = {"seq_len": 64, "global_batch": 8}
    launch: dict[str, Any] = {"warmup": 1, "iterations": 2}
    for name, value in changes.items():
        if name in Model.__struct_fields__:
            model[name] = value
        elif name in LaunchSettings.__struct_fields__:
            launch[name] = value
        else:
            traffic[name] = value
    return Job(
        name="tiny",
        target="megatron",
        model=Model(**model),
        traffic=Traffic(**traffic),
        cluster=Cluster(nodes=[Node(device="cpu", count=4, memory_gib=4.0)]),
        objective=Objective(minimize="step_time_s"),
        launch=LaunchSettings(**launch),
    )


def configuration(**knobs: Any) -> Configuration:
    return Configuration({"mbs": 2, **knobs})


class Bench:
    """Profilers of any number of jobs that share one warm process."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._warm = WarmRunner(tiny_job(), RANK, arguments.variables(tiny_job(), Configuration({})))
        self._profilers: list[tuple[Job, Profiler]] = []
        self._runs = 0

    def profiler(self, job: Job) -> Profiler:
        for known, profiler in self._profilers:
            if known == job:
                return profiler
        warm = launcher(job) == "warm" and not job.launch.python  # another interpreter has a process of its own
        self._profilers.append((job, MegatronProfiler(job, self._warm) if warm else profiler_of(job)))
        return self._profilers[-1][1]

    def folder(self) -> Path:
        self._runs += 1
        return self.root / str(self._runs)

    def run(self, job: Job, **knobs: Any) -> Measurement:
        return self.profiler(job).run(configuration(**knobs), "tiny", self.folder())

    def close(self) -> None:
        for _, profiler in self._profilers:
            profiler.close()
        self._warm.close()
