"""File locks between processes: one writer or many readers, released by the kernel however a process ends.

DuckDB alone does not wait for a busy file, and some releases lose committed rows when processes alternate on
one, so every connection is made while holding a lock on a file of its own beside the knowledge base.
"""

import contextlib
import fcntl
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from kb.records import AutoscoutError

WAIT_S = 10.0
_LONGEST_SLEEP_S = 0.02


@contextlib.contextmanager
def exclusive(path: Path, wait_s: float = WAIT_S) -> Iterator[None]:
    """Holds the lock file `path` alone; our pid and command stand in it meanwhile.

    Errors: AutoscoutError that names the holder after `wait_s` seconds, or when the file cannot be written.
    """
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise AutoscoutError(
            f"{path}: cannot create the lock file ({error.strerror}); choose a folder that you may write to"
        ) from error
    try:
        _wait(file, path, fcntl.LOCK_EX, wait_s)
        command = " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])[:200]
        with contextlib.suppress(OSError):  # a courtesy to others: a full disk is no reason to fail here
            os.ftruncate(file, 0)
            os.pwrite(file, f"{os.getpid()} {command}".encode(errors="replace"), 0)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                os.ftruncate(file, 0)
    finally:
        os.close(file)


@contextlib.contextmanager
def shared(path: Path, wait_s: float = WAIT_S) -> Iterator[None]:
    """Holds the lock file `path` together with other readers.

    Without a lock where none can be made (a read-only folder): nobody else writes there either.
    Errors: AutoscoutError that names the holder after `wait_s` seconds.
    """
    file = _open_to_read(path)
    if file is None:
        yield
        return
    try:
        _wait(file, path, fcntl.LOCK_SH, wait_s)
        yield
    finally:
        os.close(file)


def is_held(path: Path) -> bool:
    """Whether some process holds the lock file `path` exclusively right now."""
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(file)


def holder(path: Path) -> int | None:
    """The process that holds `path` exclusively, as it wrote there; None if nobody does."""
    if not is_held(path):
        return None
    first = path.read_text(errors="replace").split(" ")[0]
    return int(first) if first.isdigit() else None


def _open_to_read(path: Path) -> int | None:
    for flags in (os.O_RDONLY | os.O_CREAT, os.O_RDONLY):
        with contextlib.suppress(OSError):
            return os.open(path, flags, 0o666)
    return None


def _wait(file: int, path: Path, kind: int, wait_s: float) -> None:
    deadline = time.monotonic() + wait_s
    sleep_s = 0.001
    while True:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise AutoscoutError(
                    f"{path.with_suffix('')} is in use by {_holder(file)} for more than {wait_s:g} s; "
                    f"wait for it or end it, then run this again"
                ) from None
        except OSError as error:
            raise AutoscoutError(
                f"{path}: this file system cannot lock files ({error.strerror}); choose another --kb folder"
            ) from error
        time.sleep(sleep_s)
        sleep_s = min(2 * sleep_s, _LONGEST_SLEEP_S)


def _holder(file: int) -> str:
    pid, _, command = os.pread(file, 1000, 0).decode(errors="replace").partition(" ")
    # Readers leave no name, and what a killed writer left must not be blamed on it.
    if pid.isdigit() and Path(f"/proc/{pid}").exists():
        return f"process {pid} ({command})"
    return "a process that reads it"
