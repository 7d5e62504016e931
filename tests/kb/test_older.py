"""Knowledge bases and lakes that older AutoScouts made: opened, nothing lost, every id as it was."""

import shutil
from pathlib import Path

import duckdb
import msgspec
import pytest
from kb_samples import PAST, asked, ended, job, measured, started, write

from kb import care, forget, journal, migrate, store
from kb.records import AutoscoutError
from kb.sharing import lake

# (session, id) of what that AutoScout said was measured, in its order.
MEASURED = [
    ("tiny-records-1", "f765560a7c9594dc"),
    ("tiny-records-1", "cea750526f48c3af"),
    ("tiny-records-1", "6cf666ab49d5f2e9"),
    ("tiny-records-1", "c20615d087f73fa3"),
    ("tiny-earlier", "1821004263b1ef56"),
    ("import-0123456789abcdef", "d17eb811b1b49ac9"),
]
PREDICTED = "34b2cc7398be0d2a"


def schema_2(kb: Path, *more: str) -> Path:
    """A knowledge base of two migrations with the rows of tests/kb/past/schema-2.sql, and what else is said in SQL."""
    kb.parent.mkdir(parents=True, exist_ok=True)
    with duckdb.connect(str(kb), config={"storage_compatibility_version": migrate.STORAGE}) as con:
        migrate.apply(con, kb, migrate.known()[:2])
        con.execute((PAST / "schema-2.sql").read_text())
        for sql in more:
            con.execute(sql)
    return kb


def sound(kb: Path) -> bool:
    return all(finding.ok for finding in care.check(kb))


def test_an_older_knowledge_base_opens_with_the_same_measurements(tmp_path: Path):
    kb = schema_2(tmp_path / "kb.duckdb")
    folder = store.session_folder(kb, "tiny-records-1")
    folder.mkdir(parents=True)
    shutil.copy(PAST / "records-1.jsonl", folder / "journal.jsonl")

    assert [(session, m.id) for session, m in store.measurements(kb)] == MEASURED
    assert sound(kb)
    rows = asked(kb, "SELECT id, fidelity, period, conditions FROM runs ORDER BY added")
    assert {row[1:] for row in rows} == {("measured", "", None), ("predicted", "", None)}
    assert [id for id, fidelity, *_ in rows if fidelity == "predicted"] == [PREDICTED]
    assert store.ingest_all(kb) == (0, [])  # nothing of its journal is new
    said = asked(kb, "SELECT body ->> 'to', body ->> '$.measurement.fidelity' FROM decisions")
    assert {row for row in said if row != (None, None)} == {("measured", None), (None, "measured")}
    assert asked(kb, "SELECT session, fidelity FROM sessions") == [("tiny-records-1", "adaptive")]
    assert asked(kb, "SELECT fidelity FROM session WHERE source = 'import'") == [("profile",)]
    assert asked(kb, "SELECT import, measurements, failed FROM imports") == [("import-0123456789abcdef", 2, 0)]
    # What it had put into a lake is there; nothing is put there again.
    lake_1 = tmp_path / "lake"
    shutil.copytree(PAST / "lake-1", lake_1)
    assert lake.push(kb, lake_1)[:2] == (0, 0)
    assert lake.pull(kb, lake_1)[:2] == (0, 0)

    # The backup beside it is what it was, and opens likewise.
    backup = tmp_path / "kb.duckdb.bak-2"
    with duckdb.connect(str(backup), read_only=True) as con:
        assert con.execute("SELECT max(version) FROM schema_migrations").fetchall() == [(2,)]
        assert con.execute("SELECT DISTINCT fidelity FROM measurement ORDER BY 1").fetchall() == [
            ("profiled",),
            ("simulated",),
        ]
    assert [(session, m.id) for session, m in store.measurements(backup)] == MEASURED


def test_what_the_trash_of_an_older_one_holds_comes_back(tmp_path: Path):
    kb = schema_2(tmp_path / "kb.duckdb")
    before = store.measurements(kb)
    forget.forget(kb, ["import-0123456789abcdef"])
    [file] = (tmp_path / "trash" / "import-0123456789abcdef" / "rows").glob("*.parquet")
    file.unlink()
    [older] = [path for path in (PAST / "lake-1").rglob("*.parquet") if path.stem.startswith("6e57")]
    shutil.copy(older, file.parent)
    assert forget.undelete(kb, ["import-0123456789abcdef"]).measurements == 2
    assert store.measurements(kb) == before


