"""Ending process trees that we started: all of them, and nothing else."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

WORKER = Path(__file__).parent / "worker"
_TICK_S = 0.05


def leashed(command: list[str]) -> list[str]:
    """The command, tied to the calling thread: the kernel kills it when that ends, whatever the cause."""
    return [sys.executable, str(WORKER / "leash.py"), str(os.getpid()), *command]


def exited(process: subprocess.Popen[bytes], within_s: float) -> bool:
    end = time.monotonic() + within_s
    while process.poll() is None:
        if time.monotonic() > end:
            return False
        time.sleep(_TICK_S)
    return True


def end(process: subprocess.Popen[bytes], grace_s: float) -> None:
    """SIGTERM to the process; after `grace_s` SIGKILL to it, its group and everything that it started.

    The process must lead its own group (start_new_session=True).
    """
    family = _family(process.pid)
    if process.poll() is None:
        process.terminate()
        exited(process, grace_s)
        family |= _family(process.pid)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for pid, started in family.items():
        if _stat(pid)[1] == started:  # still the same process
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    process.wait()


def _family(pid: int) -> dict[int, str]:
    """All descendants of `pid`: pid → start time."""
    children: dict[int, list[int]] = {}
    started: dict[int, str] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            parent, started[int(entry)] = _stat(int(entry))
            children.setdefault(parent, []).append(int(entry))
    found: dict[int, str] = {}
    waiting = [pid]
    while waiting:
        for child in children.get(waiting.pop(), []):
            found[child] = started[child]
            waiting.append(child)
    return found


def _stat(pid: int) -> tuple[int, str]:
    """(parent, start time) of a process; (-1, "") when there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return -1, ""
    return int(fields[1]), fields[19]
