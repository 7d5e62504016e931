"""Ends process trees that we started, completely, and nothing else."""

import contextlib
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import NamedTuple, Protocol

WORKER = Path(__file__).parent / "worker"  # scripts that run under the target's interpreter
_TICK_S = 0.05
_GONE_LIMIT_S = 10.0  # how long a process may take to end after SIGKILL, since it has to release GPU memory


class Owned(Protocol):
    """A process that we started, with Popen's interface. It is the leader of its own session (setsid)."""

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None: ...

    def poll(self) -> int | None: ...

    def terminate(self) -> None: ...


def leashed(command: list[str]) -> list[str]:
    """A command that runs `command` and is killed by the kernel when the calling thread ends, for any reason."""
    return [sys.executable, str(WORKER / "leash.py"), str(os.getpid()), *command]


def free_port() -> int:
    """A port that is free now; another process may take it before it is used."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def exited(process: Owned, within_s: float) -> bool:
    end = time.monotonic() + within_s
    while process.poll() is None:
        if time.monotonic() > end:
            return False
        time.sleep(_TICK_S)
    return True


def end(process: Owned, grace_s: float, seen: dict[int, str] | None = None) -> None:
    """Sends SIGTERM to the process, then (`grace_s` seconds later at most) SIGKILL to its whole `family`. Waits until
    all have ended, because only then is their memory free for the next experiment. The process must lead its own
    session (start_new_session=True). `seen`: processes found in its family earlier, which may now be orphans.
    """
    members = (seen or {}) | family(process.pid)
    if process.poll() is None:
        process.terminate()
        exited(process, grace_s)
    limit = time.monotonic() + _GONE_LIMIT_S
    while time.monotonic() < limit:
        members |= family(process.pid)
        living = [pid for pid, started in members.items() if _lives(pid, started)]
        for pid in living:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # it has ended, or runs as root (with sudo)
                os.kill(pid, signal.SIGKILL)
        if process.poll() is not None and not living:
            return
        time.sleep(_TICK_S)


def family(pid: int) -> dict[int, str]:
    """All processes in the session that `pid` leads, and all their descendants, as pid → start time."""
    known = _known()
    return {each: known[each].started for each in _below(known, [p for p, s in known.items() if s.session == pid])}


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and all its descendants, including those that ended and were waited for."""
    known = _known()
    ticks = sum(known[each].cpu_ticks for each in _below(known, [pid]) if each in known)
    return ticks / os.sysconf("SC_CLK_TCK")


def _known() -> "dict[int, _Stat]":
    """All processes of this machine, by pid."""
    found = ((int(entry), _stat(int(entry))) for entry in os.listdir("/proc") if entry.isdigit())
    return {pid: stat for pid, stat in found if stat is not None}


def _below(known: "dict[int, _Stat]", first: list[int]) -> list[int]:
    """These processes and all their descendants, each once."""
    children: dict[int, list[int]] = {}
    for pid, stat in known.items():
        children.setdefault(stat.parent, []).append(pid)
    found: dict[int, None] = {}
    while first:
        member = first.pop()
        if member not in found:
            found[member] = None
            first.extend(children.get(member, []))
    return list(found)


def shared_memory(members: dict[int, str]) -> set[Path]:
    """Files in /dev/shm that these processes have mapped or open. They would remain when the processes are killed.
    Found by inode, since a semaphore is created under a temporary name and then renamed."""
    inodes = set()
    for pid in members:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
                if "/dev/shm/" in line:
                    inodes.add(int(line.split()[4]))
        with contextlib.suppress(OSError):
            for handle in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    if os.readlink(handle).startswith("/dev/shm/"):
                        inodes.add(handle.stat().st_ino)
    found = set()
    with contextlib.suppress(OSError):
        for path in Path("/dev/shm").iterdir():
            with contextlib.suppress(OSError):
                if path.stat().st_ino in inodes:
                    found.add(path)
    return found


class _Stat(NamedTuple):
    parent: int
    session: int
    cpu_ticks: int  # including those of its descendants that ended and were waited for
    started: str
    ended: bool  # a zombie that no longer holds memory


def _lives(pid: int, started: str) -> bool:
    """Whether the process with this start time still exists."""
    stat = _stat(pid)
    return stat is not None and stat.started == started and not stat.ended


def _stat(pid: int) -> _Stat | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None
    # A zombie with several threads is still exiting in one of them, and holds all of the process's memory.
    ended = fields[0] in "ZX" and int(fields[17]) <= 1
    return _Stat(int(fields[1]), int(fields[3]), sum(map(int, fields[11:15])), fields[19], ended)
