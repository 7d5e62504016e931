"""Checks whether a release of Megatron-core accepts every call that our workers make. Known releases are recorded. An
unknown release is inspected where it is installed, and must train a small model before a session begins."""

import contextlib
import shutil
import tempfile
from pathlib import Path

import msgspec

from autoscout.running.cluster.devices import device_kind
from autoscout.running.interpreter import target_python
from autoscout.space.knob import reached
from autoscout.targets import seams
from autoscout.targets.target import shipped
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

PACKAGE = "megatron-core"
RECORD = Path(__file__).with_name("seams.json")
_WORKERS = Path(__file__).parent / "worker"
RANK = _WORKERS / "train.py"
# Modules of Megatron-LM's own scripts. Only jobs with a checkout of Megatron-LM use them.
_OF_SCRIPTS = ("megatron.core.datasets",)
_LIMIT_S = 300.0


def used() -> list[seams.Seam]:
    return [seam for seam in seams.seams(_WORKERS, "megatron.core") if not seam.name.startswith(_OF_SCRIPTS)]


def recorded() -> seams.Recorded:
    return seams.read_record(RECORD)


def fit(job: Job, version: str) -> seams.SeamFit | None:
    """Returns which of our workers' calls the engine does not accept. None if AutoScout's training loop is not used, or
    if the engine is on remote hosts and its release is not recorded.

    Errors: AutoscoutError (exit 2) if an engine that is not recorded cannot be imported."""
    if job.launch.path or job.launch.launcher == "replay":
        return None
    known, missing, build = recorded().of(version), [], ""
    if job.cluster.hosts:
        if known is None:
            return None
    else:
        needed = [name for name, since in shipped(job.target).needs.items() if reached(version, since)]
        released, missing = seams.installed(target_python(job), PACKAGE, "megatron.core", needed)
        if not released:
            known, build = None, "this build of "
    names = sorted({seam.name for seam in used()})
    found = seams.SeamFit(
        engine=f"{build}{PACKAGE} {version}",
        known=known is not None,
        names=len(names),
        unfit=[f"its import needs {name}, which is not installed in that interpreter" for name in missing],
        tried=True,
    )
    if missing:
        return found
    signatures = seams.ask(target_python(job), RANK, device_kind(job), names) if known is None else known
    return msgspec.structs.replace(found, unfit=seams.unfit(used(), signatures))


def rehearsed(job: Job, folder: Path) -> Measurement:
    """Trains a model of two layers for three steps on two CPU ranks, with a job's interpreter and worker; returns the
    measurement."""
    from autoscout.targets.megatron.profiler import profiler

    launch = LaunchSettings(
        python=job.launch.python,
        command_prefix=job.launch.command_prefix,
        environment=job.launch.environment,
        warmup=1,
        iterations=2,
        timeout_s=_LIMIT_S,
    )
    small = Job(
        name="rehearsal",
        target=job.target,
        model=Model(layers=2, hidden=64, heads=4, vocab=512, dtype="fp32"),
        traffic=Traffic(seq_len=64, global_batch=4),
        cluster=Cluster(nodes=[Node(device="cpu", count=2, memory_gib=4.0)]),
        objective=Objective(minimize="step_time_s"),
        launch=launch,
    )
    with contextlib.closing(profiler(small)) as runner:
        return runner.run(Configuration({"mbs": 2, "dp": 2}), "rehearsal", folder)


def ready(job: Job, version: str) -> str:
    """Returns "" for a known release; for an unknown one, a note that it was inspected and tested.

    Errors: AutoscoutError (exit 2) if the release does not accept a call of our workers, or does not train."""
    found = fit(job, version)
    if found is None:
        return ""
    if found.unfit:
        raise AutoscoutError(f"{found.verdict}; {seams.REMEDY}", 2)
    if found.known:
        return ""
    folder = Path(tempfile.mkdtemp(prefix="autoscout-rehearsal-"))
    ran = rehearsed(job, folder)
    if ran.status != "ok":
        raise AutoscoutError(f"{found.verdict}, but a test training of two layers failed: {ran.evidence}", 2)
    shutil.rmtree(folder, ignore_errors=True)  # keep the logs after a failure, because the error message names them
    return f"{found.verdict}, and two layers trained on it"
