"""Runs a user's own command, and leaves nothing behind that it started, neither children nor daemons.

    supervise.py STATUS PARENT GRACE_S COMMAND…

This process is a subreaper: orphans of the command become its children, so that even a daemon in its own session is
found. On SIGTERM, or when process PARENT ends, the command gets SIGTERM, and whatever is left GRACE_S seconds later
gets SIGKILL. The file STATUS gets {"code", "left", "peak_rss_kib", "cpu_s"} or {"error"}, as JSON. Needs only Python.
"""

import ctypes
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
# seconds that helper processes of the command get to exit by themselves after the command has ended
_AFTERWARDS_S = 1.0
_GONE_S = 10.0


def main(status: str, parent: int, grace_s: float, become: Callable[[int], object], what: str) -> int:
    """Runs a command. `become`: called in the forked process to turn it into the command, with a file descriptor that
    the callee closes once the command has begun; `what`: the command's name in errors."""
    become_subreaper()
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, frame: asked.append(number))
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != parent:
        return 1
    try:
        child = _started(become)
    except OSError as error:
        import json  # imported here: it is rarely needed, and its import takes longer than all others together

        _write(status, json.dumps({"error": f"{what}: {error.strerror}"}))
        return 1
    code: int | None = None
    ending = float("inf")
    while code is None:
        if asked and ending == float("inf"):
            gone = os.getppid() != parent  # if so, no process waits for a graceful end
            ending = time.monotonic() + (0.0 if gone else grace_s)
            _signal(child, signal.SIGTERM)
        if time.monotonic() >= ending:
            break
        select.select([woken], [], [], max(0.0, min(1.0, ending - time.monotonic())))
        _drained(woken)
        code = _reaped(child)
    left = len(descendants(os.getpid())) if code is not None and not asked else 0
    if left and not asked:
        _wait_for_the_rest(time.monotonic() + _AFTERWARDS_S)
        left = len(descendants(os.getpid()))
    code = _killed(child, code)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    shown = "null" if code is None else code
    cpu_s = used.ru_utime + used.ru_stime
    _write(status, f'{{"code": {shown}, "left": {left}, "peak_rss_kib": {used.ru_maxrss}, "cpu_s": {cpu_s}}}')
    return 0


def _started(become: Callable[[int], object]) -> int:
    read, write = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            signal.set_wakeup_fd(-1)
            become(write)
        except OSError as error:
            os.write(write, str(error.errno).encode())
        os._exit(127)
    os.close(write)
    with os.fdopen(read) as failed:
        number = failed.read()
    if number:
        os.waitpid(child, 0)
        raise OSError(int(number), os.strerror(int(number)))
    return child


def _reaped(child: int) -> int | None:
    """The command's exit code (-n: signal n) if it has ended; reaps all other ended children."""
    code = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if pid == 0:
            return code
        if pid == child:
            code = os.waitstatus_to_exitcode(status)


def _wait_for_the_rest(until: float) -> None:
    while descendants(os.getpid()) and time.monotonic() < until:
        time.sleep(0.02)
        _reaped(0)


def _killed(child: int, code: int | None) -> int | None:
    until = time.monotonic() + _GONE_S
    while time.monotonic() < until:
        rest = descendants(os.getpid())
        if not rest:
            break
        for pid in rest:
            _signal(pid, signal.SIGKILL)
        time.sleep(0.01)
        ended = _reaped(child)
        code = ended if code is None else code
    return code


def become_subreaper() -> None:
    """Makes orphaned descendants children of this process."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(of: int) -> list[int]:
    """All living descendants of a process."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as file:
                    fields = file.read().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if fields[0] not in "ZX" or int(fields[17]) > 1:
                children.setdefault(int(fields[1]), []).append(int(entry))
    found, waiting = [], [of]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):  # it has ended, or runs as root (with sudo)
        return


def _drained(fd: int) -> None:
    try:
        while os.read(fd, 4096):
            pass
    except BlockingIOError:
        return


def _write(path: str, text: str) -> None:
    with open(path + ".part", "w") as file:
        file.write(text)
    os.replace(path + ".part", path)


if __name__ == "__main__":
    words = sys.argv[4:]
    os._exit(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), lambda _: os.execvp(words[0], words), words[0]))
