"""An analytic landscape for tests of the search: cheap, smooth enough, with structure that matters."""

import json
from functools import cache

import msgspec
import numpy as np

from autoscout.targets.jobs import JobSpace, load_job
from kb.records import Configuration, Job, Measurement, SpaceLimits


def job_of(name: str) -> Job:
    return load_job(f"fixtures/jobs/{name}.toml")


def space_of(name: str, **limits) -> JobSpace:
    """Compiled once for all tests of a process that ask for the same."""
    return _compiled(name, json.dumps(limits, sort_keys=True))


@cache
def _compiled(name: str, limits: str) -> JobSpace:
    return JobSpace.of_job(msgspec.structs.replace(job_of(name), space=SpaceLimits(**json.loads(limits))))


def step_time(configuration: Configuration, global_batch: int = 16) -> float:
    """Seconds: compute, bubbles and communication, in the proportions of a small CPU job."""
    k = configuration.knobs
    tp, pp, cp, dp, mbs = (int(k[name]) for name in ("tp", "pp", "cp", "dp", "mbs"))
    micro_batches = global_batch // (mbs * dp)
    seconds = 0.25 * (1 + 0.008 * (micro_batches - 2) ** 2)
    seconds += 0.025 * (tp - 1) * micro_batches * (1.2 if k.get("sp") else 1.0)
    seconds += 0.02 * (cp - 1) * micro_batches
    seconds += 0.02 * (pp - 1) * (1 + micro_batches / 8)
    seconds *= {"none": 1.0, "selective": 1.05, "full": 1.35}[str(k["ar"])]
    if k.get("overlap_grad"):
        seconds += 0.02 + 0.1 / int(k["ddp_bucket"])
    if k.get("distopt"):
        seconds += 0.03 if dp > 2 else -0.03
    return seconds


def measured(space: JobSpace, configuration: Configuration, noise: float = 0.0, seed: int = 0) -> Measurement:
    factor = float(np.exp(np.random.default_rng(seed).normal(0, noise))) if noise else 1.0
    return Measurement(
        configuration=configuration,
        name=space.name(configuration),
        context="test",
        status="ok",
        metrics={"step_time_s": step_time(configuration) * factor},
    )


def failed(space: JobSpace, configuration: Configuration, status: str = "oom") -> Measurement:
    return Measurement(
        configuration=configuration,
        name=space.name(configuration),
        context="test",
        status=status,  # type: ignore[arg-type]
        evidence="out of memory",
    )


def driven(asking, profile):
    """Runs what an evaluator's generator wants with `profile(configuration, purpose)`; what it returns."""
    try:
        wanted = next(asking)
        while True:
            wanted = asking.send(profile(wanted.configuration, wanted.purpose))
    except StopIteration as done:
        return done.value
