"""Two people on one knowledge base in the folder of their group: every verb of one on what the other made."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest
import verbs

from kb import access, care, store

GROUP, ANN, BOB = 61000, 61001, 61002  # of no account: a kernel knows numbers
JOB = str(Path(__file__).parents[2] / "fixtures" / "jobs" / "smallest-cpu-replay.toml")
TABLE = "tp,pp,dp,mbs,step_time_s,status\n1,1,2,1,0.5,ok\n2,1,1,1,0.4,ok\n"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two people")


@pytest.fixture
def folder() -> Iterator[Path]:
    """One of a group, elsewhere than pytest's own: those let nobody else in, again whenever another pytest begins."""
    with tempfile.TemporaryDirectory() as name:
        above, made = Path(name), Path(name) / "shared"
        above.chmod(0o755)
        made.mkdir()
        os.chown(made, 0, GROUP)
        made.chmod(0o2770)
        (above / "t.csv").write_text(TABLE)
        (above / "t.csv").chmod(0o644)  # whatever umask another test left
        yield made


def verb(person: int, group: int, folder: Path, *words: str) -> None:
    """A verb of a person, who has a home and the usual umask; it has to succeed."""
    home = folder.parent / str(person)
    if not home.exists():
        home.mkdir()
        os.chown(home, person, group)
    places = dict.fromkeys(("HOME", "TMPDIR", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"), str(home))
    done = verbs.run(*words, person=f"{person}:{group}", AUTOSCOUT_KB=str(folder / "kb.duckdb"), **places)
    assert done.returncode == 0, f"{words}: {done.stderr}"


def access_lists(path: Path, people: str) -> None:
    """Lets people in by name; skips the test where that cannot be."""
    if shutil.which("setfacl") is None:
        pytest.skip("no setfacl here")
    if subprocess.run(["setfacl", "-m", people, path], capture_output=True, check=False).returncode:
        pytest.skip("this filesystem has no access lists")


def on_a_session(name: str, me: int, folder: Path) -> tuple[list[list[str]], list[list[str]]]:
    """(verbs that write, verbs that read): all that touch a knowledge base, on somebody else's session."""
    lake, copy, table = str(folder / "lake"), str(folder / f"{me}.copy"), str(folder.parent / "t.csv")
    return [
        *(["profile", JOB], ["import", table, "--job", JOB], ["kb", "ingest"], ["kb", "push", lake]),
        *(["kb", "pull", lake], ["kb", "redact"], ["kb", "backup", copy], ["kb", "restore", copy]),
        *(["kb", "forget", name, "--yes"], ["kb", "undelete", name], ["tune", JOB, "--resume", name, "--no-tui"]),
        *(["kb", "check"], ["kb", "info"], ["sessions"], ["best", name]),
    ], [
        *(["watch", name, "--plain"], ["best", JOB, "--evidence"], ["why", name], ["export", name], ["kb", "trust"]),
        *(["similar", JOB], ["predict", JOB], ["check", JOB], ["explain", JOB], ["kb", "check", "--secrets"]),
    ]


def test_a_colleague_goes_on_with_what_was_made_in_the_folder_of_the_group(folder: Path):
    """What the program made was its maker's alone, whatever the folder: the colleague could not even read it."""
    verb(ANN, GROUP, folder, "tune", JOB, "--profiles", "2", "--no-tui")
    [session] = [path.name for path in (folder / "sessions").iterdir()]
    for words in on_a_session(session, BOB, folder)[0]:
        verb(BOB, GROUP, folder, *words)
    for words in (["profile", JOB], ["kb", "forget", session, "--yes"], ["kb", "undelete", session], ["kb", "check"]):
        verb(ANN, GROUP, folder, *words)


@pytest.mark.thorough
@pytest.mark.parametrize("by", ["group", "access list"])
def test_two_people_on_one_knowledge_base_through_every_verb(folder: Path, by: str):
    groups = {ANN: GROUP, BOB: GROUP}
    if by == "access list":
        access_lists(folder, f"u:{ANN}:rwX,u:{BOB}:rwX,d:u:{ANN}:rwX,d:u:{BOB}:rwX")
        groups = {ANN: ANN, BOB: BOB}
    sessions: dict[int, str] = {}
    for me in (ANN, BOB):
        verb(me, groups[me], folder, "tune", JOB, "--profiles", "2", "--no-tui")
        [sessions[me]] = {path.name for path in (folder / "sessions").iterdir()} - set(sessions.values())
    for me, other in ((ANN, BOB), (BOB, ANN)):
        for words in chain(*on_a_session(sessions[other], me, folder)):
            verb(me, groups[me], folder, *words)
    kb = folder / "kb.duckdb"
    assert len(list(store.sessions_folder(kb).iterdir())) == 4
    assert all(finding.ok for finding in care.check(kb))


def listed(path: Path) -> set[str]:
    done = subprocess.run(["getfacl", "-ncp", path], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_a_file_that_is_replaced_by_root_stays_its_owners(tmp_path: Path):
    """`sudo autoscout kb forget` gave the file to root, and its owner could not open it any more."""
    old, new = tmp_path / "old", tmp_path / "new"
    for path in (old, new):
        path.touch(0o600)
    os.chown(old, ANN, GROUP)
    access.put(new, old)
    assert (old.stat().st_uid, old.stat().st_gid, old.stat().st_mode & 0o777) == (ANN, GROUP, 0o600)


@pytest.mark.parametrize("listing", ["", f"u:{BOB}:rw,g:{GROUP}:r"])
def test_a_file_that_another_person_replaces_is_still_its_former_owners_and_groups(folder: Path, listing: str):
    """Only root can give a file away, so that the former owner, who was not in a list, could not open it."""
    folder.chmod(0o2777)
    kb = folder / "kb.duckdb"
    access_lists(folder, "u::rwx")
    store.ingest_all(kb)
    for path in folder.iterdir():
        os.chown(path, ANN, ANN)
        path.chmod(0o666 if not path.is_dir() else 0o777)
    kb.chmod(0o660 if listing else 0o666)
    if listing:
        access_lists(kb, listing)
    before = listed(kb) - {"group::rw-"}
    verb(BOB, BOB, folder, "kb", "redact")
    assert kb.stat().st_uid == BOB
    assert listed(kb) >= before | {f"user:{ANN}:rw-", f"group:{ANN}:rw-"}
