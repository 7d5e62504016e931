"""One knowledge base in a folder of a group: whoever could use it still can after whatever anybody did."""

import os
import stat
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import verbs
from kb_samples import ended, measured, write

from kb import care, choices, forget, redact, store, stored_secrets
from kb.sharing import lake

GROUP, ANN, BOB = 61000, 61001, 61002  # of no account: a kernel knows numbers


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Elsewhere than pytest's own: those let nobody else in, again whenever another pytest begins."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def kb(tmp_path: Path) -> Path:
    path = tmp_path / "kb.duckdb"
    for name in ("a", "b"):
        store.ingest(path, write(path, name, ended(measured(1.0 + ord(name), tp=1))))
    return path


def test_permissions_survive_every_verb_that_replaces_the_file(kb: Path, tmp_path: Path):
    """`kb forget` made a file of a group private: 660 became 600, and the colleague was locked out."""
    kb.chmod(0o664)
    was = os.umask(0o077)
    try:
        forget.forget(kb, ["a"])
        assert mode(kb) == 0o664
        care.back_up(kb, tmp_path / "copy.duckdb")
        assert mode(tmp_path / "copy.duckdb") == 0o664
        (tmp_path / "copy.duckdb").chmod(0o600)
        care.restore(kb, tmp_path / "copy.duckdb")
        assert mode(kb) == 0o664
        log = store.session_folder(kb, "b") / "output.log"
        log.write_text("password: Xk29vbQ7")
        log.chmod(0o640)
        stored_secrets.clean(log.parent)
        assert mode(log) == 0o640
    finally:
        os.umask(was)


def every_verb(kb: Path, me: str) -> str:
    for i in range(2):
        store.ingest(kb, write(kb, f"{me}{i}", ended(measured(2.0 + i, tp=2 + i))))
    store.ingest_all(kb)
    choices.choose(kb, "job", "there", True, me)
    forget.forget(kb, [f"{me}0"])
    forget.undelete(kb, [f"{me}0"])
    forget.forget(kb, [f"{me}1"])
    lake.push(kb, kb.parent / "lake")
    lake.pull(kb, kb.parent / "lake")
    redact.remove(kb)
    care.back_up(kb, kb.parent / f"{me}.copy")
    care.restore(kb, kb.parent / f"{me}.copy")
    wrong = [finding for finding in care.check(kb) if not finding.ok]
    return str(wrong or len(store.measurements(kb)))


def as_person(user: int, do: Callable[..., object], *arguments: object) -> str:
    """What `do` returns, or raises, in a process of that person and the group."""
    read, written = os.pipe()
    if child := os.fork():
        os.close(written)
        with open(read) as said:
            text = said.read()
        os.waitpid(child, 0)
        return text
    try:
        os.setgroups([])
        os.setresgid(GROUP, GROUP, GROUP)
        os.setresuid(user, user, user)
        os.umask(0o007)
        text = str(do(*arguments))
    except BaseException:
        text = traceback.format_exc()
    os.write(written, text.encode())
    os._exit(0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two people")
def test_two_people_on_one_file_in_turn(tmp_path: Path):
    folder = tmp_path / "shared"
    folder.mkdir()
    os.chown(folder, 0, GROUP)
    folder.chmod(0o2770)
    found = []
    for name, user in (("ann", ANN), ("bob", BOB), ("ann2", ANN), ("bob2", BOB)):
        found.append(as_person(user, every_verb, folder / "kb.duckdb", name))
    assert found == ["1"] * 4, "the same row, measured by four sessions"


@pytest.mark.skipif(os.geteuid() != 0, reason="root can read everything, so somebody else asks")
def test_an_unreadable_journal_is_named_as_such(kb: Path):
    for path in (kb, kb.with_name(kb.name + ".lock"), kb.parent):
        os.chown(path, ANN, GROUP)
    path = write(kb, "c", ended(measured(9.0, tp=9)))
    for folder in (path.parent, path.parent.parent):  # whatever umask another test left
        folder.chmod(0o755)
    path.chmod(0o600)
    said = as_person(ANN, store.ingest_all, kb)
    assert f"{path}: cannot read the journal (Permission denied)" in said


@pytest.mark.skipif(os.geteuid() != 0, reason="root can list everything, so somebody else asks")
def test_a_sessions_folder_that_cannot_be_listed_is_named(kb: Path):
    """It read as an empty one."""
    for path in (kb, kb.with_name(kb.name + ".lock"), kb.parent):
        os.chown(path, ANN, GROUP)
    store.sessions_folder(kb).chmod(0o700)
    for ask in (store.ingest_all, store.bring_in):
        assert "sessions (Permission denied)" in as_person(ANN, ask, kb)


def test_a_query_brings_in_what_a_killed_session_left_in_its_journal(kb: Path):
    """5 of 28 rows were not there until `kb ingest`, and nothing said so."""
    write(kb, "killed", ended(measured(7.0, tp=7)))
    done = verbs.run("sql", "SELECT count(*) AS n FROM runs", "--format", "csv", "--kb", kb)
    assert done.stdout.split() == ["n", "3"]
    bad = write(kb, "bad", ended(measured(8.0, tp=8)))
    bad.write_bytes(bad.read_bytes() + b"{\n")
    done = verbs.run("sql", "SELECT count(*) AS n FROM runs", "--format", "csv", "--kb", kb)
    assert done.stdout.split() == ["n", "4"]
    assert "bad/journal.jsonl: the line that ends at byte" in done.stderr
