"""What comes from outside is checked where it enters: nothing of it names a path, a script's line or another's row."""

import shutil
from pathlib import Path

import duckdb
import msgspec
import pytest
from cases import few
from kb_samples import ended, job, measured, started, write

from kb import door, forget, journal, similar, store
from kb.records import RECORDS, AutoscoutError, LaunchSettings, Traffic
from kb.sharing import lake

HOSTILE = ["", ".", "..", "../..", "/etc", "a/b", "a\nb", "-rf", "~", "a b", "s\x1b]52;c;x\x07", "ä", "x" * 300]


@pytest.fixture
def kb(tmp_path: Path) -> Path:
    path = tmp_path / "home" / "kb.duckdb"
    store.ingest(path, write(path, "s", ended(measured(1.0, tp=1))))
    return path


def everything(kb: Path) -> set[str]:
    """All files beside the knowledge base but locks."""
    return {str(p.relative_to(kb.parent)) for p in kb.parent.rglob("*") if p.suffix not in (".lock", ".gate")}


@pytest.mark.parametrize("name", HOSTILE)
def test_forget_takes_nothing_but_a_session_name(kb: Path, name: str):
    before = everything(kb)
    with pytest.raises(AutoscoutError) as error:
        forget.forget(kb, [name])
    assert error.value.exit_code == 2
    assert everything(kb) == before


def test_a_folder_without_a_journal_and_a_link_are_left_alone(kb: Path, tmp_path: Path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "journal.jsonl").write_text("mine")
    (kb.parent / "sessions" / "link").symlink_to(precious)
    (kb.parent / "sessions" / "notes").mkdir()
    for name in ("link", "notes"):
        with pytest.raises(AutoscoutError, match="there is no session or import"):
            forget.forget(kb, [name])
    assert (precious / "journal.jsonl").read_text() == "mine"


def test_what_was_forgotten_can_be_undeleted(kb: Path):
    folder = kb.parent / "sessions" / "s"
    (folder / "experiments").mkdir()
    (folder / "experiments" / "log").write_text("a log")
    before = store.measurements(kb)
    gone = forget.forget(kb, ["s"])
    assert gone.measurements == 1
    assert store.measurements(kb) == []
    assert forget.deleted(kb) == ["s"]
    assert any("undelete s" in text for text in gone.left)
    assert forget.undelete(kb, ["s"]).measurements == 1
    assert store.measurements(kb) == before
    assert (folder / "experiments" / "log").read_text() == "a log"
    assert forget.deleted(kb) == []
    with pytest.raises(AutoscoutError, match="not in the trash"):
        forget.undelete(kb, ["s"])
    with pytest.raises(AutoscoutError, match="cannot be the name"):
        forget.undelete(kb, [".."])


def test_what_was_pulled_can_be_forgotten_and_undeleted(kb: Path, tmp_path: Path):
    bob = tmp_path / "bob" / "kb.duckdb"
    lake.push(kb, tmp_path / "lake")
    lake.pull(bob, tmp_path / "lake")
    before = store.measurements(bob)
    forget.forget(bob, ["s"])
    assert lake.pull(bob, tmp_path / "lake").measurements == 0
    forget.undelete(bob, ["s"])
    assert store.measurements(bob) == before


def changed(lake_folder: Path, tmp_path: Path, sql: str) -> Path:
    """A lake as a colleague could make it: one file whose rows were changed, named by its hash again."""
    [file] = lake_folder.rglob("*.parquet")
    new = tmp_path / "changed.parquet"
    with duckdb.connect() as con:
        con.execute(f"CREATE TABLE t AS FROM read_parquet('{file}')")
        con.execute(sql)
        con.execute(f"COPY t TO '{new}' (FORMAT parquet)")
    other = tmp_path / "lake-2" / file.parent.name
    other.mkdir(parents=True)
    shutil.move(new, other / f"{lake.hash_of(new)}.parquet")
    return other.parent


