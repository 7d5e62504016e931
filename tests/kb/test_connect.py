"""Locks, migrations, and what happens to files that cannot be used."""

import contextlib
import math
import os
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
import msgspec
import pytest
from kb_samples import asked, ended, job, measured, python, write

from kb import connect, migrate, query, store
from kb.records import AutoscoutError

HOLDER = """
import sys, time
from pathlib import Path
from kb import connect
with getattr(connect, sys.argv[2])(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def kb(tmp_path: Path) -> Path:
    """A knowledge base with one measurement."""
    path = tmp_path / "kb.duckdb"
    store.ingest(path, write(path, "s", ended(measured(1.0, tp=1))))
    return path


@contextlib.contextmanager
def held(kb: Path, how: str) -> "Iterator[subprocess.Popen[str]]":
    child = python(HOLDER, kb, how)
    try:
        assert child.stdout
        assert child.stdout.readline() == "held\n"
        yield child
    finally:
        child.kill()
        child.communicate()


@contextlib.contextmanager
def nobody() -> Iterator[Path]:
    """A folder for a user without privileges, who we are meanwhile: to root nothing is read-only."""
    import concurrent.futures.thread  # noqa: F401 - this user may not even read the standard library

    folder = Path(tempfile.mkdtemp())
    user = os.geteuid()
    try:
        if user == 0:
            os.chown(folder, 65534, -1)
            os.seteuid(65534)
        yield folder
    finally:
        os.seteuid(user)
        shutil.rmtree(folder, ignore_errors=True)


def test_who_holds_the_knowledge_base_is_named(kb: Path):
    with held(kb, "writer") as child:
        for use in (connect.reader, connect.writer):
            with pytest.raises(AutoscoutError) as caught, use(kb, wait_s=0.05):
                pass
            assert f"{kb} is in use by process {child.pid} (-c {kb} writer) since " in str(caught.value)
            assert caught.value.exit_code == 1
    assert store.mark(kb) == 1  # the kernel released it


def test_readers_share_and_keep_writers_out(kb: Path):
    with held(kb, "reader"):
        assert store.mark(kb) == 1
        with (
            pytest.raises(AutoscoutError, match="in use by a process that reads it"),
            connect.writer(kb, wait_s=0.05),
        ):
            pass


def test_waits_for_a_writer_to_finish(kb: Path):
    with held(kb, "writer") as child:
        waiting = python("import sys, pathlib; from kb import store; print(store.mark(pathlib.Path(sys.argv[1])))", kb)
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(0.5)
        child.kill()
        assert waiting.communicate()[0] == "1\n"


def test_another_program_that_has_the_file_open_is_named(kb: Path):
    child = python(
        "import duckdb, sys, time; c = duckdb.connect(sys.argv[1]); print('held', flush=True); time.sleep(60)",
        kb,
    )
    try:
        assert child.stdout
        assert child.stdout.readline() == "held\n"
        refused = pytest.raises(AutoscoutError, match=rf"is open in .*\(PID {child.pid}\); close it there")
        with refused, connect.reader(kb, wait_s=0.1):
            pass
    finally:
        child.kill()
        child.communicate()


def test_a_folder_that_may_only_be_read_can_be_read():
    with nobody() as folder:
        kb = folder / "kb.duckdb"
        store.ingest(kb, write(kb, "s", ended(measured(1.0, tp=1))))
        for with_lock_file in (True, False):
            if not with_lock_file:
                (folder / "kb.duckdb.lock").unlink()
            kb.chmod(0o444)
            folder.chmod(0o555)
            assert store.mark(kb) == 1
            assert len(store.measurements(kb)) == 1
            folder.chmod(0o755)
        folder.chmod(0o555)
        for use in (store.ingest_all, store.mark):
            with pytest.raises(AutoscoutError, match="Permission denied"):
                use(folder / "new" / "kb.duckdb")
        write_error = pytest.raises(AutoscoutError, match="cannot create the lock file")
        with write_error, connect.writer(kb):
            pass
        folder.chmod(0o755)


def test_a_file_that_may_only_be_read_is_not_written():
    with nobody() as folder:
        kb = folder / "kb.duckdb"
        store.mark(kb)
        kb.chmod(0o444)
        with pytest.raises(AutoscoutError, match="cannot be read or written here"):
            store.ingest(kb, write(kb, "s", ended(measured(1.0, tp=1))))
        kb.chmod(0o000)
        with pytest.raises(AutoscoutError, match="cannot be read or written here"):
            store.mark(kb)


def test_an_older_one_that_may_only_be_read_says_that_it_is_older():
    """It named a lock file that could not be made."""
    with nobody() as folder:
        kb = folder / "kb.duckdb"
        with duckdb.connect(str(kb), config={"storage_compatibility_version": migrate.STORAGE}) as con:
            migrate.apply(con, kb, migrate.known()[:-1])
        for mode in (0o555, 0o755):
            kb.chmod(0o444)
            folder.chmod(mode)
            with pytest.raises(AutoscoutError, match="was written by an earlier AutoScout and must be migrated, but"):
                store.mark(kb)
        folder.chmod(0o755)


@pytest.mark.parametrize("content", [b"hello\n" * 1000, b"", b"\0" * 20000])
def test_what_is_no_duckdb_file(tmp_path: Path, content: bytes):
    path = tmp_path / "kb.duckdb"
    path.write_bytes(content)
    for use in (store.mark, store.ingest_all, lambda kb: store.ingest(kb, write(kb, "s"))):
        with pytest.raises(AutoscoutError, match="is not a DuckDB file") as caught:
            use(path)
        assert caught.value.exit_code == 2
    assert path.read_bytes() == content


@pytest.mark.parametrize(("name", "content"), [("t.csv", "a,b\n1,2\n"), ("t.json", '[{"a": 1}]')])
def test_a_table_is_no_knowledge_base(tmp_path: Path, name: str, content: str):
    """DuckDB opened it as a view in memory: an import into `--kb results.csv` succeeded, and stored nothing."""
    path = tmp_path / name
    path.write_text(content)
    for use in (store.mark, store.ingest_all, lambda kb: store.ingest(kb, write(kb, "s"))):
        with pytest.raises(AutoscoutError, match="is not a DuckDB file"):
            use(path)
    assert path.read_text() == content


@pytest.mark.parametrize("use", [store.mark, store.ingest_all])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path, use):
    """Opening one took until somebody wrote into it."""
    os.mkfifo(tmp_path / "kb.duckdb")
    with pytest.raises(AutoscoutError, match=r"kb\.duckdb is not a file; choose another one with --kb"):
        use(tmp_path / "kb.duckdb")


def test_a_folder_and_a_database_of_something_else(tmp_path: Path):
    sentence = f"^{tmp_path} is a folder; give the file, such as {tmp_path}/kb.duckdb, with --kb$"
    with pytest.raises(AutoscoutError, match=sentence) as caught:
        store.mark(tmp_path)
    assert caught.value.exit_code == 2
    other = tmp_path / "other.duckdb"
    with duckdb.connect(other) as con:
        con.execute("CREATE TABLE money (x INTEGER)")
    for use in (connect.reader, connect.writer):
        with (
            pytest.raises(AutoscoutError, match=r"not a knowledge base \(it has the table money\)") as caught,
            use(other),
        ):
            pass
        assert caught.value.exit_code == 2


def test_a_folder_that_cannot_be_made_is_not_called_damaged(tmp_path: Path):
    (tmp_path / "file").touch()
    for folder, why in ((Path("/proc/none"), "No such file"), (tmp_path / "file" / "below", "Not a directory")):
        with pytest.raises(AutoscoutError, match=rf"{folder}/kb.duckdb: cannot create the folder {folder} \({why}"):
            store.mark(folder / "kb.duckdb")


@pytest.mark.parametrize("part", [0.02, 0.3, 0.6])
def test_a_truncated_file_is_one_sentence_and_the_journals_rebuild_it(tmp_path: Path, part: float):
    kb = tmp_path / "kb.duckdb"
    store.ingest(kb, write(kb, "s", *(ended(measured(1.0 + i, tp=i)) for i in range(2000))))
    os.truncate(kb, int(kb.stat().st_size * part))
    with pytest.raises(AutoscoutError, match="move it away") as caught:
        query.run(kb, "FROM measurement", None)
    assert "\n" not in str(caught.value)

    kb.rename(tmp_path / "damaged")
    assert store.ingest_all(kb) == (2000, [])


def test_a_log_without_its_file_is_not_taken_for_another_files(kb: Path):
    log = kb.with_name("kb.duckdb.wal")
    kb.unlink()
    log.write_bytes(b"left over")
    assert store.ingest_all(kb) == (1, [])
    assert log.with_name("kb.duckdb.wal.old").read_bytes() == b"left over"


def test_a_full_disk_is_one_sentence_and_nothing_is_lost(kb: Path):
    path = write(kb, "t", *(ended(measured(2.0, tp=i, note="x" * 1000)) for i in range(2000)))
    child = python(
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from kb import store\n"
        "kb = Path(sys.argv[1])\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (kb.stat().st_size + 4096,) * 2)\n"
        "try: store.ingest(kb, Path(sys.argv[2]))\n"
        "except store.AutoscoutError as error: print(error)",
        kb,
        path,
    )
    output = child.communicate()[0]
    assert output.startswith(f"{kb}: the disk is full")
    assert output.count("\n") == 1
    assert [session for session, _ in store.measurements(kb)] == ["s"]
    assert store.ingest(kb, path) == 2000


def test_a_kill_while_it_is_made_leaves_nothing_in_the_way(tmp_path: Path):
    chance = random.Random(1)
    for i in range(6):
        kb = tmp_path / str(i) / "kb.duckdb"
        child = python(
            "import sys, pathlib, duckdb; from kb import store\n"
            "print('ready', flush=True); store.mark(pathlib.Path(sys.argv[1]))",
            kb,
        )
        assert child.stdout
        child.stdout.readline()
        time.sleep(chance.uniform(0.0, 0.1))
        child.kill()
        child.communicate()
        assert store.mark(kb) == 0


def _migration(folder: Path, number: int, sql: str) -> None:
    (folder / f"{number:04}_more.sql").write_text(sql)


def _with_one_more(folder: Path, sql: str) -> tuple[migrate.Migration, ...]:
    """The migrations that this code knows, and another one."""
    folder.mkdir()
    for each in migrate.known():
        (folder / each.name).write_text(each.sql)
    _migration(folder, len(migrate.known()) + 1, sql)
    return migrate.load(folder)


def test_an_older_knowledge_base_is_backed_up_and_migrated(kb: Path, tmp_path: Path):
    ours = len(migrate.known())
    more = _with_one_more(
        tmp_path / "migrations", "ALTER TABLE lake_file ADD COLUMN colour VARCHAR; CREATE VIEW jobs AS FROM job"
    )
    with connect.writer(kb) as con:
        assert len(migrate.pending(con, kb, more)) == 1
        migrate.apply(con, kb, more)
        assert con.execute("SELECT name FROM jobs").fetchall() == [("tiny",)]
        assert con.execute("SELECT max(version) FROM schema_migrations").fetchall() == [(ours + 1,)]
        migrate.apply(con, kb, more)
    for use in (connect.reader, connect.writer):
        with (
            pytest.raises(
                AutoscoutError,
                match=f"has schema {ours + 1}, but this AutoScout only knows schemas up to {ours}; upgrade",
            ),
            use(kb),
        ):
            pass

    copy = tmp_path / f"kb.duckdb.bak-{ours}"
    assert [session for session, _ in store.measurements(copy)] == ["s"]
    for view in ("runs", "best", "failures", "sessions", "decisions", "checks", "orderings"):
        query.run(copy, f"FROM {view}")
    assert store.ingest(copy, tmp_path / "sessions" / "s" / "journal.jsonl") == 0  # keys are there, too


def test_a_knowledge_base_of_the_first_schema_keeps_every_measurement(tmp_path: Path):
    """As AutoScout 0.1 wrote it; a metric and a knob without columns, a failure, two origins, lists and NaN."""
    kept = [
        measured(1.5, 1.0, tp=1, sp=True),
        measured(None, 2.0, tp=2, colour="red"),
        msgspec.structs.replace(measured(0.1, 3.0, tp=1, sp=True), losses=[9.5, math.nan], metrics={"odd": 1 / 3}),
        msgspec.structs.replace(measured(2.5, 4.0, tp=4), context="there", environment={"torch": "2"}),
    ]
    kb = tmp_path / "kb.duckdb"
    one = job()
    with duckdb.connect(str(kb), config={"storage_compatibility_version": "v1.5.0"}) as con:
        migrate.apply(con, kb, migrate.known()[:1])
        con.execute(
            "INSERT INTO job VALUES (?, 'tiny', 'pretrain', 'megatron', ?, ?)",
            [one.id, msgspec.json.encode(one.model).decode(), msgspec.json.encode(one.traffic).decode()],
        )
        con.execute(
            "INSERT INTO session BY NAME SELECT 's' AS id, ? AS job_id, 'tiny' AS job_name, 'here' AS context, "
            "'minimize' AS goal, 'step_time_s' AS metric, [] AS constraints, 'autoscout' AS strategy, 0 AS seed, "
            "'adaptive' AS fidelity, 'auto' AS warm_start, 0 AS kb_mark, 5.0 AS unix_s, ? AS job, '{}' AS hyper, "
            "'{}' AS environment",
            [one.id, msgspec.json.encode(one).decode()],
        )
        for i, m in enumerate(kept):
            fields = msgspec.json.decode(msgspec.json.encode(m))
            lists = [
                msgspec.json.encode(fields[n]).decode()
                for n in ("metrics", "iterations_s", "losses", "grad_norms", "rank_memory_gib", "environment")
            ]
            con.execute(
                "INSERT INTO measurement (id, added, session, job_id, number, purpose, configuration_id, name, context,"
                " status, fidelity, evidence, cost_s, device_s, unix_s, configuration, metrics, iterations_s, losses,"
                " grad_norms, rank_memory_gib, environment, tp, sp) VALUES (?, ?, 's', ?, ?, 'search', ?, ?, ?, ?,"
                " 'profiled', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    *(m.id, i + 1, one.id, i, m.configuration.id, m.name, m.context, m.status, m.evidence, m.cost_s),
                    *(m.device_s, m.at, msgspec.json.encode(m.configuration.knobs).decode(), *lists),
                    *(m.configuration.knobs.get("tp"), m.configuration.knobs.get("sp")),
                ],
            )
    back = [m for _, m in store.measurements(kb)]
    assert [m.id for m in back] == [m.id for m in kept]
    assert (tmp_path / "kb.duckdb.bak-1").exists()
    assert asked(kb, "SELECT cluster, devices FROM session") == [("4×cpu", 4)]
    rows = asked(kb, "SELECT tp, sp, step_time_s, metrics ->> 'odd' FROM runs")
    assert rows == [(1, True, 1.5, None), (2, None, None, None), (1, True, None, str(1 / 3)), (4, None, 2.5, None)]
    assert store.ingest(kb, write(kb, "t", *map(ended, kept))) == 0


def test_a_migration_that_fails_changes_nothing(kb: Path, tmp_path: Path):
    more = _with_one_more(tmp_path / "migrations", "CREATE TABLE half (x INTEGER); SELECT nonsense")
    with pytest.raises(AutoscoutError), connect.writer(kb) as con:
        migrate.apply(con, kb, more)
    assert store.mark(kb) == 1
    assert asked(kb, "SELECT table_name FROM duckdb_tables() WHERE table_name = 'half'") == []


def test_a_migration_that_cannot_be_committed_says_why(kb: Path, tmp_path: Path):
    """DuckDB alters no table of which the same transaction has deleted rows, and says so only in the end."""
    more = _with_one_more(
        tmp_path / "migrations", "DELETE FROM measurement; ALTER TABLE measurement ADD COLUMN colour VARCHAR"
    )
    with pytest.raises(AutoscoutError, match="another transaction has altered this table"), connect.writer(kb) as con:
        migrate.apply(con, kb, more)
    assert store.mark(kb) == 1
    assert len(store.measurements(kb)) == 1


def test_a_changed_migration_is_refused(kb: Path):
    with connect.writer(kb) as con:
        con.execute("UPDATE schema_migrations SET sha256 = 'x'")
    with pytest.raises(AutoscoutError, match=r"created with the migration 0001_initial\.sql"):
        store.mark(kb)


def test_gaps_between_migrations_are_refused(tmp_path: Path):
    _migration(tmp_path, 1, "SELECT 1")
    _migration(tmp_path, 3, "SELECT 1")
    with pytest.raises(AutoscoutError, match="without gaps"):
        migrate.load(tmp_path)
    with pytest.raises(AutoscoutError, match="found none"):
        migrate.load(tmp_path / "nowhere")
