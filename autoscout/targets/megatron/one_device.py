"""The rung between a shadow and a real run: ranks of a Megatron job of any size run one after the other on one device,
with their real kernels and nobody to send to; what they would send is priced.

What they send is known from the configuration's shadow. The step is composed as the shadow's is, with measured seconds
in place of the prices of its kernels.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from autoscout.cluster import devices, gpus
from autoscout.cluster.devices import device_kind
from autoscout.running import interpreter
from autoscout.running.shadow_process import said
from autoscout.simulate.shadow.traced import Shadow, Timed
from autoscout.simulate.shadow.verdict import stages
from autoscout.targets.megatron import arguments, finetuning
from autoscout.targets.megatron.environment import WORKER
from autoscout.targets.megatron.shadow import shadow, with_price
from kb.records import AutoscoutError, Configuration, Job

RANK = WORKER / "one_device" / "one_device_rank.py"
_REPEATS = 3


def one_device(
    job: Job,
    configuration: Configuration,
    name: str,
    kb: Path | None,
    limit_s: float,
    stopping: Callable[[], bool] = lambda: False,
) -> Shadow:
    """The configuration's shadow with `timed`, a rank of every pipeline stage that differs, and the `step_s` that
    follows. A shadow that does not start is returned as it is.

    Errors: AutoscoutError (exit 2) where the device is taken, exit 1 where a rank does not run on it."""
    python = interpreter.target_python(job)
    said_by = interpreter.probe([*python, str(WORKER / "probe.py"), device_kind(job)], " ".join(python))
    chosen = _free(job, said_by)
    found = shadow(job, configuration, name, kb, limit_s, None, stopping)
    if found.verdict != "starts":
        return found
    timed = run(job, configuration, python, said_by, chosen, limit_s, stopping)
    return on_one(job, configuration, found, timed)


def on_one(job: Job, configuration: Configuration, found: Shadow, timed: list[Timed]) -> Shadow:
    """`found` with what a device said. Errors: AutoscoutError."""
    if failed := next((t for t in timed if t.verdict != "starts"), None):
        why = f"{failed.type}: {failed.message[:600]} ({failed.where}, phase {failed.phase})"
        what = f"its time of --timeout was over after rank {failed.rank} began" if failed.verdict == "timeout" else why
        raise AutoscoutError(f"rank {failed.rank} does not run on one device: {what}")
    return with_price(job, configuration, msgspec.structs.replace(found, timed=timed))


def run(
    job: Job,
    configuration: Configuration,
    python: list[str],
    installed: dict[str, str],
    chosen: dict[str, str],
    limit_s: float,
    stopping: Callable[[], bool],
) -> list[Timed]:
    """A rank of every stage that differs, in the order of `stages`. `installed`: as probe.py says it; `chosen`: the
    variables by which a rank sees the one device. Errors: AutoscoutError."""
    world, pp = arguments.world_size(configuration), int(configuration.knobs.get("pp", 1))
    question = _question(job, configuration, pp)
    question["arguments"] = arguments.as_installed(question["arguments"], installed)
    asked = [{**question, "rank": rank} for rank in stages(world, pp)]
    environment = {**os.environ, **arguments.variables(job, configuration), **chosen}
    answers = said(RANK, asked, python, limit_s, environment, stopping)
    return [
        msgspec.convert({"verdict": "timeout", **(answer or {}), "rank": q["rank"]}, Timed)
        for answer, q in zip(answers, asked, strict=True)
    ]


def _free(job: Job, said_by: dict[str, str]) -> dict[str, str]:
    """The variables by which a rank sees one GPU of the job's kind that nobody holds; {} on CPUs. Errors:
    AutoscoutError (exit 2) where there is none."""
    if device_kind(job) == "cpu":
        return {}
    given = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    seen = devices.gpus_of(said_by)
    fitting = devices.claimable(job, seen, devices.memory_of(said_by))
    names = [devices.physical(i, given) for i in fitting]
    taken = gpus.taken(names)
    free = [name for i, name in enumerate(names) if i not in taken]
    if not free:
        wanted, shown = job.cluster.nodes[0].device, ", ".join(seen) or "no GPU"
        held = f", and what fits is taken ({gpus.held(','.join(names))})" if fitting else ""
        raise AutoscoutError(f"one {wanted} has to be free for a run on one device; this machine has {shown}{held}", 2)
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": free[0]}


def _question(job: Job, configuration: Configuration, pp: int) -> dict[str, Any]:
    """Its numbers of micro batches fill the pipeline, so that memory is that of training."""
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
