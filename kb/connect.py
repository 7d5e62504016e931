"""Opens the knowledge base: takes its lock, connects DuckDB (nothing else does), and turns errors into sentences.

Connections are short, so the file is not locked while an experiment runs. A missing knowledge base is created, and one
of an older version is migrated.
"""

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kb import access, door, kept_up, lock, migrate
from kb.records import AutoscoutError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_WRITER: dict[str, Any] = {
    "storage_compatibility_version": migrate.STORAGE,
    "threads": 1,
}
_EMPTY: dict[
    tuple[migrate.Migration, ...], bytes
] = {}  # cached content of an empty knowledge base; creating one by migrations takes 0.2 s of CPU time
_NETWORK_FILESYSTEMS = {"nfs", "nfs4", "lustre", "cifs", "smb3", "fuse.sshfs", "beegfs", "gpfs", "ceph", "9p"}
_USUAL = "kb.duckdb"
_MAGIC, _MAGIC_AT = b"DUCK", 8  # in each DuckDB file, and its position there
_READER: dict[str, Any] = {"enable_external_access": False, "lock_configuration": True}


@contextlib.contextmanager
def writer(kb: Path, wait_s: float = lock.WAIT_S) -> "Iterator[DuckDBPyConnection]":
    """Opens the knowledge base for writing, with an exclusive lock for which it waits up to `wait_s` seconds."""
    with writer_if(kb, lambda: True, wait_s) as con:
        assert con is not None
        yield con


@contextlib.contextmanager
def writer_if(
    kb: Path, needed: Callable[[], bool], wait_s: float = lock.WAIT_S, results: bool = True
) -> "Iterator[DuckDBPyConnection | None]":
    """Like `writer`, but yields None without opening the file if `needed` is false once the lock is held. `results`:
    whether to refresh the precomputed results (kb/kept_up.py) now, not when they are next queried."""
    with _sentences(kb):
        kb.parent.mkdir(parents=True, exist_ok=True)
        with lock.exclusive(lock_path(kb), wait_s):
            if not needed():
                yield None
                return
            if not kb.exists():
                _create(kb)
            with contextlib.closing(_connect(kb, False, wait_s)) as con:
                migrate.apply(con, kb, migrate.known())
                kept_up.begun(con)
                yield con
                if results:
                    kept_up.refresh(con)


@contextlib.contextmanager
def reader(
    kb: Path, wait_s: float = lock.WAIT_S, files: bool = False, results: bool = False
) -> "Iterator[DuckDBPyConnection]":
    """Opens the knowledge base for reading, with a shared lock for which it waits up to `wait_s` seconds. `files`:
    whether queries may write other files (AutoScout's own queries may, users' queries may not); `results`: whether to
    refresh the precomputed results first (in temporary tables if the file cannot be written)."""
    with _sentences(kb), contextlib.ExitStack() as stack:
        if not kb.exists():
            with writer(kb, wait_s):
                pass
        con = _open_to_read(stack, kb, wait_s, files)
        pending, ours = migrate.pending(con, kb, migrate.known()), _may_write(kb)
        if pending and not (ours and _may_write(kb.parent)):
            old = f"{kb} was written by an earlier AutoScout and must be migrated, but you may not write to it"
            raise AutoscoutError(f"{old}; copy it to a folder that you may write to, and pass the copy with --kb")
        behind = results and not pending and kept_up.behind(con)
        if behind and not (ours and _may_write(kb.parent)):
            kept_up.refresh_temporary(con)
        elif pending or behind:
            stack.close()
            with writer(kb, wait_s):
                pass
            con = _open_to_read(stack, kb, wait_s, files)
        yield con


def _may_write(path: Path) -> bool:
    return os.access(path, os.W_OK, effective_ids=True)


def _open_to_read(stack: contextlib.ExitStack, kb: Path, wait_s: float, files: bool) -> "DuckDBPyConnection":
    stack.enter_context(lock.shared(lock_path(kb), wait_s))
    return stack.enter_context(contextlib.closing(_connect(kb, True, wait_s, {} if files else _READER)))


def own_folder(kb: Path, kind: str) -> Path:
    """The folder next to a knowledge base for its `sessions`, `imports` or `trash`. It is called KIND if the file is
    kb.duckdb, otherwise NAME.KIND, such as NAME.sessions for NAME.duckdb. Older versions always used KIND, so such a
    folder is still used if neither kb.duckdb nor NAME.sessions exists."""
    if kb.name == _USUAL:
        return kb.parent / kind
    own = kb.with_name(f"{kb.name.removesuffix('.duckdb')}.{kind}")
    first = (kb.parent / kind).exists() and not (kb.parent / _USUAL).exists()
    return kb.parent / kind if first and not _marker(kb).exists() else own


def _marker(kb: Path) -> Path:
    """The sessions folder of a knowledge base that is not called kb.duckdb. If it exists, the knowledge base does not
    use folders with the names of older versions."""
    return kb.with_name(f"{kb.name.removesuffix('.duckdb')}.sessions")


def lock_path(kb: Path) -> Path:
    return kb.with_name(kb.name + ".lock")


