"""Two people who were offline for a month: a folder merges their knowledge bases, whatever happens to its files."""

import shutil
from pathlib import Path

import pytest
from kb_samples import asked, ended, job, measured, python, write

from kb import forget, journal, store
from kb.records import AutoscoutError
from kb.sharing import lake

RANKED = journal.TournamentRanked(round=0, orderings=[["tp", "pp"], ["pp"]], rewards=[0.1, 0.3], kept=[1])


def content(kb: Path) -> list[list[tuple]]:
    tables = (
        "SELECT * EXCLUDE (added) FROM runs ORDER BY id",
        "FROM sessions ORDER BY session",
        "FROM orderings ORDER BY session, reward",
        "FROM job ORDER BY id",
        "SELECT id, iterations_s, losses FROM series ORDER BY id",
    )
    return [asked(kb, sql) for sql in tables]


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Knowledge bases of Ann and Bob, and an empty lake; both have measured one thing alike."""
    ann, bob = tmp_path / "ann" / "kb.duckdb", tmp_path / "bob" / "kb.duckdb"
    alike = measured(7.0, tp=7)
    store.ingest(ann, write(ann, "a1", *(ended(measured(1.0 + i, tp=i), i) for i in range(5)), RANKED, ended(alike)))
    store.ingest(ann, write(ann, "a2", ended(measured(None, tp=9)), of=job("moe", seq_len=16)))
    store.ingest(bob, write(bob, "b1", *(ended(measured(2.0 + i, pp=i), i) for i in range(3)), ended(alike)))
    return ann, bob, tmp_path / "lake"


def test_two_knowledge_bases_merge_through_a_folder(two):
    ann, bob, folder = two
    assert lake.push(ann, folder)[:2] == (2, 7)
    assert lake.push(bob, folder)[:2] == (1, 4)
    assert lake.pull(ann, folder)[:2] == (1, 3)  # one of Bob's was known
    assert lake.pull(bob, folder)[:2] == (2, 6)
    ours, theirs = content(ann), content(bob)
    # The measurement that both made belongs to whoever has it.
    assert [row[-8:] for row in ours[0]] == [row[-8:] for row in theirs[0]]
    assert ours[2:] == theirs[2:]
    assert [m.id for _, m in store.measurements(ann)] != []
    assert {m.id for _, m in store.measurements(ann)} == {m.id for _, m in store.measurements(bob)}


def test_twice_gives_the_same(two):
    ann, bob, folder = two
    lake.push(ann, folder)
    files = {path: path.read_bytes() for path in folder.rglob("*.parquet")}
    assert lake.push(ann, folder)[:2] == (0, 0)
    lake.pull(bob, folder)
    before = content(bob)
    assert lake.pull(bob, folder)[:2] == (0, 0)
    assert content(bob) == before
    assert {path: path.read_bytes() for path in folder.rglob("*.parquet")} == files
    # Also when it is not remembered what was pushed: the same content is the same file.
    ann.unlink()
    store.ingest_all(ann)
    lake.push(ann, folder)
    assert {path: path.read_bytes() for path in folder.rglob("*.parquet")} == files
    assert {path.parent.name for path in files} == {"family=pretrain-megatron-dense"}


def test_a_session_that_went_on_is_pushed_again_and_merges(two):
    ann, bob, folder = two
    lake.push(ann, folder)
    lake.pull(bob, folder)
    path = ann.parent / "sessions" / "a1" / "journal.jsonl"
    log = journal.Journal(path)
    log.append(
        ended(measured(0.5, tp=64)),
        journal.SessionEnded(reason="budget", experiments=7, engine_ms_mean=1.0, engine_ms_max=2.0),
    )
    log.close()
    store.ingest(ann, path)
    assert lake.push(ann, folder)[:2] == (1, 7)
    assert lake.pull(bob, folder)[:2] == (0, 1)
    assert asked(bob, "SELECT state FROM sessions WHERE session = 'a1'") == [("ended",)]


def test_half_copied_and_changed_files_are_passed_over_and_said(two):
    ann, bob, folder = two
    lake.push(ann, folder)
    first, second = sorted(folder.rglob("*.parquet"))
    whole = first.read_bytes()
    first.write_bytes(whole[: len(whole) // 2])
    flipped = bytearray(second.read_bytes())
    flipped[len(flipped) // 2] ^= 1
    second.write_bytes(flipped)
    (first.parent / ".4711.unfinished").write_bytes(b"half")
    (first.parent / "notes.parquet").write_bytes(b"hello")
    moved = lake.pull(bob, folder)
    assert moved[:2] == (0, 0)
    assert len(moved.passed_over) == 3
    assert f"{first} is incomplete or was changed" in "\n".join(moved.passed_over)
    first.write_bytes(whole)
    assert lake.pull(bob, folder).sessions == 1


@pytest.mark.thorough
def test_a_kill_while_pushing_leaves_only_whole_files(two, tmp_path):
    ann, bob, folder = two
    for i in range(20):
        write(ann, f"s{i:02}", ended(measured(1.0 + i, tp=100 + i)))
    store.ingest_all(ann)
    child = python(
        "import sys; from pathlib import Path; from kb.sharing import lake\n"
        "lake.push(Path(sys.argv[1]), Path(sys.argv[2]))",
        ann,
        folder,
    )
    while child.poll() is None and len(list(folder.rglob("*.parquet"))) < 5:
        pass
    child.kill()
    child.communicate()
    assert lake.pull(bob, folder).passed_over == []
    lake.push(ann, folder)
    lake.pull(bob, folder)
    assert {m.id for _, m in store.measurements(ann)} <= {m.id for _, m in store.measurements(bob)}


def test_what_was_forgotten_leaves_the_lake_and_does_not_come_back(two):
    ann, bob, folder = two
    lake.push(ann, folder)
    copy = folder.with_name("usb")
    shutil.copytree(folder, copy)
    forget.forget(ann, ["a1"])
    lake.push(ann, folder)
    assert len(list(folder.rglob("*.parquet"))) == 1
    assert lake.pull(bob, folder)[:2] == (1, 1)
    lake.pull(ann, copy)  # an old copy of the lake
    assert [session for session, _ in store.measurements(ann)] == ["a2"]
    shutil.copytree(copy, folder, dirs_exist_ok=True)
    lake.pull(bob, folder)  # the file is back, and still marked
    assert {session for session, _ in store.measurements(bob)} == {"a2", "b1"}


def test_there_is_no_such_lake(two):
    with pytest.raises(AutoscoutError, match="is not a folder"):
        lake.pull(two[0], two[2])
    two[2].write_text("a file")
    with pytest.raises(AutoscoutError, match="cannot share through this folder"):
        lake.push(two[0], two[2])
