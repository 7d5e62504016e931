"""Runs a user's own command and reads its output meanwhile. Finally ends the command and all processes that it started.

Output is read from a pipe; only its beginning and end are kept, so that a log of any size fits in memory and on disk.
"""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from autoscout.running import processes, results

_SUPERVISE = processes.WORKER / "supervise.py"
_PIPE = 2**20  # bytes: size of the pipe, and the most that is read from it at once
_TICK_S = 0.05
_LOOK_S = 2.0
_GRACE_S = 5.0  # how long a command may take to end after SIGTERM
_KEPT = 4 * 2**20  # bytes of output that are kept at the beginning, and as many at the end
_F_SETPIPE_SZ = 1031


class Begin(Protocol):
    """Starts a command under its supervisor (worker/supervise.py), with output to `pipe`."""

    def __call__(
        self, command: list[str], environment: Mapping[str, str], cwd: Path, status: Path, grace_s: float, pipe: int, /
    ) -> processes.Owned: ...


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended. `code`: its exit code (-n: signal n), None if we ended it. `left`: number of processes that
    it left running. `why`: the reason that `enough` returned (see `run`), if that ended the command. `first_output_s`:
    seconds from the command's start to its first output."""

    code: int | None
    seconds: float
    first_output_s: float | None
    timed_out: bool = False
    stopped: bool = False
    why: str = ""
    left: int = 0
    peak_rss_gib: float | None = None  # of the largest process
    cpu_s: float | None = None
    problem: str = ""  # why the command could not be started


def run(
    command: list[str],
    environment: Mapping[str, str],
    cwd: Path,
    folder: Path,
    limit_s: float,
    stopping: Callable[[], bool],
    on_output: Callable[[bytes], None],
    enough: Callable[[], str],
    begin: Begin | None = None,
) -> Ended:
    """Runs a command until it ends, the limit is reached, `stopping()` is true, or `enough()` returns a reason (it is
    called after every piece of output, and every 0.05 s). Writes output.log into `folder`. `begin`: starts the command,
    by default as a new process. Errors: AutoscoutError if `folder` cannot be written."""
    status = folder / "ended.json"
    with results.writing(folder):
        status.unlink(missing_ok=True)
        kept = _Kept(folder / "output.log")
    read, write = os.pipe()
    _enlarge(read)
    started = time.monotonic()
    try:
        process = (begin or _fresh)(command, environment, cwd, status, _GRACE_S, write)
    except OSError as error:
        kept.close()
        os.close(read)
        os.close(write)
        return Ended(code=None, seconds=0.0, first_output_s=None, problem=f"{cwd}: {error.strerror}")
    os.close(write)
    end = _End(limit_s, stopping, enough)
    seen: dict[int, str] = {}
    first: float | None = None

    def heard(output: bytes) -> None:
        nonlocal first
        first = first or time.monotonic() - started
        kept.write(output)
        on_output(output)

    try:
        _follow(process, read, started, heard, end, seen)
    finally:
        if process.poll() is None or not status.is_file():  # otherwise the supervisor has already ended all processes
            processes.end(process, 0.0, seen)
        os.close(read)
        kept.close()
    return _ended(status, time.monotonic() - started, first, end, process.returncode)


class _End:
    """Decides when a command must be ended, and records the first reason."""

    def __init__(self, limit_s: float, stopping: Callable[[], bool], enough: Callable[[], str]) -> None:
        self._limit_s, self._stopping, self._enough = limit_s, stopping, enough
        self.timed_out = self.stopped = False
        self.why = ""

    @property
    def ending(self) -> bool:
        return bool(self.timed_out or self.stopped or self.why)

    def look(self, now: float) -> bool:
        """Whether the command must end now. `now`: seconds since its start."""
        if self.ending:
            return False
        self.why = self._enough()
        self.stopped = not self.why and self._stopping()
        self.timed_out = not self.why and not self.stopped and now > self._limit_s
        return self.ending


def _follow(
    process: processes.Owned,
    read: int,
    started: float,
    heard: Callable[[bytes], None],
    end: _End,
    seen: dict[int, str],
) -> None:
    """Reads a command's output until the command has ended; records its process family in `seen`."""
    looked = 0.0
    gone = os.pidfd_open(process.pid)
    try:
        watched = [gone, read]
        while True:
            ready = select.select(watched, [], [], _TICK_S)[0]
            if read in ready and (output := os.read(read, _PIPE)):
                heard(output)
            elif gone in ready:
                return
            elif read in ready:  # end of file: the command closed its output
                watched = [gone]
            now = time.monotonic() - started
            if now > looked + _LOOK_S:  # needed to end the command's processes if their supervisor is killed
                looked = now
                seen |= processes.family(process.pid)
            if end.look(now):
                process.terminate()
    finally:
        os.close(gone)


def _fresh(
    command: list[str], environment: Mapping[str, str], cwd: Path, status: Path, grace_s: float, pipe: int
) -> subprocess.Popen[bytes]:
    supervisor = [sys.executable, "-I", "-S", str(_SUPERVISE), str(status), str(os.getpid()), str(grace_s)]
    return subprocess.Popen(
        [*supervisor, *command],
        stdin=subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
        env=dict(environment),
        cwd=cwd,
        start_new_session=True,
    )


def _ended(status: Path, seconds: float, first: float | None, end: _End, own: int | None) -> Ended:
    found: dict[str, Any]
    try:
        found = json.loads(status.read_text())
    except (OSError, ValueError):
        found = {"error": f"the supervisor of the command was killed ({own})"}
    rss = found.get("peak_rss_kib")
    return Ended(
        code=None if end.ending else found.get("code"),
        seconds=seconds,
        first_output_s=first,
        timed_out=end.timed_out,
        stopped=end.stopped,
        why=end.why,
        left=int(found.get("left") or 0),
        peak_rss_gib=rss / 2**20 if rss else None,
        cpu_s=found.get("cpu_s"),
        problem=str(found.get("error") or ""),
    )


def _enlarge(pipe: int) -> None:
    import fcntl

    try:
        fcntl.fcntl(pipe, _F_SETPIPE_SZ, _PIPE)
    except OSError:  # the pipe size exceeds this user's limit, but the default size suffices
        return


class _Kept:
    """The first and last bytes of a command's output, in one file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = open(path, "wb", buffering=0)  # noqa: SIM115 - closed by close()
        self._room, self._tail, self._lost = _KEPT, bytearray(), 0

    def write(self, output: bytes) -> None:
        if self._room:
            head, output = output[: self._room], output[self._room :]
            self._room -= len(head)
            self._write(head)
        if output:
            self._tail += output
            if len(self._tail) > 2 * _KEPT:
                self._lost += len(self._tail) - _KEPT
                del self._tail[:-_KEPT]

    def close(self) -> None:
        if self._lost:
            self._write(f"\n… {self._lost:,} bytes were not kept …\n".encode())
        self._write(bytes(self._tail))
        self._file.close()

    def _write(self, data: bytes) -> None:
        with results.writing(self._path):
            self._file.write(data)
