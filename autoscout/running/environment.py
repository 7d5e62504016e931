"""What an experiment runs on: versions and devices of the target, found without starting an experiment."""

import hashlib
import json
import subprocess
import sys
import tempfile

from autoscout.cluster import devices
from autoscout.running import processes, results
from autoscout.targets.megatron import arguments
from kb.records import AutoscoutError, Job, content_hash

_LIMIT_S = 120.0
_NOT_COMPARED = {"launcher"}


def target_python(job: Job) -> list[str]:
    """The command that starts the target's interpreter."""
    return [*job.launch.command_prefix, job.launch.python or sys.executable]


def describe(job: Job) -> dict[str, str]:
    """Versions (python, torch, megatron-core, …), device, devices, gpus (their names by index), worker and launcher.

    Errors: AutoscoutError when the target's interpreter does not run or lacks torch or megatron-core, or when the
    machine lacks GPUs of the job's cluster.
    """
    kind = arguments.device_kind(job)
    interpreter = " ".join(target_python(job))
    found = probe([*target_python(job), str(processes.WORKER / "probe.py"), kind], interpreter)
    for package in ("torch", "megatron-core"):
        if package not in found:
            raise AutoscoutError(
                f"{interpreter}: has no {package}; install it there (`pip install torch megatron-core==0.16.1`) "
                f"or name an interpreter that has it in launch.python",
                2,
            )
    if found["devices"] == "0":
        raise AutoscoutError(
            f"{interpreter}: the job needs {_wanted(job)}, and torch sees no GPU; check the driver or the container's "
            f"flags, and that torch is not a build for CPUs",
            2,
        )
    if kind == "cuda" and (problem := devices.shortage(job, devices.gpus_of(found))):
        raise AutoscoutError(problem, 2)
    return {**found, "worker": _worker_hash(), "launcher": arguments.launcher(job)}


def _wanted(job: Job) -> str:
    return " + ".join(f"{node.count} {node.device}" for node in job.cluster.nodes)


def context_of(job: Job, environment: dict[str, str]) -> str:
    """Measurements are comparable within one context: same workload, versions, devices, worker and layers.

    A command prefix may change the run in ways that the environment does not show (a container, a CPU binding).
    """
    compared = {key: value for key, value in environment.items() if key not in _NOT_COMPARED}
    return content_hash([job.id, compared, job.launch.transformer_engine, job.launch.command_prefix])


def probe(command: list[str], interpreter: str) -> dict[str, str]:
    with results.writing("temporary files"):
        output = tempfile.TemporaryFile()  # noqa: SIM115 - what fails below has other causes
    with output:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise AutoscoutError(f"{interpreter}: cannot be run ({error.strerror}); check launch.python", 2) from error
        finished = processes.exited(process, _LIMIT_S)
        processes.end(process, 0.0)
        output.seek(0)
        said = output.read().decode(errors="replace").strip()
    if not finished:
        raise AutoscoutError(f"{interpreter}: did not answer within {_LIMIT_S:.0f} s; check launch.python", 2)
    last = said.rsplit("\n", 1)[-1]
    try:
        found = json.loads(last)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise AutoscoutError(
            f"{interpreter}: does not work as a Python interpreter (it said {last[-200:]!r}); check launch.python",
            2,
        )
    return found


def _worker_hash() -> str:
    digest = hashlib.sha256()
    for path in sorted(processes.WORKER.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:8]
