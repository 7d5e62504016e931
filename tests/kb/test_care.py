"""Info, check, backup, restore and forget."""

import os
import shutil
from pathlib import Path

import duckdb
import msgspec
import pytest
from kb_samples import asked, ended, job, measured, python, started, write

from kb import care, connect, forget, imports, journal, migrate, store
from kb.records import AutoscoutError
from kb.sharing import hosts


@pytest.fixture
def kb(tmp_path: Path) -> Path:
    path = tmp_path / "kb.duckdb"
    losses = msgspec.structs.replace(measured(9.0, tp=9), losses=[1.0, float("nan")], metrics={"odd": 0.1})
    store.ingest(path, write(path, "s", *(ended(measured(1.0 + i, tp=i), i) for i in range(5)), ended(losses, 6)))
    return path


def failed(kb: Path) -> dict[str, str]:
    return {finding.subject: finding.found for finding in care.check(kb) if not finding.ok}


def test_info(kb: Path):
    info = care.info(kb)
    assert (info["measurements"], info["jobs"], info["sessions"]) == (6, 1, 1)
    assert info["schema"] == len(migrate.known())
    assert info["statuses"] == {"ok": 6}


def test_a_sound_knowledge_base(kb: Path):
    assert failed(kb) == {}


def test_a_changed_number_shows(kb: Path):
    with connect.writer(kb) as con:
        con.execute("UPDATE measurement SET step_time_s = 0.001 WHERE number = 2")
    assert "1 of all measurements have changed, such as tp2 of s" in failed(kb)["hashes"]


def test_rows_that_lead_nowhere_show(kb: Path):
    with connect.writer(kb) as con:
        con.execute("DELETE FROM origin")
        con.execute("INSERT INTO series VALUES (1, '[]', '[]', '[]', '[]', NULL, NULL)")
    assert failed(kb)["references"] == "6 measurements without an origin; 1 series without a measurement"


def test_what_the_journals_have_beyond_it_shows(kb: Path):
    log = journal.Journal(kb.parent / "sessions" / "s" / "journal.jsonl")
    log.append(ended(measured(20.0, tp=20)))
    log.close()
    assert failed(kb)["journals"].startswith("the journals of s contain events that are not stored yet;")
    assert store.ingest_all(kb) == (1, [])
    assert failed(kb) == {}


def test_a_copied_folder_of_a_session_has_nothing_more(kb: Path):
    sessions = kb.parent / "sessions"
    shutil.copytree(sessions / "s", sessions / "s-copied")
    assert failed(kb) == {}
    log = journal.Journal(sessions / "s-copied" / "journal.jsonl")
    log.append(ended(measured(20.0, tp=20)))
    log.close()
    assert failed(kb)["journals"].startswith("the journals of s-copied contain events that are not stored yet;")
    assert store.ingest_all(kb) == (1, [])
    assert failed(kb) == {}


@pytest.mark.parametrize("place", [0.1, 0.4, 0.7])
def test_a_flipped_byte_is_found_or_does_no_harm(kb: Path, place: float):
    """DuckDB's checksums cover every block in use; what is in no block is not read."""
    store.ingest(kb, write(kb, "t", *(ended(measured(1.0 + i, pp=i)) for i in range(2000))))
    with open(kb, "rb+") as file:
        file.seek(int(kb.stat().st_size * place))
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 0xFF]))
    try:
        findings = care.check(kb)
    except AutoscoutError as error:
        sentence, findings = str(error), []
        kb.unlink()
        assert store.ingest_all(kb) == (2006, [])
    else:
        sentence = "move it away"
    assert "move it away" in sentence
    assert all(finding.ok for finding in findings)
    assert len(store.measurements(kb)) == 2006


def test_a_deleted_log_loses_nothing_that_the_journals_have(kb: Path):
    """Killed after a commit, before the file was brought up to date; then somebody tidies up."""
    path = write(kb, "t", ended(measured(50.0, tp=50)))
    child = python(
        "import os, sys, pathlib, kb.connect as c; from kb import journal_rows, store\n"
        "inner = journal_rows._insert_tails\n"
        "journal_rows._insert_tails = lambda *a: (inner(*a), os.kill(os.getpid(), 9))\n"
        "store.ingest(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))",
        kb,
        path,
    )
    child.communicate()
    assert child.returncode == -9
    kb.with_name("kb.duckdb.wal").unlink()
    assert len(store.measurements(kb)) == 6
    assert store.ingest_all(kb) == (1, [])
    assert failed(kb) == {}


def test_backup_and_restore(kb: Path, tmp_path: Path):
    copy = tmp_path / "copy.duckdb"
    assert care.back_up(kb, copy) == copy.stat().st_size
    with pytest.raises(AutoscoutError, match="exists already"):
        care.back_up(kb, copy)
    path = write(kb, "t", ended(measured(30.0, tp=30)))
    store.ingest(kb, path)
    before = [m.id for _, m in store.measurements(kb)]
    kb.write_bytes(b"damaged")
    new, aside = care.restore(kb, copy)
    assert new == 1
    assert aside is not None
    assert aside.read_bytes() == b"damaged"
    assert [m.id for _, m in store.measurements(kb)] == before
    assert failed(kb) == {}


