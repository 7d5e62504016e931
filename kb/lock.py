"""File locks between processes: one writer or many readers, released by the kernel however a process ends.

DuckDB itself does not wait for a file that another process uses, and some of its releases lose committed rows when
several processes use a file alternately. So every connection is made while holding a lock on a separate file next to
the knowledge base.

Waiting processes sleep in the kernel, which grants the lock roughly in order of arrival; with polling, some could wait
for ever. A second lock (`….gate`) must be acquired before waiting for the first one. A waiting writer holds it, so that
new readers cannot overtake the writer for ever.
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
    """Holds an exclusive lock on the file `path`, which contains our pid and command while it is locked. Errors:
    AutoscoutError that names the holder after `wait_s` seconds, or if the file cannot be written."""
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
        # The content only informs waiting processes, so it may be missing if the disk is full.
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
    """Holds a shared lock on the file `path`. In a read-only folder, where no lock file can be created, it uses no
    lock, since nobody can write there. Errors: AutoscoutError that names the holder after `wait_s` seconds."""
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
    """A temporary folder below `parent` that holds a lock while it is used. First removes folders of killed processes,
    whose locks are free. A further lock is held meanwhile and until the new folder's own lock is held, so that no other
    process removes the new folder."""
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
    """Whether a process holds an exclusive lock on the file `path` now."""
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
    """The pid of the process that holds an exclusive lock on the file `path`; None if there is none."""
    if not is_held(path):
        return None
    first = path.read_text(errors="replace").split(" ")[0]
    return int(first) if first.isdigit() else None


def who(path: Path) -> str:
    """A description of the process that holds an exclusive lock on the file `path`; "" if there is none."""
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
    """Acquires the second lock (see the docstring of this module). A writer holds it while it waits; a reader releases
    it at once."""
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
    """Waits for the lock on an open file. `of`: the open file that contains the holder's name, if it is not `file`."""
    try:
        got = _flock(file, kind, deadline)
    except OSError as error:
        raise AutoscoutError(
            f"{path}: this file system cannot lock files ({error.strerror}); choose a file in another folder with --kb"
        ) from error
    if not got:
        raise AutoscoutError(
            f"{path.with_suffix('')} is in use by {_holder(file if of is None else of)} (waited {wait_s:g} s); "
            f"wait for that process or end it, then run this command again"
        )


def _flock(file: int, kind: int, deadline: float) -> bool:
    """Waits for a lock, and returns whether it was granted before the deadline. A thread waits, since flock has no
    timeout; if the thread gets the lock after the deadline, the thread releases it at once."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        if time.monotonic() >= deadline:
            return False
    ours = os.dup(file)  # shares the lock with `file`, and stays open until the thread ends
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
        return "a process that reads it"  # only writers write their names into the file
    pid, host, since, command = fields
    here = host == socket.gethostname()
    if here and not Path(f"/proc/{pid}").exists():  # left by a killed writer
        return "a process that reads it"
    began = time.strftime("%H:%M:%S", time.localtime(int(since)))
    return f"process {pid}{'' if here else f' on {host}'} ({command}) since {began}"
