"""Whether a release of vLLM takes every call of our workers: by the record of known releases, or asked of it."""

from pathlib import Path

from autoscout.running.interpreter import target_python
from autoscout.targets import seams
from kb.records import Job

RECORD = Path(__file__).with_name("vllm_seams.json")
WORKERS = Path(__file__).parent / "worker"
SERVE = WORKERS / "audit_vllm.py"  # also imports the code that serves, and that shadows use
DEVICE = "none"  # its classes alone


def used() -> list[seams.Seam]:
    return seams.seams(WORKERS, "vllm")


def recorded() -> seams.Recorded:
    return seams.read_record(RECORD)


def release_of(version: str) -> str:
    """ "0.32.0+cpu" → "0.32.0": a build for one kind of device has the code of the release."""
    return version.partition("+")[0]


def fit(job: Job, version: str) -> seams.SeamFit | None:
    """None where the engine is on other hosts and its release is not recorded, or nothing is started.

    Errors: AutoscoutError (exit 2) if an engine that is not recorded cannot be imported."""
    known = release_of(version) in recorded().releases
    if job.launch.launcher == "replay" or (not known and job.cluster.hosts):
        return None
    return fit_of(target_python(job), release_of(version))


def fit_of(python: list[str], release: str) -> seams.SeamFit:
    known, names = recorded().of(release), sorted({seam.name for seam in used()})
    signatures = seams.ask(python, SERVE, DEVICE, names) if known is None else known
    unfit = seams.unfit(used(), signatures)
    return seams.SeamFit(engine=f"vllm {release}", known=known is not None, names=len(names), unfit=unfit)