def test_a_lake_of_an_older_autoscout_comes_in(tmp_path: Path):
    """Also beside files of today, which have more columns."""
    bob, folder = tmp_path / "bob" / "kb.duckdb", tmp_path / "lake"
    today = msgspec.structs.replace(
        measured(2.0, tp=2), period="p", per_rank={"power_w": [1.0]}, rank_devices=["h:cpu:0"], conditions={"a": 1.0}
    )
    store.ingest(bob, write(bob, "b1", ended(today)))
    shutil.copytree(PAST / "lake-1", folder)
    lake.push(bob, folder)
    assert len(list(folder.rglob("*.parquet"))) == 4

    kb = tmp_path / "ann" / "kb.duckdb"
    moved = lake.pull(kb, folder)
    assert (moved.measurements, moved.passed_over) == (8, [])
    found = [(session, m.id) for session, m in store.measurements(kb)]
    assert sorted(found) == sorted([*MEASURED, ("b1", today.id)])
    assert asked(kb, f"SELECT fidelity FROM runs WHERE id = '{PREDICTED}'") == [("predicted",)]
    assert asked(kb, "SELECT body ->> 'to' FROM decisions WHERE type = 'fidelity_switched'") == [("measured",)]
    assert sound(kb)
    assert lake.push(kb, folder)[:2] == (0, 0)


def test_a_lake_file_of_a_newer_autoscout_says_so(tmp_path: Path):
    """With a status that nobody here knows, and a column; the door would have to guess."""
    [file] = [path for path in (PAST / "lake-1").rglob("*.parquet") if path.stem.startswith("b3a2")]
    new = tmp_path / "lake" / "family=pretrain-megatron-dense" / "new.parquet"
    new.parent.mkdir(parents=True)
    with duckdb.connect() as con:
        con.execute(f"CREATE TABLE t AS SELECT *, 7 AS moonlight FROM read_parquet('{file}')")
        con.execute("UPDATE t SET status = 'entangled' WHERE status = 'oom'")
        con.execute("UPDATE t SET job = replace(job, '\"records\":1', '\"records\":9')")
        con.execute(f"COPY t TO '{new}' (FORMAT parquet)")
    new.rename(new.with_name(f"{lake.hash_of(new)}.parquet"))
    done = lake.pull(tmp_path / "kb.duckdb", tmp_path / "lake")
    assert done[:2] == (0, 0)
    assert "a newer AutoScout wrote it (record format 9" in done.passed_over[0]


HOSTILE = "/home/victim"


