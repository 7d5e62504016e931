"""Describes the environment of a Megatron job, and chooses the launcher of its ranks."""

import re
from collections.abc import Callable
from pathlib import Path

from autoscout.running import interpreter as environment
from autoscout.running.cluster import devices, gpus
from autoscout.targets.megatron import persons, releases
from autoscout.targets.megatron.arguments import SCRIPT
from kb.records import AutoscoutError, Job, content_hash

WORKER = Path(__file__).parent / "worker"
_LACKS = re.compile(r"ModuleNotFoundError: No module named '(?!transformer_engine)([\w-]+)'")


Probe = Callable[[Path, list[Path]], dict[str, str]]  # (our script, files of the job) → the script's output


def describe(job: Job, probe: Probe | None = None) -> dict[str, str]:
    """Returns a description by key: versions (python, torch, megatron-core, …), device, devices, gpus (names by index),
    worker, launcher, and the user's Megatron-LM if it is used. `probe`: function that runs a script on the ranks'
    machines; default: on this machine.

    Errors: AutoscoutError if the target's interpreter does not run or lacks torch or megatron-core, or if the machine
    lacks GPUs of the job's cluster."""
    kind = devices.device_kind(job)
    python = environment.target_python(job)
    interpreter = " ".join(python)
    if probe is None:
        found = environment.probe([*python, str(WORKER / "probe.py"), kind], interpreter)
    else:
        found = probe(WORKER / "probe.py", [Path(job.launch.path) / SCRIPT] if job.launch.path else [])
    if job.launch.path:
        found |= checkout(Path(job.launch.path))
    for package in ("torch", "megatron-core"):
        if package not in found:
            raise AutoscoutError(
                f"{interpreter}: has no {package} whose version can be read; install it there (`pip install torch "
                f"megatron-core==0.16.1`) or name an interpreter that has it in launch.python",
                2,
            )
    if found["devices"] == "0":
        raise AutoscoutError(
            f"{interpreter}: the job needs {devices.spelled(job)}, and torch sees no GPU; check the driver or the "
            f"container's flags, and that torch is not a CPU-only build",
            2,
        )
    if broken := found.pop("broken", ""):
        lacks = _LACKS.match(broken)
        reinstall = "pip install --no-build-isolation --force-reinstall transformer-engine[pytorch]"
        cure = f"`pip install {lacks[1]}`" if lacks else f"reinstall it there for this torch (`{reinstall}`)"
        raise AutoscoutError(
            f"{interpreter}: its Transformer Engine {found['transformer-engine']} cannot be imported with torch "
            f"{found['torch']} ({' '.join(broken.split())[:200]}); {cure}",
            2,
        )
    if kind == "cuda" and (problem := devices.shortage(job, devices.gpus_of(found), devices.memory_of(found))):
        lost = gpus.health().lost
        raise AutoscoutError(
            f"{problem}{f'; the driver no longer reaches {len(lost)} of the GPUs: {lost[0]}' if lost else ''}", 2
        )
    if job.cluster.hosts and (problem := devices.misplaced(job, devices.gpus_of(found))):
        raise AutoscoutError(problem, 2)
    if kind == "cuda" and (problem := _unfused(job, "transformer-engine" in found, interpreter)):
        raise AutoscoutError(problem, 2)
    if theirs := persons.while_searching(job):
        found["flags"] = content_hash(theirs)
    found |= environment.own_variables(job)
    return {**found, "worker": environment.hash_of(sorted(WORKER.glob("*.py"))), "launcher": launcher(job)}


def checkout(path: Path) -> dict[str, str]:
    """Returns the version of a checkout of Megatron-LM and a hash of its script and training package.

    Errors: AutoscoutError (exit 2) if the path is not a checkout."""
    try:
        version = releases.of_checkout(path)
        script = environment.hash_of([path / SCRIPT, *sorted((path / "megatron" / "training").glob("*.py"))])
    except OSError as error:
        raise AutoscoutError(
            f"launch.path: {path} is not a readable checkout of Megatron-LM ({error.filename}: {error.strerror}); "
            f"name the folder of its {SCRIPT}, or remove launch.path to train with AutoScout's own loop",
            2,
        ) from error
    return {"megatron-core": version, "megatron-lm": script}


def _unfused(job: Job, installed: bool, interpreter: str) -> str:
    """Returns why configurations cannot be compared on these GPUs; "" if they can. Without fused attention, the ranking
    of recomputation settings and micro batches can be reversed."""
    if job.launch.transformer_engine and installed:
        return ""
    if installed:
        return f"{interpreter}: Transformer Engine is installed; set launch.transformer_engine = true to use it"
    return (
        f"{interpreter}: has no Transformer Engine, and the fastest configuration without its fused kernels may not "
        "be the fastest with them; install it there (`pip install transformer-engine[pytorch]`) and write "
        "transformer_engine = true under [launch]"
    )


def launcher(job: Job) -> str:
    """Returns "warm" (ranks are forked from a process with all imports), "torchrun" or "replay". "auto" means
    "torchrun" with a command prefix (such as a container's) or the user's own Megatron-LM, else "warm".

    Errors: AutoscoutError for "warm" with the user's Megatron-LM, or for a launcher that only serving jobs have."""
    if job.launch.launcher == "warm" and job.launch.path:
        raise AutoscoutError(
            'launch.launcher: "warm" would load a different Megatron-core from the one in launch.path; write '
            '"torchrun"',
            2,
        )
    if job.launch.launcher in ("serve", "reuse"):
        raise AutoscoutError(f'launch.launcher: "{job.launch.launcher}" is for serving; write "warm" or "torchrun"', 2)
    if job.launch.launcher != "auto":
        return job.launch.launcher
    return "torchrun" if job.launch.command_prefix or job.launch.path else "warm"
