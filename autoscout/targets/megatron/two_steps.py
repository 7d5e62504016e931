"""Checks that an exported configuration starts on this machine: our worker trains for two iterations with the exported
flags, in new processes started by torchrun."""

import tempfile
import time
from pathlib import Path

import msgspec

from autoscout.running.torchrun import Torchrun
from autoscout.targets.launch import Launch
from autoscout.targets.megatron import arguments
from autoscout.targets.megatron.profiler import RANK, MegatronProfiler
from kb.records import AutoscoutError, Configuration, Job

_ITERATIONS = 2
_FILE = arguments.USER_BUFFERS  # not compared, because the launch's value is the name of a file


def check(job: Job, launch: Launch, form: str) -> float:
    """Returns the seconds until two iterations were trained. Errors: AutoscoutError (exit 2) for a launch that our
    worker cannot start, (exit 1) with the cause if the training fails."""
    if job.model.lora:
        raise AutoscoutError("--check cannot start Megatron-Bridge, which trains adapters; run the exported command", 2)
    configuration = Configuration(launch.configuration)
    flags = arguments.flags(job, configuration)
    if changed := [flag for flag, value in flags.items() if flag != _FILE and launch.arguments.get(flag) != value]:
        what = f"the exported value of {changed[0]} differs from that of the measured configuration"
        raise AutoscoutError(f"--check: {what}; run the exported command", 2)
    short = msgspec.structs.replace(job.launch, warmup=0, iterations=_ITERATIONS, measure_s=float("inf"))
    job = msgspec.structs.replace(job, launch=short)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="autoscout-check-") as folder:
        profiler = MegatronProfiler(job, Torchrun(job, RANK))
        found = profiler.run(configuration, launch.name, Path(folder))
    if found.status != "ok":
        raise AutoscoutError(f"the exported launch does not work here: {found.status}: {found.evidence}")
    return time.monotonic() - began
