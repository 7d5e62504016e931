"""Checks whether a release of vLLM accepts every call of our workers. Known releases are recorded; an unknown release
is inspected where it is installed."""

from pathlib import Path

from autoscout.running.interpreter import target_python
from autoscout.space.knob import reached
from autoscout.targets import seams
from kb.records import Job

RECORD = Path(__file__).with_name("vllm_seams.json")
WORKERS = Path(__file__).parent / "worker"
SERVE = WORKERS / "audit_vllm.py"  # this worker also imports the code that serving and shadows use
DEVICE = "none"  # no device is needed to inspect vLLM's classes


def used() -> list[seams.Seam]:
    return seams.seams(WORKERS, "vllm")


def recorded() -> seams.Recorded:
    return seams.read_record(RECORD)


def release_of(version: str) -> str:
    """Returns the version without the build's suffix ("0.32.0+cpu" → "0.32.0"), since all builds of a release have the
    same code."""
    return version.partition("+")[0]


def fit(job: Job, version: str) -> seams.SeamFit | None:
    """Returns whether the engine accepts the workers' calls. None if the engine is on remote hosts and its release is
    not recorded, or if no engine is started. Errors: AutoscoutError (exit 2) if an engine that is not recorded cannot
    be imported."""
    release = release_of(version)
    if job.launch.launcher == "replay" or (release not in recorded().releases and job.cluster.hosts):
        return None
    return fit_of(target_python(job), release, there=not job.cluster.hosts)


def fit_of(python: list[str], release: str, there: bool = True) -> seams.SeamFit:
    """Returns whether a release accepts the workers' calls. `there`: whether the interpreter is on this machine and can
    be queried."""
    known, names, oldest = recorded().of(release), sorted({seam.name for seam in used()}), recorded().releases[0]
    build = "" if not there or seams.installed(python, "vllm", "vllm")[0] else "this build of "
    if known is None and not reached(release, oldest):
        unfit = [f"this release is older than {oldest}, the oldest release that AutoScout supports"]
    else:
        signatures = seams.ask(python, SERVE, DEVICE, names) if known is None or build else known
        unfit = seams.unfit(used(), signatures)
    found = known is not None and not build
    return seams.SeamFit(engine=f"{build}vllm {release}", known=found, names=len(names), unfit=unfit)