_TAMPERED = [
    "UPDATE t SET session = '/tmp/victim'",
    "UPDATE t SET session = '../../victim'",
    "UPDATE t SET session = ''",
    "UPDATE t SET session = NULL",
    "UPDATE t SET name = 'tp1' || chr(10) || 'curl evil | sh' WHERE kind = 'measurement'",
    "UPDATE t SET step_time_s = 0.001 WHERE kind = 'measurement'",
    "UPDATE t SET status = 'oom' WHERE kind = 'measurement'",
    "UPDATE t SET status = 'splendid' WHERE kind = 'measurement'",
    "UPDATE t SET knobs = '{\"tp\":2}' WHERE kind = 'measurement'",
    "UPDATE t SET configuration_id = '0123456789abcdef' WHERE kind = 'measurement'",
    "UPDATE t SET job_id = '0123456789abcdef'",
    "UPDATE t SET job_model = replace(job_model, '\"layers\":2', '\"layers\":3') WHERE kind = 'job'",
    "UPDATE t SET job_model = replace(job_model, '\"heads\":2', '\"heads\":0') WHERE kind = 'job'",
    "UPDATE t SET job_name = 'x; rm -rf ~' WHERE kind = 'job'",
    "UPDATE t SET job_target = '../..' WHERE kind = 'job'",
    "UPDATE t SET job_family = '../../elsewhere' WHERE kind = 'job'",
    "UPDATE t SET period = 'another' WHERE kind = 'measurement'",
    "UPDATE t SET per_rank = '{\"power_w\":[1.0]}' WHERE kind = 'measurement'",
    "UPDATE t SET rank_devices = '[\"h:gpu:0\"]' WHERE kind = 'measurement'",
    "UPDATE t SET conditions = '{\"throttled\":1.0}' WHERE kind = 'measurement'",
    "UPDATE t SET conditions = '[1]' WHERE kind = 'measurement'",
    "UPDATE t SET fidelity = 'short' WHERE kind = 'measurement'",
    "ALTER TABLE t ALTER COLUMN fidelity TYPE INTEGER USING 7",
    "UPDATE t SET host = 'h' || chr(27) || '[2J' WHERE kind = 'session'",
    "UPDATE t SET job = 'null' WHERE kind = 'session'",
    "UPDATE t SET knobs = repeat('[', 5000) WHERE kind = 'measurement'",
    "UPDATE t SET environment = repeat('[', 5000) WHERE kind = 'measurement'",
    "UPDATE t SET job_model = repeat('[', 5000) WHERE kind = 'job'",
    "UPDATE t SET job = repeat('[', 5000) WHERE kind = 'session'",
    "ALTER TABLE t DROP COLUMN knobs",
    "ALTER TABLE t DROP COLUMN kind",
    "ALTER TABLE t ALTER COLUMN step_time_s TYPE VARCHAR USING 'fast'",
    "UPDATE t SET environment = '{\"torch\":\"2' || chr(92) || 'u001b[2J\"}' WHERE kind = 'measurement'",
]


@pytest.mark.parametrize("sql", few(_TAMPERED, 8))
def test_a_file_of_a_lake_that_was_tampered_with_stays_outside(kb: Path, tmp_path: Path, sql: str):
    bob = tmp_path / "bob" / "kb.duckdb"
    lake.push(kb, tmp_path / "lake")
    tampered = changed(tmp_path / "lake", tmp_path, sql)
    done = lake.pull(bob, tampered)
    assert done[:2] == (0, 0)
    assert len(done.passed_over) == 1
    assert "ignored" in done.passed_over[0]
    assert "\n" not in done.passed_over[0]
    assert "\x1b" not in done.passed_over[0]
    assert store.measurements(bob) == []
    assert lake.pull(bob, tmp_path / "lake")[:2] == (1, 1)  # the honest one comes in