def test_a_backup_that_does_not_fit_names_itself_and_leaves_nothing(kb: Path, tmp_path: Path):
    """The knowledge base was said to be on a full disk."""
    copy, other = tmp_path / "copy.duckdb", tmp_path / "copy.duckdb.newest"
    other.touch()
    child = python(
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from kb import care\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000,) * 2)\n"
        "try: care.back_up(Path(sys.argv[1]), Path(sys.argv[2]))\n"
        "except care.AutoscoutError as error: print(error)",
        kb,
        copy,
    )
    assert child.communicate()[0].startswith(f"{copy}: the backup cannot be written (")
    assert list(tmp_path.glob("copy*")) == [other]


def test_only_a_knowledge_base_is_restored(kb: Path, tmp_path: Path):
    before = kb.read_bytes()
    other = tmp_path / "other.duckdb"
    with pytest.raises(AutoscoutError, match="no such file"):
        care.restore(kb, other)
    with pytest.raises(AutoscoutError, match="is a folder; give the file"):
        care.restore(kb, tmp_path)
    with duckdb.connect(str(other)) as con:
        con.execute("CREATE TABLE money (x INTEGER)")
    with pytest.raises(AutoscoutError, match="not a knowledge base"):
        care.restore(kb, other)
    assert kb.read_bytes() == before


def test_forgetting_a_session_leaves_nothing_of_it_in_the_file(kb: Path):
    secret = msgspec.structs.replace(measured(40.0, tp=40), evidence="the-secret-evidence")
    store.ingest(kb, write(kb, "secret-session-name", ended(secret)))
    assert b"the-secret-evidence" in kb.read_bytes()
    gone = forget.forget(kb, ["secret-session-name"])
    assert (gone.measurements, gone.files) == (1, [str(kb.parent / "sessions" / "secret-session-name")])
    assert b"the-secret-evidence" not in kb.read_bytes()
    assert not (kb.parent / "sessions" / "secret-session-name").exists()
    assert [session for session, _ in store.measurements(kb)] == ["s"] * 6
    store.ingest(kb, write(kb, "secret-session-name", ended(secret)))  # a copy of the journal turns up
    assert [session for session, _ in store.measurements(kb)] == ["s"] * 6
    assert failed(kb) == {}


def test_forgetting_names_the_traces_that_remain(kb: Path):
    [(_, m), *_] = store.measurements(kb)
    store.ingest(kb, write(kb, "t", journal.Answered(measurement=m, measured_by="s")))
    (kb.parent / "kb.duckdb.bak-1").write_bytes(b"older")
    left = "\n".join(forget.forget(kb, ["s"]).left)
    assert "the journal of t still contains copies of 1 of these measurements" in left
    assert "kb.duckdb.bak-1 is an older copy" in left


def test_forgetting_a_host_by_its_name_also_where_it_is_hashed(kb: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("socket.gethostname", lambda: "gpu-07")
    for name, wanted in (("h1", "name"), ("h2", "hash"), ("h3", "none")):
        monkeypatch.setenv("AUTOSCOUT_HOST", wanted)
        begun = msgspec.structs.replace(started(name), host=hosts.host())
        path = kb.parent / "sessions" / name / "journal.jsonl"
        log = journal.Journal(path)
        log.append(begun, ended(measured(1.0, tp=1, of=name)))
        log.close()
        store.ingest(kb, path)
    assert asked(kb, "SELECT DISTINCT host FROM sessions WHERE host LIKE '%gpu%'") == [("gpu-07",)]
    assert forget.sessions_of_host(kb, "gpu-07") == ["h1", "h2"]
    with pytest.raises(AutoscoutError, match="no session ran on nowhere"):
        forget.sessions_of_host(kb, "nowhere")


def test_what_cannot_be_forgotten(kb: Path):
    with pytest.raises(AutoscoutError, match="there is no session or import x"):
        forget.forget(kb, ["x"])
    owner = python(
        "import sys, time, pathlib; from kb import lock\n"
        "with lock.exclusive(pathlib.Path(sys.argv[1])): print('held', flush=True); time.sleep(60)",
        kb.parent / "sessions" / "s" / "owner.lock",
    )
    assert owner.stdout
    owner.stdout.readline()
    with pytest.raises(AutoscoutError, match="session s is running"):
        forget.forget(kb, ["s"])
    owner.kill()
    owner.communicate()


def test_paths_of_the_operator_do_not_enter(tmp_path: Path):
    kb = tmp_path / "kb.duckdb"
    begun = started("s")
    launch = msgspec.structs.replace(begun.job.launch, python="/home/ann/venv/python", recorded="/home/ann/x.jsonl")
    traffic = msgspec.structs.replace(begun.job.traffic, trace="/home/ann/traces/chat.csv")
    begun = msgspec.structs.replace(begun, job=msgspec.structs.replace(begun.job, launch=launch, traffic=traffic))
    path = tmp_path / "sessions" / "s" / "journal.jsonl"
    log = journal.Journal(path)
    log.append(begun, ended(measured(1.0, tp=1)))
    log.close()
    store.ingest(kb, path)
    for table in ("session", "job", "runs"):
        [row] = asked(kb, f"SELECT to_json(t) FROM {table} AS t")
        assert "ann" not in row[0]


def test_forgetting_that_was_killed_is_ended_by_the_same_command(kb: Path):
    """Between the rows' end and the file's: they are gone, the import's file and what the trash says are there."""
    imports.store_import(kb, "import-aa", job(), {}, 1.0, iter([measured(1.0, tp=1)]))
    [file] = store.imports_folder(kb).glob("*.parquet")
    content = file.read_bytes()
    forget.forget(kb, ["import-aa"])
    file.write_bytes(content)

    assert forget.forget(kb, ["import-aa"]).measurements == 0
    assert not file.exists()
    assert forget.undelete(kb, ["import-aa"]).measurements == 1
