"""Asks the driver's own program (nvidia-smi) about this machine's GPUs: free memory, and which processes use the
remaining memory.

Anything may be missing: the program, an answer in time, or a number ("[N/A]" in containers and on unified memory).
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence

import msgspec

from autoscout.line.visible_gpus import named

_PROGRAM = "nvidia-smi"
_LIMIT_S = 10.0
_FIELDS = "index,uuid,name,memory.used,memory.total"
_LOST = re.compile(r"GPU is lost|Unable to determine the device handle|Unknown Error|GPU requires reset")
IDLE = 0.1  # share of a GPU's memory that the driver, a display or an idle context may use


class Gpu(msgspec.Struct, frozen=True):
    """One GPU. `used_gib`, `total_gib`: None if the driver does not report these sizes."""

    index: int
    uuid: str
    name: str
    used_gib: float | None
    total_gib: float | None


def look() -> list[Gpu]:
    """This machine's GPUs; empty if no driver answers within ten seconds."""
    return parsed(asked(f"--query-gpu={_FIELDS}"))


def ours() -> list[Gpu]:
    """The GPUs that our CUDA_VISIBLE_DEVICES names; all GPUs if it names no whole GPU (it may name MIG slices)."""
    seen, names = look(), named(os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    return [gpu for gpu in seen if shown(names, gpu.index, gpu.uuid)] or seen


def parsed(table: str) -> list[Gpu]:
    found = []
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 5 and cells[0].isdigit():
            found.append(Gpu(int(cells[0]), cells[1], cells[2], _gib(cells[3]), _gib(cells[4])))
    return found


def held(visible: str = "") -> str:
    """A sentence on the GPUs on which other processes use memory; "" if there are none. `visible`: the
    CUDA_VISIBLE_DEVICES of the experiment that is about to start ("": all GPUs)."""
    names = named(visible)
    busy = [
        f"GPU {gpu.index} has {gpu.used_gib:.1f} of {gpu.total_gib:.1f} GiB in use"
        for gpu in look()
        if _in_use(gpu) and shown(names, gpu.index, gpu.uuid)
    ]
    return "; ".join(busy)


def shown(names: Sequence[str], index: int | str, uuid: str) -> bool:
    """Whether a GPU is among `names` (indices or UUIDs); an empty list contains all GPUs."""
    return not names or any(name == str(index) or uuid.startswith(name) for name in names)


def taken(names: Sequence[str]) -> set[int]:
    """Positions in `names` (indices or UUIDs) of GPUs that are missing or on which other processes use memory."""
    free = [gpu for gpu in look() if not _in_use(gpu)]
    return {i for i, name in enumerate(names) if not any(shown([name], gpu.index, gpu.uuid) for gpu in free)}


def uuids(names: Sequence[str]) -> list[str]:
    """UUIDs of GPUs given by index or UUID, so that a GPU has only one name; the given names if there is no driver."""
    found = look()
    return [next((gpu.uuid for gpu in found if shown([name], gpu.index, gpu.uuid)), name) for name in names]


def _in_use(gpu: Gpu) -> bool:
    return gpu.used_gib is not None and bool(gpu.total_gib) and gpu.used_gib > IDLE * (gpu.total_gib or 0.0)


def of_processes(pids: set[int]) -> float | None:
    """GiB that these processes use on the GPU on which they use most. None if the driver does not report this, or if it
    reports process ids of the host, which differ from those in a container."""
    held: dict[str, float] = {}
    for line in asked("--query-compute-apps=pid,gpu_uuid,used_memory").splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        gib = _gib(cells[2]) if len(cells) == 3 else None
        if gib is not None and cells[0].isdigit() and int(cells[0]) in pids:
            held[cells[1]] = held.get(cells[1], 0.0) + gib
    return max(held.values(), default=None)


def more_than(before: list[Gpu]) -> float | None:
    """The largest increase of memory in use on any GPU since `before` in GiB; None if the driver does not report it."""
    used = {gpu.uuid: gpu.used_gib for gpu in before}
    more = [
        gpu.used_gib - before_gib
        for gpu in look()
        if gpu.used_gib is not None and (before_gib := used.get(gpu.uuid)) is not None
    ]
    return max(more, default=None)


def driver() -> str:
    """The driver's version; "" if it does not answer."""
    return asked("--query-gpu=driver_version").partition("\n")[0].strip()


def silence() -> str:
    """The reason why the driver's program reports no GPU; "" if it reports at least one."""
    if shutil.which(_PROGRAM) is None:
        return "there is no NVIDIA driver (nvidia-smi not found)"
    answer, in_time = _answer(f"--query-gpu={_FIELDS}", _LIMIT_S)
    if not in_time:
        return f"nvidia-smi did not answer within {_LIMIT_S:.0f} s"
    if parsed(answer):
        return ""
    first = next((line.strip() for line in answer.splitlines() if line.strip()), "")
    return f"nvidia-smi is installed, but no driver answers it{f' ({first[:160]})' if first else ''}"


class GpuHealth(msgspec.Struct, frozen=True):
    """The state of all GPUs. `errors`: GPU's UUID → uncorrected ECC errors since the driver was loaded; `lost`: the
    driver's lines about GPUs that it can no longer reach."""

    errors: dict[str, int] = {}
    lost: list[str] = []


def health() -> GpuHealth:
    """The GPUs' health; empty if no driver answers."""
    errors, lost = {}, []
    for line in asked("--query-gpu=uuid,ecc.errors.uncorrected.volatile.total", limit_s=5.0).splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if _LOST.search(line):
            lost.append(" ".join(line.split()))
        elif len(cells) == 2 and cells[1].isdigit():
            errors[cells[0]] = int(cells[1])
    return GpuHealth(errors, lost)


def broke(before: GpuHealth, now: GpuHealth) -> str:
    """A sentence on GPU errors that appeared between two calls of `health`; "" if there are none."""
    faults = [f"the driver can no longer reach a GPU: {line}" for line in now.lost if line not in before.lost]
    faults += [
        f"{uuid} had {count - before.errors[uuid]} uncorrected ECC errors"
        for uuid, count in now.errors.items()
        if count > before.errors.get(uuid, count)
    ]
    return "; ".join(faults)


def asked(query: str, limit_s: float | None = None) -> str:
    """The answer of the driver's program as CSV without header and units; "" if it does not answer in time."""
    return _answer(query, _LIMIT_S if limit_s is None else limit_s)[0]


def _answer(query: str, limit_s: float) -> tuple[str, bool]:
    """(output, whether the program ended in time). Returns soon after `limit_s` even if the program cannot be killed,
    because it hangs in the driver."""
    program = shutil.which(_PROGRAM)
    if program is None:
        return "", True
    try:
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                [program, query, "--format=csv,noheader,nounits"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                process.wait(limit_s)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(1.0)
                return "", False
            output.seek(0)
            return output.read().decode(errors="replace"), True
    except OSError:
        return "", True


def _gib(cell: str) -> float | None:
    try:
        return float(cell) / 1024
    except ValueError:
        return None
