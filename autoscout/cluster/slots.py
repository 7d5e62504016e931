"""The devices of this machine: one experiment at a time, whoever runs it. Two at once would time each other."""

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

_TICK_S = 0.1


class Holder(msgspec.Struct, frozen=True):
    pid: int
    since: float  # unix time
    session: str  # "" unknown


def lock_path() -> Path:
    """One file for all users of the machine (and for all containers that share its temporary folder)."""
    return Path(tempfile.gettempdir()) / "autoscout-devices.lock"


@contextlib.contextmanager
def machine(on_wait: Callable[[], None], give_up: Callable[[], bool], session: str = "") -> Iterator[bool]:
    """Holds the machine for one experiment; yields False if `give_up()` became true while it waited for it.

    `on_wait` is called once when somebody else holds it. The kernel gives it back however a holder ends; who holds it
    stands in the file.
    """
    file = _open()
    if file is None:
        yield True
        return
    ours = False
    try:
        ours = _wait(file, on_wait, give_up)
        if ours:
            _write(file, f"{os.getpid()} {time.time():.0f} {session}\n")
        yield ours
    finally:
        if ours:
            _write(file, "")
        os.close(file)


def holder() -> Holder | None:
    """Who measures on this machine now; None if nobody does. What a killed holder left there is not believed."""
    try:
        pid, since, session, *_ = [*lock_path().read_text(errors="replace").split(), "", "", ""]
    except OSError:
        return None
    if not (pid.isdigit() and since.isdigit() and Path(f"/proc/{pid}").exists()):
        return None
    return Holder(int(pid), float(since), session)


def _write(file: int, text: str) -> None:
    with contextlib.suppress(OSError):  # a courtesy to who looks
        os.ftruncate(file, 0)
        os.pwrite(file, text.encode(), 0)


def _open() -> int | None:
    """None where the file is another user's and closed to us: better side by side than not at all."""
    with contextlib.suppress(OSError):
        return os.open(lock_path(), os.O_RDWR)
    with contextlib.suppress(OSError):
        file = os.open(lock_path(), os.O_RDWR | os.O_CREAT, 0o666)
        os.fchmod(file, 0o666)
        return file
    return None


def _wait(file: int, on_wait: Callable[[], None], give_up: Callable[[], bool]) -> bool:
    told = False
    while not give_up():
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if not told:
            told = True
            on_wait()
        time.sleep(_TICK_S)
    return False