def rewrite(kb: Path) -> None:
    """Replaces the file by a copy of its content, since deleted rows leave traces in the file."""
    with _sentences(kb), lock.exclusive(lock_path(kb)):
        new = kb.with_name(kb.name + ".rewritten")
        with contextlib.closing(_connect(kb, False, 0.0)) as con:
            migrate.back_up(con, new)
        access.put(new, kb)  # closing the connection has removed the write-ahead log


def network_filesystem(path: Path) -> str:
    """The kind of network filesystem that contains `path` (file locks may be unreliable there); "" if it is local."""
    best, kind = "", ""
    with contextlib.suppress(OSError):
        for line in Path("/proc/mounts").read_text().splitlines():
            _, mount, found, *_ = line.split()
            if path.resolve().is_relative_to(mount) and len(mount) >= len(best):
                best, kind = mount, found
    return kind if kind in _NETWORK_FILESYSTEMS else ""


def _connect(kb: Path, read_only: bool, wait_s: float, config: dict[str, Any] = _WRITER) -> "DuckDBPyConnection":
    import duckdb  # imported here, because it takes longer than `autoscout --help` may take in total

    if _is_foreign(kb):
        raise AutoscoutError(f"{kb} is not a DuckDB file; choose another one with --kb", 2)
    deadline = time.monotonic() + wait_s
    while True:
        try:
            return duckdb.connect(kb, read_only=read_only, config=config)
        except duckdb.IOException as error:
            # Since this process holds AutoScout's lock, DuckDB's lock is held by a program such as DuckDB's shell.
            if "Could not set lock on file" not in str(error) or time.monotonic() >= deadline:
                raise
            time.sleep(0.02)


def _is_foreign(kb: Path) -> bool:
    """Whether the file exists, and is not a database. DuckDB would open a table, such as a CSV file, as views in a
    database in memory, so that everything stored there would be lost."""
    try:
        with open(kb, "rb") as file:
            start = file.read(len(_MAGIC) + _MAGIC_AT)
    except OSError:
        return False
    return bool(start) and start[_MAGIC_AT:] != _MAGIC


def _create(kb: Path) -> None:
    """Creates a knowledge base under another name and renames it, so that a kill does not leave an incomplete one."""
    new = kb.with_name(kb.name + ".new")
    for left_over in (new, new.with_name(new.name + ".wal")):
        left_over.unlink(missing_ok=True)
    if made := _EMPTY.get(migrate.known()):
        with new.open("wb") as file:
            file.write(made)
            os.fsync(file.fileno())
    else:
        with contextlib.closing(_connect(new, False, 0.0)) as con:
            migrate.apply(con, kb, migrate.known())
        _EMPTY[migrate.known()] = new.read_bytes()
    log = kb.with_name(kb.name + ".wal")
    if log.exists():  # the write-ahead log of a removed file, which DuckDB would apply to the new one
        os.replace(log, log.with_name(log.name + ".old"))
    if kb.name != _USUAL:
        _marker(kb).mkdir(exist_ok=True)
    os.replace(new, kb)


@contextlib.contextmanager
def _sentences(kb: Path) -> Iterator[None]:
    """Re-raises DuckDB and operating-system errors about the knowledge-base file as one-sentence errors."""
    try:
        import duckdb
    except ImportError as error:
        raise AutoscoutError(f"the Python package duckdb is missing ({error}); reinstall AutoScout") from error
    if door.utf8(kb).exists() and not kb.is_file():  # opening a named pipe would block until something writes to it
        what = f"a folder; give the file, such as {kb / _USUAL}," if kb.is_dir() else "not a file; choose another one"
        raise AutoscoutError(f"{kb} is {what} with --kb", 2)
    try:
        yield
    except (duckdb.Error, OSError) as error:
        if isinstance(error, OSError) and not kb.parent.is_dir():
            cannot = f"cannot create the folder {error.filename} ({error.strerror})"
            raise AutoscoutError(f"{kb}: {cannot}; choose another file with --kb") from error
        raise _sentence(kb, str(error)) from error


def _sentence(kb: Path, message: str) -> AutoscoutError:
    cause = " ".join(message.split())
    if "not a valid DuckDB database file" in message:
        return AutoscoutError(f"{kb} is not a DuckDB file; choose another one with --kb", 2)
    if "with version number" in message:
        return AutoscoutError(
            f"{kb} was written by a newer DuckDB; upgrade AutoScout, or choose another file with --kb"
        )
    if "Could not set lock on file" in message:
        holder = re.search(r"held in (.+? \(PID \d+\))", cause)
        name = holder[1] if holder else "another program"
        return AutoscoutError(f"{kb} is open in {name}; close it there, then run this again")
    if any(words in message for words in ("No space left", "Disk quota", "File too large")):
        return AutoscoutError(f"{kb}: the disk is full; free some space and run the same command again")
    if any(words in message for words in ("Read-only file system", "Permission denied", "read-only mode")):
        return AutoscoutError(f"{kb} cannot be read or written here ({cause}); choose another file with --kb")
    return AutoscoutError(
        f"{kb} cannot be used ({cause}); if it is damaged, move it away with its .wal file and run "
        f"`autoscout sessions`, which rebuilds it from the sessions' journals"
    )
