"""The devices of this machine: one experiment at a time, whoever runs it. Two at once would time each other."""

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

_TICK_S = 0.1


def lock_path() -> Path:
    """One file for all users of the machine (and for all containers that share its temporary folder)."""
    return Path(tempfile.gettempdir()) / "autoscout-devices.lock"


@contextlib.contextmanager
def machine(on_wait: Callable[[], None], give_up: Callable[[], bool]) -> Iterator[bool]:
    """Holds the machine for one experiment; yields False if `give_up()` became true while it waited for it.

    `on_wait` is called once when somebody else holds it. The kernel gives it back however a holder ends.
    """
    file = _open()
    if file is None:
        yield True
        return
    try:
        yield _wait(file, on_wait, give_up)
    finally:
        os.close(file)


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