def test_a_tampered_file_does_not_keep_others_out(kb: Path, tmp_path: Path):
    lake.push(kb, tmp_path / "lake")
    tampered = changed(tmp_path / "lake", tmp_path, "ALTER TABLE t DROP COLUMN knobs")
    shutil.copytree(tampered, tmp_path / "lake", dirs_exist_ok=True)
    done = lake.pull(tmp_path / "bob" / "kb.duckdb", tmp_path / "lake")
    assert done[:2] == (1, 1)
    assert len(done.passed_over) == 1


def test_forgetting_a_host_cannot_reach_outside_the_sessions_folder(kb: Path, tmp_path: Path):
    """What a colleague's file could do: a session whose name is a path, of a host that is forgotten later."""
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "journal.jsonl").write_text("precious")
    bob = tmp_path / "bob" / "kb.duckdb"
    lake.push(kb, tmp_path / "lake")
    lake.pull(bob, changed(tmp_path / "lake", tmp_path, f"UPDATE t SET session = '{victim}', host = 'evil'"))
    with pytest.raises(AutoscoutError, match="no session ran on evil"):
        forget.sessions_of_host(bob, "evil")
    assert (victim / "journal.jsonl").read_text() == "precious"


LATER = (
    f'UPDATE t SET job = replace(job, \'"records":{RECORDS}\', \'"records":99,"moonlight":true\') '
    "WHERE kind = 'session'"
)


def test_a_newer_session_is_passed_over_with_a_note(kb: Path, tmp_path: Path):
    lake.push(kb, tmp_path / "lake")
    done = lake.pull(tmp_path / "bob" / "kb.duckdb", changed(tmp_path / "lake", tmp_path, LATER))
    assert done.measurements == 0
    assert "newer AutoScout" in done.passed_over[0]


def test_a_newer_session_that_is_here_already_ends_nothing(kb: Path):
    """Two versions of AutoScout on one knowledge base."""
    from kb.connect import writer

    store.ingest(kb, write(kb, "t", ended(measured(2.0, tp=2)), of=job("other", seq_len=16)))
    with writer(kb) as con:
        con.execute(LATER.replace("UPDATE t", "UPDATE session").replace("WHERE kind = 'session'", "WHERE id = 't'"))
    notes: list[str] = []
    found = similar.similar(kb, job(), lambda node: 80.0, on_note=notes.append)
    assert [a.sessions for a in found] == [["s"]]
    assert len(notes) == 1
    assert "t is ignored" in notes[0]
    assert "newer" in notes[0]


def test_a_journal_names_no_path_and_no_line(tmp_path: Path):
    kb = tmp_path / "kb.duckdb"
    path = tmp_path / "sessions" / "s" / "journal.jsonl"
    for i, begun in enumerate((started("../../etc"), started("s", job("a\nb")))):
        log = journal.Journal(path.with_name(f"{i}.jsonl"))
        log.append(begun)
        log.close()
        with pytest.raises(AutoscoutError, match="cannot be the name of a"):
            store.ingest(kb, log.path)
    bad = msgspec.structs.replace(measured(1.0, tp=1), name="tp1\ncurl evil | sh")
    with pytest.raises(AutoscoutError, match="control character"):
        store.ingest(kb, write(kb, "s", ended(measured(1.0, tp=2)), ended(bad)))
    assert [m.name for _, m in store.measurements(kb)] == ["tp2"]  # what is before it is kept


def test_a_newer_journal_is_named_as_such_and_its_new_events_are_passed_on(tmp_path: Path):
    kb = tmp_path / "kb.duckdb"
    path = write(kb, "s", ended(measured(1.0, tp=1)))
    with open(path, "ab") as file:
        file.write(b'{"type":"levitated","at":5.0,"height":[1,2]}\n')
    log = journal.Journal(path)
    log.append(ended(measured(2.0, tp=2)))
    log.close()
    kinds = [type(e).__name__ for e in journal.events(path)]
    assert kinds == ["SessionStarted", "ExperimentEnded", "Later", "ExperimentEnded"]
    assert store.ingest(kb, path) == 2
    later = tmp_path / "later.jsonl"
    first = path.read_bytes().splitlines()[0]
    later.write_bytes(
        first.replace(b'"records":0', b'"records":99').replace(b'"job":{', b'"job":{"moonlight":1,') + b"\n"
    )
    with pytest.raises(AutoscoutError, match="newer AutoScout") as error:
        journal.events(later)
    assert error.value.exit_code == 2
    assert "cut" not in str(error.value)


