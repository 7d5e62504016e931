"""File locks between processes: one writer or many readers, released by the kernel however a process ends.

DuckDB alone does not wait for a busy file, and some releases lose committed rows when processes alternate on one, so
every connection is made while holding a lock on a separate file next to the knowledge base.

Waiters sleep in the kernel, which grants the lock roughly in order of arrival; polling would starve the unlucky.
Everybody first passes a gate (`….gate`), which a waiting writer keeps shut, so that a steady stream of readers cannot
keep it out for ever.
"""

import contextlib
import fcntl
import os
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from kb import dates
from kb.records import AutoscoutError

WAIT_S = 10.0


@contextlib.contextmanager
def exclusive(path: Path, wait_s: float = WAIT_S) -> Iterator[None]:
    """Holds the lock file `path` alone; meanwhile it contains our pid and command.

    Errors: AutoscoutError that names the holder after `wait_s` seconds, or when the file cannot be written.
    """
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise AutoscoutError(
            f"{path}: cannot create the lock file ({error.strerror}); choose a folder that you may write to"
        ) from error
    deadline = time.monotonic() + wait_s
    try:
        with _gate(path, file, fcntl.LOCK_EX, deadline, wait_s):
            _wait(file, path, fcntl.LOCK_EX, deadline, wait_s)
        # The entry only helps others, so a full disk is no reason to fail here.
        with contextlib.suppress(OSError):
            os.ftruncate(file, 0)
            os.pwrite(file, _who_we_are().encode(errors="replace"), 0)
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

    Uses no lock where none can be created (a read-only folder): nobody else can write there either. Errors:
    AutoscoutError that names the holder after `wait_s` seconds.
    """
    file = _open_to_read(path)
    if file is None:
        yield
        return
    deadline = time.monotonic() + wait_s
    try:
        with _gate(path, file, fcntl.LOCK_SH, deadline, wait_s):
            _wait(file, path, fcntl.LOCK_SH, deadline, wait_s)
        yield
    finally:
        os.close(file)


@contextlib.contextmanager
def temporary_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """A folder below `parent`, locked while it is used. First removes those of killed processes, recognised by their
    free locks; the lock on this procedure keeps others from removing a new folder before it is locked."""
    with contextlib.ExitStack() as stack:
        with exclusive(parent / f"{prefix}sweep.lock"):
            for left in parent.glob(f"{prefix}*/"):
                if not is_held(left / "owner.lock"):
                    shutil.rmtree(left, ignore_errors=True)
            made = tempfile.TemporaryDirectory(dir=parent, prefix=prefix, ignore_cleanup_errors=True)
            folder = Path(stack.enter_context(made))
            stack.enter_context(exclusive(folder / "owner.lock"))
        yield folder


def is_held(path: Path) -> bool:
    """Whether some process holds the lock file `path` exclusively at the moment."""
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
    """The pid that the exclusive holder of `path` wrote there; None if nobody holds it."""
    if not is_held(path):
        return None
    first = path.read_text(errors="replace").split(" ")[0]
    return int(first) if first.isdigit() else None


def who(path: Path) -> str:
    """The exclusive holder of `path` in words; "" if there is none."""
    if not is_held(path):
        return ""
    file = os.open(path, os.O_RDONLY)
    try:
        return _holder(file)
    finally:
        os.close(file)


def _open_to_read(path: Path) -> int | None:
    for flags in (os.O_RDONLY | os.O_CREAT, os.O_RDONLY):
        with contextlib.suppress(OSError):
            return os.open(path, flags, 0o666)
    return None


@contextlib.contextmanager
def _gate(path: Path, file: int, kind: int, deadline: float, wait_s: float) -> Iterator[None]:
    """A writer holds the gate while it waits; a reader only passes through."""
    gate = _open_to_read(path.with_name(path.name.removesuffix(".lock") + ".gate"))
    if gate is None:
        yield
        return
    try:
        _wait(gate, path, kind, deadline, wait_s, of=file)
        if kind == fcntl.LOCK_SH:
            fcntl.flock(gate, fcntl.LOCK_UN)
        yield
    finally:
        os.close(gate)


def _wait(file: int, path: Path, kind: int, deadline: float, wait_s: float, of: int | None = None) -> None:
    """Waits for the lock. `of`: the file that contains the holder's name, if it is not this one."""
    try:
        got = _flock(file, kind, deadline)
    except OSError as error:
        raise AutoscoutError(
            f"{path}: this file system cannot lock files ({error.strerror}); choose another --kb folder"
        ) from error
    if not got:
        raise AutoscoutError(
            f"{path.with_suffix('')} is in use by {_holder(file if of is None else of)}, and has been for the "
            f"{wait_s:g} s that we waited; wait for it or end it, then run this again"
        )


def _flock(file: int, kind: int, deadline: float) -> bool:
    """Whether the lock was granted before the deadline.

    A thread does the waiting, since flock has no timeout; if it gets the lock after we gave up, it releases it at once.
    """
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        if time.monotonic() >= deadline:
            return False
    ours = os.dup(file)  # shares the lock, and stays open until the thread is done
    decided, answered = threading.Lock(), threading.Event()
    state: dict[str, object] = {"given up": False, "got": False}

    def work() -> None:
        try:
            fcntl.flock(ours, kind)
            with decided:
                if state["given up"]:
                    fcntl.flock(ours, fcntl.LOCK_UN)
                else:
                    state["got"] = True
        except OSError as error:
            state["error"] = error
        finally:
            os.close(ours)
            answered.set()

    threading.Thread(target=work, daemon=True).start()
    try:
        answered.wait(max(0.0, deadline - time.monotonic()))
    finally:  # runs also when Ctrl-C ends the waiting
        with decided:
            state["given up"] = not state["got"]
    if isinstance(error := state.get("error"), OSError):
        raise error
    return bool(state["got"])


def _who_we_are() -> str:
    command = " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])[:200]
    return f"{os.getpid()} {socket.gethostname()} {dates.now():.0f} {command}"


def _holder(file: int) -> str:
    fields = os.pread(file, 1000, 0).decode(errors="replace").split(" ", 3)
    if len(fields) < 4 or not fields[0].isdigit() or not fields[2].isdigit():
        return "a process that reads it"  # readers do not leave their names
    pid, host, since, command = fields
    here = host == socket.gethostname()
    if here and not Path(f"/proc/{pid}").exists():  # left by a killed writer
        return "a process that reads it"
    began = time.strftime("%H:%M:%S", time.localtime(int(since)))
    return f"process {pid}{'' if here else f' on {host}'} ({command}) since {began}"
