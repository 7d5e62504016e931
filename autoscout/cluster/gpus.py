"""What the driver says of this machine's GPUs now, by its own program: free memory, and who holds the rest.

Everything may be missing: the program, an answer in time, a number ("[N/A]" in containers and on unified memory).
"""

import shutil
import subprocess
from collections.abc import Sequence

import msgspec

_LIMIT_S = 10.0
_FIELDS = "index,uuid,name,memory.used,memory.total"
_OWN = 0.1  # share of the memory that a driver, a display or an idle context may hold


class Gpu(msgspec.Struct, frozen=True):
    """`used_gib`, `total_gib`: None where the driver does not say."""

    index: int
    uuid: str
    name: str
    used_gib: float | None
    total_gib: float | None


def look() -> list[Gpu]:
    """Empty where no driver answers within ten seconds."""
    return parsed(asked(f"--query-gpu={_FIELDS}"))


def parsed(table: str) -> list[Gpu]:
    found = []
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 5 and cells[0].isdigit():
            found.append(Gpu(int(cells[0]), cells[1], cells[2], _gib(cells[3]), _gib(cells[4])))
    return found


def held(visible: str = "") -> str:
    """ "" or which GPUs others hold memory of, before an experiment starts on those that `visible` names, as
    CUDA_VISIBLE_DEVICES does; all by default."""
    names = [name.strip() for name in visible.split(",") if name.strip()]
    busy = [
        f"GPU {gpu.index} has {gpu.used_gib:.1f} of {gpu.total_gib:.1f} GiB taken"
        for gpu in look()
        if _taken(gpu) and (not names or any(_called(gpu, name) for name in names))
    ]
    return "; ".join(busy)


def taken(names: Sequence[str]) -> set[int]:
    """Positions in `names` (indices or UUIDs of GPUs) of those that others hold memory of, or that are not there."""
    free = [gpu for gpu in look() if not _taken(gpu)]
    return {i for i, name in enumerate(names) if not any(_called(gpu, name) for gpu in free)}


def _taken(gpu: Gpu) -> bool:
    return gpu.used_gib is not None and bool(gpu.total_gib) and gpu.used_gib > _OWN * (gpu.total_gib or 0.0)


def _called(gpu: Gpu, name: str) -> bool:
    return name == str(gpu.index) or gpu.uuid.startswith(name)


def of_processes(pids: set[int]) -> float | None:
    """GiB that these processes hold of the GPU of which they hold most; None where the driver does not say: it may list
    the host's ids, which are not those of a container, or no number."""
    held: dict[str, float] = {}
    for line in asked("--query-compute-apps=pid,gpu_uuid,used_memory").splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        gib = _gib(cells[2]) if len(cells) == 3 else None
        if gib is not None and cells[0].isdigit() and int(cells[0]) in pids:
            held[cells[1]] = held.get(cells[1], 0.0) + gib
    return max(held.values(), default=None)


def more_than(before: list[Gpu]) -> float | None:
    """GiB by which the fullest GPU is fuller now; None where the driver does not say."""
    used = {gpu.uuid: gpu.used_gib for gpu in before}
    more = [
        gpu.used_gib - before_gib
        for gpu in look()
        if gpu.used_gib is not None and (before_gib := used.get(gpu.uuid)) is not None
    ]
    return max(more, default=None)


def asked(query: str, limit_s: float = _LIMIT_S) -> str:
    """The driver's program's answer as CSV without head and units; "" where there is none in time."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    command = [program, query, "--format=csv,noheader,nounits"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=limit_s).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def _gib(cell: str) -> float | None:
    try:
        return float(cell) / 1024
    except ValueError:
        return None