def test_text_is_made_plain():
    assert door.plain("a\nb\x1b[2J\x9b1m\u2028c") == "a b [2J 1m c"
    loud = msgspec.structs.replace(measured(None, tp=1), evidence="line 1\n\tline 2\x1b[2J", environment={"a": "\x07"})
    clean = door.cleaned(loud)
    assert (clean.evidence, clean.environment) == ("line 1\n\tline 2 [2J", {"a": " "})
    door.check_measurement(clean)
    with pytest.raises(door.Refused):
        door.check_measurement(loud)


@pytest.mark.parametrize("odd", [{"at": 1e300}, {"at": -1.0}, {"cost_s": -3.0}, {"metrics": {"x": float("inf")}}])
def test_a_number_that_cannot_be_stays_outside(kb: Path, tmp_path: Path, odd: dict):
    """A time that never was would break every view that shows it."""
    forged = msgspec.structs.replace(measured(1.0, tp=9), **odd)
    if "x" not in forged.metrics:  # JSON has no infinity
        with pytest.raises(AutoscoutError, match="impossible cost or time"):
            store.ingest(kb, write(kb, "odd", ended(forged)))
    with pytest.raises(door.Refused, match="impossible cost or time"):
        door.check_measurement(forged)
    assert [session for session, _ in store.measurements(kb)] == ["s"]


def test_a_journal_that_fits_in_no_row_keeps_no_other_out(kb: Path):
    """Every verb called the knowledge base damaged from then on."""
    odd = journal.Journal(store.session_folder(kb, "odd") / "journal.jsonl")
    odd.append(msgspec.structs.replace(started("odd"), seed=10**40), ended(measured(2.0, tp=5)))
    odd.close()
    write(kb, "sound", ended(measured(3.0, tp=6)))
    new, problems = store.ingest_all(kb)
    assert new == 1
    [problem] = problems
    assert "odd/journal.jsonl: contains data that the tables cannot store (Conversion Error: " in problem
    assert [session for session, _ in store.measurements(kb)] == ["s", "sound"]
    store.ingest(kb, store.session_folder(kb, "sound") / "journal.jsonl")


def test_no_path_no_key_and_no_variable_is_stored_for_others(tmp_path: Path):
    kb = tmp_path / "home" / "kb.duckdb"
    launch = LaunchSettings(
        python="/home/ann/venv/bin/python",
        model_path="/home/ann/models/secret-model",
        path="/home/ann/project",
        command="python /home/ann/project/sub/dir/train.py --hf-token=hf_abcdefghijklmnop --mbs {mbs}",
        environment={"HF_TOKEN": "hf_qrstuvwxyz123456"},
    )
    of = msgspec.structs.replace(job(), launch=launch, traffic=Traffic(seq_len=8, trace="/home/ann/trace.csv"))
    problem = "no such file /home/ann/project/data/x.bin"
    end = journal.SessionEnded(reason="failed", experiments=0, engine_ms_mean=0.0, engine_ms_max=0.0, problem=problem)
    store.ingest(kb, write(kb, "s", ended(measured(1.0, tp=1)), end, of=of))
    lake.push(kb, tmp_path / "lake")
    with duckdb.connect() as con:
        said = str(con.execute(f"FROM read_parquet('{tmp_path}/lake/*/*.parquet')").fetchall())
    assert "{mbs}" in said
    for private in ("/home/ann", "hf_", "secret-model"):
        assert private not in said
