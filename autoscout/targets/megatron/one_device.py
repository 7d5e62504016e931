"""Replaces the predicted kernel times of a shadow (a dry run without GPUs) by times measured on a single device. The
ranks of a Megatron job of any size run on this device one after the other, with real kernels but without communication.
Communication calls come from the shadow; the simulator predicts their time. The step time is composed as in the shadow,
with measured instead of predicted kernel times."""

import os
from typing import Any

import msgspec

from autoscout.running import interpreter
from autoscout.running.cluster import devices, gpus
from autoscout.running.cluster.devices import device_kind
from autoscout.running.shadow_process import shadows_of
from autoscout.simulate.shadow.traced import Shadow, Timed
from autoscout.targets.megatron import arguments, finetuning
from autoscout.targets.megatron.environment import WORKER
from autoscout.targets.megatron.shadow import differing, shadow, with_price
from autoscout.targets.tracing import ShadowAsked
from kb.records import AutoscoutError, Configuration, Job

RANK = WORKER / "one_device" / "one_device_rank.py"
_REPEATS = 3


def one_device(asked: ShadowAsked) -> Shadow:
    """Returns the configuration's shadow with two fields added: `timed` (measured times of one rank of each distinct
    pipeline stage) and the resulting `step_s`. A failed shadow is returned unchanged. Errors: AutoscoutError (exit 2)
    if no device is free, (exit 1) if a rank does not run on it."""
    job, configuration = asked.job, asked.configuration
    python = interpreter.target_python(job)
    probed = interpreter.probe([*python, str(WORKER / "probe.py"), device_kind(job)], " ".join(python))
    chosen = _free(job, probed)
    found = shadow(asked)
    if found.verdict != "starts":
        return found
    timed = run(job, configuration, python, probed, chosen, asked.limit_s)
    return on_one(job, configuration, found, timed)


def on_one(job: Job, configuration: Configuration, found: Shadow, timed: list[Timed]) -> Shadow:
    """Returns the shadow `found` with the times measured on one device added, and the resulting step time. Errors:
    AutoscoutError."""
    if failed := next((t for t in timed if t.verdict != "starts"), None):
        why = f"{failed.type}: {failed.message[:600]} ({failed.where}, phase {failed.phase})"
        late = "it was not finished within --timeout; raise --timeout"
        what = late if failed.verdict == "timeout" else why
        raise AutoscoutError(f"rank {failed.rank} does not run on one device: {what}")
    return with_price(job, configuration, msgspec.structs.replace(found, timed=timed))


def run(
    job: Job,
    configuration: Configuration,
    python: list[str],
    installed: dict[str, str],
    chosen: dict[str, str],
    limit_s: float,
) -> list[Timed]:
    """Returns the measured times of one rank of each distinct stage, in the order of `differing`. `installed`: the
    output of probe.py. `chosen`: variables that make a single device visible. Errors: AutoscoutError."""
    question = _question(job, configuration, int(configuration.knobs.get("pp", 1)))
    question["arguments"] = arguments.as_installed(question["arguments"], installed)
    asked = [{**question, "rank": rank} for rank in differing(job, configuration)]
    environment = {**os.environ, **arguments.variables(job, configuration), **chosen}
    answers = shadows_of(RANK, asked, python, limit_s, environment)
    return [
        msgspec.convert({"verdict": "timeout", **(answer or {}), "rank": q["rank"]}, Timed)
        for answer, q in zip(answers, asked, strict=True)
    ]


def _free(job: Job, probed: dict[str, str]) -> dict[str, str]:
    """Returns environment variables that make one free GPU of the job's kind visible; {} on CPUs. Errors:
    AutoscoutError (exit 2)."""
    if device_kind(job) == "cpu":
        return {}
    given = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    seen = devices.gpus_of(probed)
    fitting = devices.claimable(job, seen, devices.memory_of(probed))
    names = [devices.physical(i, given) for i in fitting]
    taken = gpus.taken(names)
    free = [name for i, name in enumerate(names) if i not in taken]
    if not free:
        wanted, shown = job.cluster.nodes[0].device, ", ".join(seen) or "no GPU"
        held = f", but the suitable ones are in use ({gpus.held(','.join(names))})" if fitting else ""
        raise AutoscoutError(f"a run on one device needs one free {wanted}; this machine has {shown}{held}", 2)
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": free[0]}


def _question(job: Job, configuration: Configuration, pp: int) -> dict[str, Any]:
    """Returns the input for a rank, with enough micro batches to fill the pipeline, so that memory is realistic."""
    few = pp * (2 if int(configuration.knobs.get("vpp", 1)) > 1 else 1)
    return {
        "arguments": arguments.flags(job, configuration),
        "device": device_kind(job),
        "world": arguments.world_size(configuration),
        "few": few,
        "many": few + max(2, pp),
        "repeats": _REPEATS,
        **finetuning.worker(job),
    }
