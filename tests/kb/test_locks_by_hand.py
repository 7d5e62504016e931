"""Who holds a lock and who may come in, within one process (the kernel tells open files apart, not processes); what
DuckDB and the system say about a file, as sentences; where the folders of a knowledge base are."""

import contextlib
import errno
import fcntl
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from kb import connect, lock, migrate, store
from kb.records import AutoscoutError

US = f"{os.getpid()} {socket.gethostname()} "


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kb.duckdb.lock"


def refusal(call: Any, *arguments: Any, **options: Any) -> tuple[str, int]:
    with pytest.raises(AutoscoutError) as caught, contextlib.ExitStack() as stack:
        stack.enter_context(call(*arguments, **options))
    return str(caught.value), caught.value.exit_code


def test_alone_with_our_name_in_it(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.argv", ["/usr/bin/autoscout", "tune", "x" * 300])
    assert not lock.is_held(path)
    assert (lock.holder(path), lock.who(path)) == (None, "")
    with lock.exclusive(path):
        assert lock.is_held(path)
        assert lock.holder(path) == os.getpid()
        pid, host, since, command = path.read_text().split(" ", 3)
        assert (pid, host) == (str(os.getpid()), socket.gethostname())
        assert abs(int(since) - time.time()) < 60
        assert command == "autoscout tune " + "x" * 185
        when = time.strftime("%H:%M:%S", time.localtime(int(since)))
        us = f"process {os.getpid()} ({command}) since {when}"
        assert lock.who(path) == us
        assert not lock.is_held(path.with_suffix(".gate"))
        began = time.monotonic()
        for use in (lock.exclusive, lock.shared):
            assert refusal(use, path, wait_s=0.125) == (
                f"{path.with_suffix('')} is in use by {us} (waited 0.125 s); "
                f"wait for that process or end it, then run this command again",
                1,
            )
        assert time.monotonic() - began >= 0.25
    assert path.read_text() == ""
    while lock.is_held(path):  # who gave up gives back at once what the kernel grants it now
        time.sleep(0.01)
    for file in (path, path.with_suffix(".gate")):
        assert oct(file.stat().st_mode & 0o777) == oct(0o666 & ~_umask())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_readers_together(path: Path):
    with lock.shared(path), lock.shared(path):
        assert not lock.is_held(path)
        assert "is in use by a process that reads it (waited" in refusal(lock.exclusive, path, wait_s=0.0)[0]
        assert not lock.is_held(path.with_suffix(".gate"))
    with lock.exclusive(path, wait_s=0.0):
        pass


def test_where_no_lock_can_be_made(tmp_path: Path):
    nowhere = tmp_path / "none" / "kb.duckdb.lock"
    with lock.shared(nowhere):
        assert not lock.is_held(nowhere)
    assert refusal(lock.exclusive, nowhere) == (
        f"{nowhere}: cannot create the lock file (No such file or directory); choose a folder that you may write to", 1,
    )  # fmt: skip


@contextlib.contextmanager
def waiting(path: Path, wait_s: float, got: list[str]) -> Iterator[threading.Thread]:
    """A writer that waits in a thread."""

    def write() -> None:
        try:
            with lock.exclusive(path, wait_s):
                got.append("it")
        except AutoscoutError:
            got.append("nothing")

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield thread
    finally:
        thread.join(240)


def test_a_writer_that_waits_keeps_new_readers_out_and_gets_its_turn(path: Path):
    got: list[str] = []
    with contextlib.ExitStack() as stack:
        with lock.shared(path):
            thread = stack.enter_context(waiting(path, 240.0, got))
            gate = path.with_suffix(".gate")
            while not lock.is_held(gate):
                time.sleep(0.005)
            assert refusal(lock.shared, path, wait_s=0.05)[1] == 1
            assert got == []
        thread.join(240)
        assert got == ["it"]
    with lock.shared(path, wait_s=0.0):
        pass


def test_who_gave_up_gives_back_what_it_is_granted_later(path: Path):
    got: list[str] = []
    before = set(threading.enumerate())
    with lock.exclusive(path):
        with waiting(path, 0.05, got):
            pass
        assert got == ["nothing"]
        # What still waits in the kernel keeps no process alive.
        assert [thread.daemon for thread in set(threading.enumerate()) - before] == [True]
    with lock.exclusive(path, wait_s=5.0):
        assert lock.is_held(path)


@pytest.mark.parametrize("at_once", [True, False])
def test_a_file_system_without_locks(path: Path, monkeypatch: pytest.MonkeyPatch, at_once: bool):
    def flock(file: int, kind: int) -> None:
        if kind & fcntl.LOCK_NB and not at_once:
            raise BlockingIOError
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", flock)
    said = f"{path}: this file system cannot lock files (No locks available); choose a file in another folder with --kb"
    assert refusal(lock.exclusive, path) == (said, 1)


def test_a_lock_that_waits_for_ever_may_be_interrupted(path: Path, monkeypatch: pytest.MonkeyPatch):
    """The default is ten seconds, which the sentence says."""
    now = iter([0.0] + [99.0] * 99)
    with lock.exclusive(path):
        monkeypatch.setattr("time.monotonic", lambda: next(now))
        assert "(waited 10 s)" in refusal(lock.exclusive, path)[0]


@pytest.mark.parametrize(
    ("text", "who"),
    [
        ("", "a process that reads it"),
        ("12", "a process that reads it"),
        (f"{US}0", "a process that reads it"),
        (f"x {socket.gethostname()} 0 c", "a process that reads it"),
        (f"{US}x c", "a process that reads it"),
        (f"4194304 {socket.gethostname()} 0 c", "a process that reads it"),  # no process has that number
        ("4194304 gpu-07 0 tune a b", "process 4194304 on gpu-07 (tune a b) since "),
        (f"{US}0 c d", f"process {os.getpid()} (c d) since "),
    ],
    ids=range(8),  # the same in every process
)
def test_whom_a_lock_names(path: Path, text: str, who: str):
    path.write_text(text)
    file = os.open(path, os.O_RDONLY)
    try:
        began = time.strftime("%H:%M:%S", time.localtime(0)) if who.endswith("since ") else ""
        assert lock._holder(file) == who + began
        path.write_text("x" * 995 + " h 0 " + "c" * 99)
        assert lock._holder(file) == "a process that reads it"
    finally:
        os.close(file)


def test_a_holder_that_wrote_something_else(path: Path):
    with lock.exclusive(path):
        path.write_text("somebody")
        assert lock.holder(path) is None


@pytest.mark.parametrize(
    ("said", "sentence", "code"),
    [
        ("x not a valid DuckDB database file", "{} is not a DuckDB file; choose another one with --kb", 2),
        (
            "database with version number 99",
            "{} was written by a newer DuckDB; upgrade AutoScout, or choose another file with --kb",
            1,
        ),
        (
            "Could not set lock on file: Conflicting lock is held in\n /bin/duckdb (PID 7) by",
            "{} is open in /bin/duckdb (PID 7); close it there, then run this again",
            1,
        ),
        ("Could not set lock on file", "{} is open in another program; close it there, then run this again", 1),
        *(
            (
                words,
                "{}: the disk is full; free some space and run the same command again",
                1,
            )
            for words in ("No space left", "Disk quota", "File too large")
        ),
        *(
            (words, f"{{}} cannot be read or written here ({words}); choose another file with --kb", 1)
            for words in ("Read-only file system", "Permission denied", "in read-only mode")
        ),
        (
            "odd\n  words",
            "{} cannot be used (odd words); if it is damaged, move it away with its .wal file and run `autoscout "
            "sessions`, which rebuilds it from the sessions' journals",
            1,
        ),
    ],
)
def test_what_duckdb_says_about_a_file(tmp_path: Path, said: str, sentence: str, code: int):
    kb = tmp_path / "x.duckdb"
    error = connect._sentence(kb, said)
    assert (str(error), error.exit_code) == (sentence.format(kb), code)


def test_on_which_file_system(monkeypatch: pytest.MonkeyPatch):
    mounts = "a / ext4 rw 0 0\nb /mnt nfs4 rw 0 0\nc /mnt/usb ext4 rw 0 0\nd /mnt lustre rw 0 0\ne /x 9p rw 0 0\n"
    monkeypatch.setattr("pathlib.Path.read_text", lambda path: mounts)
    kinds = {"/mnt/a": "lustre", "/mnt/usb/a": "", "/home": "", "/x/y/z": "9p", "/xy": ""}
    assert {place: connect.network_filesystem(Path(place)) for place in kinds} == kinds

    def nothing(path: Path) -> str:
        raise OSError

    monkeypatch.setattr("pathlib.Path.read_text", nothing)
    assert connect.network_filesystem(Path("/mnt/a")) == ""


def test_where_a_knowledge_base_keeps_its_folders(tmp_path: Path):
    usual, other = tmp_path / "kb.duckdb", tmp_path / "mine.duckdb"
    assert connect.own_folder(usual, "trash") == tmp_path / "trash"
    assert connect.own_folder(other, "trash") == tmp_path / "mine.trash"
    assert connect.lock_path(other) == tmp_path / "mine.duckdb.lock"
    (tmp_path / "trash").mkdir()
    assert connect.own_folder(other, "trash") == tmp_path / "trash"  # as all had, once
    assert connect.own_folder(other, "imports") == tmp_path / "mine.imports"
    (tmp_path / "mine.sessions").mkdir()
    assert connect.own_folder(other, "trash") == tmp_path / "mine.trash"
    (tmp_path / "mine.sessions").rmdir()
    usual.touch()
    assert connect.own_folder(other, "trash") == tmp_path / "mine.trash"


def test_making_opening_and_rewriting(tmp_path: Path):
    """One knowledge base through all of it, with a name that SQL has to quote."""
    kb = tmp_path / "deep" / "er" / 'it\'s "mine".duckdb'
    with connect.writer_if(kb, lambda: False) as con:
        assert con is None
    assert not kb.exists()
    with connect.writer_if(kb, lambda: True, results=False) as con:
        assert con is not None
        con.execute("INSERT INTO forgotten VALUES ('x', 0.0)")
    assert (kb.parent / 'it\'s "mine".sessions').is_dir()
    assert sorted(p.suffix for p in kb.parent.iterdir()) == [".duckdb", ".gate", ".lock", ".sessions"]
    with connect.reader(kb) as con:
        assert con.execute("SELECT 1 FROM kept").fetchall() == [(1,)]  # who asks for results brings them up to date
        for forbidden in (f"COPY (SELECT 1) TO '{tmp_path}/t.csv'", "SET threads = 2", "DELETE FROM forgotten"):
            with pytest.raises(duckdb.Error):
                con.execute(forbidden)
    with connect.reader(kb, files=True) as con:
        con.execute(f"COPY (SELECT 1) TO '{tmp_path}/t.csv'")
    with connect.reader(kb, results=True) as con:
        assert con.execute("SELECT 1 FROM kept").fetchall() == []
    for again in (1, 2):
        connect.rewrite(kb)
        with connect.reader(kb) as con:
            assert con.execute("SELECT session FROM forgotten").fetchall() == [("x",)], again
    # What a kill left in the middle of making one is no obstacle, and a log of a removed file is not the new one's.
    other = tmp_path / "other" / "kb.duckdb"
    other.parent.mkdir()
    for name in ("kb.duckdb.new", "kb.duckdb.new.wal", "kb.duckdb.wal"):
        (other.parent / name).write_bytes(b"left over")
    assert store.mark(other) == 0
    assert (other.parent / "kb.duckdb.wal.old").read_bytes() == b"left over"
    assert not (other.parent / "kb.sessions").exists()
    # All that makes the first one is what makes the next.
    connect._EMPTY.clear()
    assert store.mark(tmp_path / "third" / "kb.duckdb") == 0
    with connect.writer(tmp_path / "third" / "kb.duckdb") as con:
        assert con.execute("SELECT current_setting('threads')").fetchall() == [(1,)]


def test_migrations_in_sentences(tmp_path: Path):
    said = "migrations must be numbered 0001, 0002, … without gaps, found"
    for names, found in (((), "none"), (("0001_a", "0003_b"), "0001_a.sql, 0003_b.sql"), (("0002_a",), "0002_a.sql")):
        folder = tmp_path / "-".join(names or ["none"])
        folder.mkdir()
        for name in names:
            (folder / f"{name}.sql").write_text("SELECT 1")
        with pytest.raises(AutoscoutError) as caught:
            migrate.load(folder)
        assert str(caught.value) == f"{folder}: {said} {found}; reinstall AutoScout"
    [one] = migrate.load(_folder(tmp_path / "one", "0001_a.sql", "SELECT 1"))
    assert one[:3] == (1, "0001_a.sql", "SELECT 1")
    assert one.sha256 == "e004ebd5b5532a4b85984a62f8ad48a81aa3460c1ca07701f386135d72cdecf5"


def _folder(folder: Path, name: str, content: str) -> Path:
    folder.mkdir()
    (folder / name).write_text(content)
    return folder


def test_what_a_knowledge_base_lacks(tmp_path: Path):
    kb = tmp_path / "x.duckdb"
    one, two, other = (migrate.Migration(n, f"{n}.sql", f"CREATE TABLE t{n} (x INTEGER)", s) for n, s in
                       ((1, "a"), (2, "b"), (2, "c")))  # fmt: skip

    def said(con: duckdb.DuckDBPyConnection, *migrations: migrate.Migration) -> tuple[str, int]:
        with pytest.raises(AutoscoutError) as caught:
            migrate.pending(con, kb, migrations)
        return str(caught.value), caught.value.exit_code

    with duckdb.connect(kb) as con:
        con.execute("CREATE TABLE zebra (x INTEGER); CREATE TABLE money (x INTEGER)")
        assert said(con, one) == (
            f"{kb} is a DuckDB file but not a knowledge base (it has the table money); choose another file with --kb",
            2,
        )
        con.execute("DROP TABLE zebra; DROP TABLE money")
        assert migrate.pending(con, kb, (one, two)) == (one, two)
        migrate.apply(con, kb, (one,))
        assert not list(tmp_path.glob("*.bak-*"))
        assert migrate.pending(con, kb, (one, two)) == (two,)
        migrate.apply(con, kb, (one, two))
        assert [copy.name for copy in tmp_path.glob("*.bak-*")] == ["x.duckdb.bak-1"]
        assert migrate.pending(con, kb, (one, two)) == ()
        choose = "or choose another file with --kb"
        assert said(con, one) == (
            f"the knowledge base {kb} has schema 2, but this AutoScout only knows schemas up to 1; upgrade "
            f"AutoScout, {choose}", 1,
        )  # fmt: skip
        assert said(con, one, other) == (
            f"the knowledge base {kb} was created with the migration 2.sql, which differs from this "
            f"AutoScout's 2.sql; use the AutoScout that created it, {choose}",
            1,
        )
        con.execute("DELETE FROM schema_migrations")
        assert migrate.pending(con, kb, (one,)) == (one,)
    with duckdb.connect(tmp_path / "x.duckdb.bak-1") as con:
        assert [t for (t,) in con.execute("SELECT table_name FROM duckdb_tables() ORDER BY 1").fetchall()] == [
            "schema_migrations", "t1",
        ]  # fmt: skip


def test_a_missing_duckdb_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    said, code = refusal(connect.reader, tmp_path / "kb.duckdb")
    assert said.startswith("the Python package duckdb is missing (")
    assert said.endswith("; reinstall AutoScout")
    assert code == 1


def test_a_temporary_folder_goes_when_nobody_holds_it_whatever_the_clock_says(tmp_path: Path):
    """By its date, one in use was removed by who began after the clock had been set forward by a day."""
    with lock.temporary_folder(tmp_path, ".x-") as used:
        os.utime(used, (0, 0))
        (tmp_path / ".x-killed").mkdir()
        with lock.temporary_folder(tmp_path, ".x-") as other:
            assert {p.name for p in tmp_path.glob(".x-*/")} == {used.name, other.name}
    assert list(tmp_path.glob(".x-*/")) == []