@pytest.mark.parametrize(
    "sql",
    [
        # A session that is a path, with all that hangs on it.
        f"INSERT INTO session BY NAME SELECT * REPLACE ('{HOSTILE}' AS id, 'evil' AS host) FROM session "
        "WHERE source = 'session'",
        # A job whose name is a command, and a session of it.
        "INSERT INTO job BY NAME SELECT * REPLACE ('0123456789abcdef' AS id, 'x; rm -rf ~' AS name) FROM job; "
        "INSERT INTO session BY NAME SELECT * REPLACE ('evil' AS id, '0123456789abcdef' AS job_id, 'evil' AS host) "
        "FROM session WHERE source = 'session'",
        # A target that is a path, and rows that claim to be a good session's.
        "INSERT INTO job BY NAME SELECT * REPLACE ('0123456789abcdef' AS id, '../..' AS target) FROM job",
        # A name with a line break in a session's own job.
        "INSERT INTO session BY NAME SELECT * REPLACE ('evil' AS id, 'a' || chr(10) || 'b' AS job_name, 'evil' AS host)"
        " FROM session WHERE source = 'session'",
        "SELECT 1",
    ],
    ids=["path", "job", "target", "line", "nothing"],
)
def test_what_only_hostile_files_could_bring_in_goes_and_nothing_else(tmp_path: Path, sql: str):
    evil = f"(SELECT id FROM session WHERE host = 'evil' UNION SELECT '{HOSTILE}')"
    kb = schema_2(
        tmp_path / "kb.duckdb",
        sql,
        f"INSERT INTO origin SELECT 100, '{HOSTILE}', id, 'here', '{{}}' FROM job WHERE name = 'tiny' LIMIT 1",
        "INSERT INTO origin SELECT 101, 'tiny-records-1', id, 'here', '{}' FROM job WHERE id = '0123456789abcdef'",
        "INSERT INTO configuration BY NAME SELECT * REPLACE (100 AS key, 'x' AS id) FROM configuration WHERE key = 1",
        "INSERT INTO measurement BY NAME "
        "SELECT m.* REPLACE (o.key AS origin, o.key AS id, 100 AS configuration) "
        "FROM measurement AS m, (SELECT key FROM origin WHERE key >= 100) AS o WHERE added = 1",
        "INSERT INTO series SELECT key, '[1]', '[]', '[]', '[]' FROM origin WHERE key >= 100",
        f"INSERT INTO decision SELECT id, 1, 'decided', 0, '{{}}' FROM {evil}",
        f"INSERT INTO journal VALUES ('{HOSTILE}', 1, 1)",
        f"INSERT INTO lake_file SELECT 'h' || id, id, 1, 1 FROM {evil}",
        f"INSERT INTO forgotten VALUES ('{HOSTILE}', 1), ('old', 1)",
        "UPDATE job SET family = '../../elsewhere'",
    )
    assert [(session, m.id) for session, m in store.measurements(kb)] == MEASURED
    assert [row["session"] for row in store.session_rows(kb)] == ["tiny-records-1"]
    assert asked(kb, "SELECT id, name, family FROM job") == [("d9e0eeeb01bb03bb", "tiny", "pretrain-megatron-dense")]
    assert asked(kb, "SELECT DISTINCT session FROM decisions") == [("tiny-records-1",)]
    assert asked(kb, "SELECT session FROM journal") == [("tiny-records-1",)]
    assert asked(kb, "SELECT session FROM forgotten") == [("old",)]
    assert asked(kb, "SELECT count(*) FROM lake_file") == [(3,)]
    assert asked(kb, "SELECT count(*) FROM configuration") == [(3,)]
    assert sound(kb)


def test_a_job_that_a_hostile_file_named_keeps_what_we_measured_of_it(tmp_path: Path):
    """Its id was honest, so our own session stored no other row for it."""
    kb = schema_2(tmp_path / "kb.duckdb", "UPDATE job SET name = 'x; rm -rf ~'")
    assert [(session, m.id) for session, m in store.measurements(kb)] == MEASURED
    assert asked(kb, "SELECT name FROM job") == [("tiny",)]


def test_what_two_had_and_one_forgot_is_remembered_again(tmp_path: Path):
    """Schema 2 knew one source a row: an import that repeated rows of a session had fewer than its file."""
    alike = measured(1.5, tp=1)
    kb = schema_2(tmp_path / "kb.duckdb")
    store.ingest(kb, write(kb, "a", ended(alike)))  # with today's code, to make a file of it
    lake.push(kb, tmp_path / "lake")
    [hash] = [name for (name,) in asked(kb, "SELECT hash FROM lake_file WHERE session = 'a'")]
    old = schema_2(
        tmp_path / "old" / "kb.duckdb",
        f"INSERT INTO lake_file VALUES ('{hash}', 'a', 1, 0), ('older', 'tiny-earlier', 1, 0), ('gone', 'b', 9, 0)",
        "INSERT INTO forgotten VALUES ('b', 1)",
    )
    known = {name for (name,) in asked(old, "SELECT hash FROM lake_file")}
    assert hash not in known  # looked at again at the next pull
    assert {"older", "gone"} <= known
    assert lake.pull(old, tmp_path / "lake").measurements == 1


def test_names_are_checked_where_journals_come_in(tmp_path: Path):
    kb = tmp_path / "kb.duckdb"
    answer = journal.Answered(measurement=measured(1.0, tp=1), measured_by="../../victim")
    with pytest.raises(AutoscoutError, match="cannot be the name of a session"):
        store.ingest(kb, write(kb, "s", answer))
    path = kb.parent / "t.jsonl"
    log = journal.Journal(path)
    log.append(started("t", msgspec.structs.replace(job(), target="../..")))
    log.close()
    with pytest.raises(AutoscoutError, match="cannot be the name of a target"):
        store.ingest(kb, path)
    assert store.measurements(kb) == []
