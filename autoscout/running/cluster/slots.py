"""Locks this machine's devices, so that across all sessions each measurement has its devices to itself.

    autoscout-devices.lock        the whole machine: a shared lock for users of some GPUs, an exclusive one for others
    autoscout-device-NAME.lock    one GPU
    autoscout-turn.lock           the queue: held by the process that gets the next free devices; all other processes
                                  that need devices wait for this lock

The kernel releases the locks however a process ends. Each file contains the pid of the process that holds it.
"""

import contextlib
import fcntl
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from kb import dates

_TICK_S = 0.1


class Holder(msgspec.Struct, frozen=True):
    pid: int
    since: float  # unix time
    session: str  # "": unknown


class Some(msgspec.Struct, frozen=True):
    """A request for `count` free GPUs, the first ones `among` these names."""

    among: Sequence[str]
    count: int


def lock_path() -> Path:
    """The machine's lock file, the same for all users (and for containers that share its temporary folder)."""
    return Path(tempfile.gettempdir()) / "autoscout-devices.lock"


@contextlib.contextmanager
def machine(
    on_wait: Callable[[], None],
    give_up: Callable[[], bool],
    session: str = "",
    some: Some | None = None,
    taken: list[str] | None = None,
) -> Iterator[bool]:
    """A context that locks the whole machine, or `some` of its GPUs, for an experiment. Yields True once the lock is
    held, and False if `give_up()` became true while waiting. `taken` gets the names of the locked GPUs, in order;
    `on_wait` is called once if the devices are in use."""
    held: list[int] | None = None
    try:
        held = _wait(some, taken if taken is not None else [], on_wait, give_up)
        if held:
            _write(held, f"{os.getpid()} {dates.now():.0f} {session}\n")
        yield held is not None
    finally:
        if held:
            _clear(held)
            _close(held)


def holder(path: Path | None = None) -> Holder | None:
    """Who is measuring on this machine now; None if nobody is. Ignores the entry of a holder that was killed."""
    try:
        pid, since, session, *_ = [*(path or lock_path()).read_text(errors="replace").split(), "", "", ""]
    except OSError:
        return None
    if not (pid.isdigit() and since.isdigit() and Path(f"/proc/{pid}").exists()):
        return None
    return Holder(int(pid), float(since), session)


def wanted_by_others() -> bool:
    """Whether another process waits for devices. If so, a session releases its devices when its experiments have
    ended."""
    file = _open(_turn())
    if file is None:
        return False
    try:
        return not _locked(file, fcntl.LOCK_SH)
    finally:
        os.close(file)


def _wait(
    some: Some | None, taken: list[str], on_wait: Callable[[], None], give_up: Callable[[], bool]
) -> list[int] | None:
    """Waits for the locks and returns their open files; None if `give_up()` became true. Lock files of other users that
    we may not open are skipped, because disturbed measurements are better than none."""
    notified, turn = False, _open(_turn())
    try:
        ours = turn is None
        while not give_up():
            ours = ours or (turn is not None and _locked(turn, fcntl.LOCK_EX))
            if ours and (held := _lock_all(some, taken)) is not None:
                return held
            if not notified:
                notified = True
                on_wait()
            time.sleep(_TICK_S)
        return None
    finally:
        if turn is not None:
            os.close(turn)


def _lock_all(some: Some | None, taken: list[str]) -> list[int] | None:
    """Takes all locks that are needed, without waiting; returns None, and takes none, if one of them is held."""
    held: list[int] = []
    if (file := _open(lock_path())) is not None:
        held.append(file)
        if not _locked(file, fcntl.LOCK_SH if some else fcntl.LOCK_EX):
            _close(held)
            return None
    found: list[str] = []
    for name in some.among if some else ():
        file = _open(_device(name))
        if file is not None and not _locked(file, fcntl.LOCK_EX):
            os.close(file)
            continue
        held += [file] if file is not None else []
        found.append(name)
        if some and len(found) == some.count:
            break
    if some and len(found) < some.count:
        _close(held)
        return None
    taken[:] = found
    return held


def _turn() -> Path:
    return lock_path().with_name("autoscout-turn.lock")


def _device(name: str) -> Path:
    return lock_path().with_name(f"autoscout-device-{re.sub(r'[^A-Za-z0-9-]', '_', name)}.lock")


def _locked(file: int, how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write(files: list[int], text: str) -> None:
    for file in files:
        with contextlib.suppress(OSError):  # the content is only information for other processes
            os.ftruncate(file, 0)
            os.pwrite(file, text.encode(), 0)


def _clear(files: list[int]) -> None:
    """Empties the lock files, except those into which another process that shares the machine has written its own
    name."""
    for file in files:
        with contextlib.suppress(OSError):
            if os.pread(file, 32, 0).startswith(f"{os.getpid()} ".encode()):
                os.ftruncate(file, 0)


def _close(files: list[int]) -> None:
    for file in files:
        os.close(file)


def _open(path: Path) -> int | None:
    """The open lock file; None if it belongs to another user and we may not open it."""
    with contextlib.suppress(OSError):
        return os.open(path, os.O_RDWR)
    with contextlib.suppress(OSError):
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        os.fchmod(file, 0o666)
        return file
    return None
