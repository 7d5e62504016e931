"""What enters the knowledge base from journals and imports and what leaves it again, row by row: requests of others,
tails of journals, filters, findings of a check, copies, the trash."""

import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from asking import refusal
from kb_samples import asked, ended, job, measured, started, write

from kb import care, connect, forget, imports, journal, journal_rows, lock, migrate, rows, store
from kb.records import (
    Cluster,
    LaunchSettings,
    Measurement,
    MetricSource,
    Node,
    Objective,
    SpaceLimits,
    Traffic,
)


def append(path: Path, *events: journal.Event) -> None:
    log = journal.Journal(path)
    log.append(*events)
    log.close()


def on(rung: str, step: float | None, **knobs: int) -> Measurement:
    return msgspec.structs.replace(measured(step, **knobs), fidelity=rung)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "kb.duckdb"
    spoiled = msgspec.structs.replace(measured(None, tp=5), status="infrastructure")
    rest = [on("short", 3.0, tp=3), on("predicted", 4.0, tp=4), spoiled]
    write(path, "s", *(ended(m, i) for i, m in enumerate([measured(1.0, tp=1), measured(None, tp=2), *rest], 1)))
    assert store.ingest_all(path) == (5, [])
    return path


@pytest.fixture
def kb(made: Path, tmp_path: Path) -> Path:
    """One experiment measured, one failed, one ended early, one predicted, one that its machine spoiled."""
    shutil.copytree(made.parent, tmp_path, dirs_exist_ok=True)
    return tmp_path / "kb.duckdb"


def names(kb: Path, **asked: Any) -> list[str]:
    return [m.name for _, m in store.measurements(kb, **asked)]


def test_which_measurements_are_asked_for(kb: Path):
    assert names(kb) == ["tp1", "tp2"]
    assert names(kb, short=True) == ["tp1", "tp2", "tp3"]
    assert names(kb, designed=True) == ["tp1", "tp2", "tp4"]
    assert names(kb, job=job().id, context="here", up_to=2) == ["tp1", "tp2"]
    assert [names(kb, up_to=mark) for mark in (0, 1)] == [[], ["tp1"]]
    assert names(kb, job="another") == names(kb, context="there") == []
    assert [m.name for _, m in store.answering(kb, job().id, "here", 3)] == ["tp1", "tp2", "tp3"]
    assert store.mark(kb) == 5
    with connect.writer(kb) as con:
        con.execute("INSERT INTO author VALUES ('s', 'bob')")
    assert names(kb) == ["tp1", "tp2"]
    assert names(kb, answers=True) == []
    with connect.writer(kb) as con:
        con.execute("INSERT INTO trust VALUES ('bob', 'answer', '', 0.0)")
    assert names(kb, answers=True) == ["tp1"]  # what failed there is measured here
    assert names(kb, answers=True, short=True) == ["tp1", "tp3"]


def test_what_is_kept_of_a_journal(kb: Path):
    path = store.sessions_folder(kb) / "s" / "journal.jsonl"
    assert asked(kb, "SELECT * FROM journal") == [("s", path.stat().st_size, 6)]
    problem = "no /home/ann/project/a.py"
    failed = journal.SessionEnded(reason="failed", experiments=5, engine_ms_mean=1.0, engine_ms_max=2.0,
                                  problem=problem, exit_code=3, at=9.0)  # fmt: skip
    append(path, journal.Passed(at=7.0), ended(measured(6.0, tp=6), 6), failed)
    with open(path, "ab") as file:
        file.write(b'{"type":"levitated","at":8.0}\n')
    assert store.ingest(kb, path) == 1
    assert asked(kb, "SELECT * FROM journal") == [("s", path.stat().st_size, 10)]
    sql = "SELECT session, seq, type, unix_s, body ->> 'problem' FROM decision ORDER BY seq"
    assert asked(kb, sql) == [
        ("s", 6, "passed", 7.0, None),
        ("s", 8, "session_ended", 9.0, "no …/project/a.py"),
        ("s", 9, "levitated", 8.0, None),
    ]
    # A shorter file is not the one that it was: all of it is offered again, and nothing of it is new.
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    assert store.ingest_all(kb) == (0, [])
    assert asked(kb, "SELECT * FROM journal") == [("s", path.stat().st_size, 2)]


def test_who_has_the_lock_brings_in_what_others_wait_for(kb: Path):
    ours, other = (write(kb, name, ended(measured(1.0, tp=1, of=name))) for name in ("ours", "other"))
    torn = write(kb, "torn", ended(measured(2.0, tp=1)))
    torn.write_bytes(torn.read_bytes() + b"{}\n")
    folder = kb.with_name("kb.duckdb.requests")
    folder.mkdir(exist_ok=True)
    for name, path in (("other-1", other), ("torn-2", torn), ("gone-3", kb.with_name("none")), (".new", other)):
        (folder / name).write_text(str(path))
    assert store.ingest(kb, ours) == 3
    assert sorted(path.name for path in folder.iterdir()) == [".new", "torn-2"]
    said, code = refusal(store.ingest, kb, torn)
    assert (said.startswith(f"{torn}: the line that ends at byte "), code) == (True, 2)
    assert store.ingest(kb, ours) == 0
    shutil.rmtree(folder)
    folder.write_text("a file")
    said = f"{folder}: cannot be written (File exists); the journal keeps every measurement"
    assert refusal(store.ingest, kb, ours) == (said, 1)


def test_journals_that_are_none(kb: Path):
    path = kb.parent / "sessions" / "t" / "journal.jsonl"
    append(path, journal.Passed())
    said = f"{path}: is not a session's journal, because it does not begin with session_started"
    assert refusal(store.ingest, kb, path) == (said, 2)
    assert store.ingest_all(kb) == (0, [said])
    path.write_bytes(b"")
    assert store.ingest(kb, path) == 0


def test_states_of_sessions(kb: Path):
    def end(reason: str) -> journal.SessionEnded:
        return journal.SessionEnded(reason=reason, experiments=1, engine_ms_mean=1.0, engine_ms_max=2.0)

    write(kb, "done", end("budget"), at=1.0)
    write(kb, "cut", end("interrupted"), at=2.0)
    store.ingest_all(kb)
    with lock.exclusive(store.session_folder(kb, "done") / "owner.lock"):
        states = {row["session"]: row["state"] for row in store.session_rows(kb)}
    assert states == {"s": "interrupted", "done": "running", "cut": "interrupted"}
    assert {row["session"]: row["state"] for row in store.session_rows(kb)}["done"] == "ended"


def test_where_it_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.delenv("AUTOSCOUT_KB", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", "not/absolute")
    assert store.default_path() == tmp_path / ".local/share/autoscout/kb.duckdb"
    assert refusal(store.session_folder, Path("/x/kb.duckdb"), "..")[1] == 2


def test_a_job_is_stored_without_places():
    launch = LaunchSettings(
        python="/p", recorded="/r", model_path="/m", path="/d", script="/s", command_prefix=["x"],
        environment={"a": "b"},
        command="run /a/b/c/d", current="was /a/b/c/e", metrics={"x": "y", "f": MetricSource(file="/f", json="a"),
                                                                 "j": MetricSource(json="b")},
    )  # fmt: skip
    full = msgspec.structs.replace(
        job(),
        launch=launch,
        traffic=Traffic(seq_len=8, trace="/home/t.csv", trace_id="0123"),
        space=SpaceLimits(catalog=["/home/own.toml"]),
        cluster=Cluster(nodes=[Node(device="a100", count=8), Node(device="a40", count=4)]),
        objective=Objective(maximize="tokens_per_s", constraints=["x <= 1"]),
    )
    kept = journal_rows._without_paths(full)
    assert kept.launch == LaunchSettings(
        command="run …/c/d", current="was …/c/e", metrics={"x": "y", "f": "", "j": MetricSource(json="b")}
    )
    assert (kept.traffic.trace, kept.space.catalog) == ("t.csv", ["own.toml"])
    begun = msgspec.structs.replace(started("s", full, at=5.0), host="h", hyper={"a": 1}, environment={"torch": "2"})
    row = journal_rows.session_row(begun, "import")
    stored = msgspec.json.decode(row.pop("job"))
    assert stored.pop("records") == 8
    assert msgspec.convert(stored, type(full)) == kept
    assert row == {
        "id": "s", "source": "import", "job_id": full.id, "job_name": "tiny", "context": "here", "host": "h",
        "cluster": "8×a100 + 4×a40", "devices": 12, "goal": "maximize", "metric": "tokens_per_s",
        "constraints": ["x <= 1"], "strategy": "autoscout", "seed": 0, "fidelity": "adaptive", "warm_start": "auto",
        "kb_mark": 0, "unix_s": 5.0, "hyper": '{"a":1}', "environment": '{"torch":"2"}',
    }  # fmt: skip
    assert journal_rows.session_row(started("s"))["goal"] == "minimize"
    assert journal_rows.job_row(full)["family"] == "pretrain-megatron-dense"
    moe = msgspec.structs.replace(full.model, experts=2)
    assert rows.family("serve", "vllm", moe) == "serve-vllm-moe"


def test_a_measurement_as_a_row_and_back():
    full = msgspec.structs.replace(
        measured(1.0, 5.0, tp=1), metrics={"step_time_s": 1.0, "odd": 2.0}, losses=[3.0], rank_devices=["h:cpu:0"],
        conditions={"a": 1.0},
    )  # fmt: skip
    for m in (full, measured(None, tp=2)):
        row = rows.incoming("s", "j", 3, "search", m)
        assert list(row) == ["id", "session", "job_id", "context", "environment", "configuration_id", "name", "knobs",
                             "number", "purpose", "status", "fidelity", "evidence", "cost_s", "device_s", "period",
                             "unix_s", *rows.METRICS, "other_metrics", "conditions", *rows.SERIES,
                             *rows.PER_RANK]  # fmt: skip
        assert rows.measurement(row) == m
    row = rows.incoming("s", "j", None, "import", full)
    assert (row["other_metrics"], row["conditions"], row["losses"], row["iterations_s"], row["per_rank"]) == (
        '{"odd":2.0}', '{"a":1.0}', "[3.0]", "[]", None,
    )  # fmt: skip
    bare = rows.incoming("s", "j", None, "import", measured(None, tp=2))
    assert {bare[name] for name in ("other_metrics", "conditions", *rows.SERIES, *rows.PER_RANK)} == {None}


def test_what_a_check_says(kb: Path):
    def findings() -> dict[str, tuple[bool, str]]:
        return {each.subject: (each.ok, each.found) for each in care.check(kb)}

    sound = findings()
    tables = len(asked(kb, "FROM duckdb_tables()"))
    counts = " + ".join(f"(SELECT count(*) FROM {t})" for (t,) in asked(kb, "SELECT table_name FROM duckdb_tables()"))
    [(total,)] = asked(kb, f"SELECT {counts}")
    assert sound == {
        "integrity": (True, f"all {total} rows of {tables} tables were read"),
        "references": (True, "no row refers to a missing row"),
        "hashes": (True, "all measurements are unchanged"),
        "results": (True, "of 1 job: all match the measurements"),
        "journals": (True, "all events are stored"),
        "seals": (True, "no line has changed since it was written"),
        "imports": (True, "0 files are not stored yet"),
    }
    imports.store_import(kb, "import-a", job(seq_len=16), {}, 1.0, iter([measured(1.0, tp=1, pp=1)]))
    folder = store.imports_folder(kb)
    [file] = folder.glob("*.parquet")
    assert findings()["imports"] == (True, "0 files are not stored yet")
    assert findings()["results"] == (True, "of 2 jobs: all match the measurements")
    shutil.copy(file, folder / "x.parquet")
    assert findings()["imports"] == (False, "damaged: x.parquet")
    (folder / "x.parquet").unlink()
    with connect.writer(kb) as con:
        con.execute("DELETE FROM lake_file")
        con.execute("UPDATE configuration SET knobs = '{\"tp\":7}' WHERE name = 'tp2'")
        con.execute("INSERT INTO further_source VALUES (1, 99, 1, 'search')")
        con.execute("INSERT INTO decision VALUES ('nobody', 1, 'passed', 0.0, '{}')")
    append(store.session_folder(kb, "s") / "journal.jsonl", journal.Passed())
    write(kb, "running")
    with lock.exclusive(store.session_folder(kb, "running") / "owner.lock"):
        said = findings()
    assert said["imports"] == (True, "1 files are not stored yet")
    assert said["journals"] == (
        False,
        "the journals of s contain events that are not stored yet; `autoscout kb ingest` stores them",
    )
    assert said["hashes"] == (False, "2 of all measurements have changed, such as tp2 of s")
    assert said["references"] == (
        False,
        "1 further sources without a measurement or an origin; 1 decisions without a session",
    )
    assert findings()["journals"][1].startswith("the journals of ")


def test_info_whole(kb: Path):
    import duckdb

    assert care.info(kb) == {
        "path": str(kb), "bytes": kb.stat().st_size, "schema": len(migrate.known()),
        "duckdb": f"v{duckdb.__version__}", "jobs": 1, "sessions": 1, "configurations": 5, "measurements": 5,
        "decisions": 0, "forgotten": 0, "statuses": {"ok": 3, "oom": 1, "infrastructure": 1}, "newest_unix_s": 0.0,
        "network_filesystem": "",
    }  # fmt: skip


def test_copies(kb: Path, tmp_path: Path):
    copy = tmp_path / "copy.duckdb"
    assert care.back_up(kb, copy) == copy.stat().st_size
    assert refusal(care.back_up, kb, copy) == (f"{copy} exists already; choose another name for the backup", 2)
    nowhere = tmp_path / "none" / "copy"
    said = f"{tmp_path}/none is not a folder; choose another place for the backup"
    assert refusal(care.back_up, kb, nowhere) == (said, 2)
    assert refusal(care.restore, kb, nowhere) == (f"{nowhere}: there is no such file", 2)
    new = tmp_path / "deep" / "er" / "kb.duckdb"
    assert care.restore(new, copy) == (0, None)
    assert names(new) == ["tp1", "tp2"]
    log = new.with_name("kb.duckdb.wal")
    log.write_bytes(b"x")
    new.write_bytes(b"y")
    assert care.restore(new, copy)[0] == 0
    assert care.restore(new, copy)[1] is not None
    [replaced] = new.parent.glob("kb.duckdb.replaced-*.wal")
    assert replaced.read_bytes() == b"x"
    assert not log.exists()
    assert names(new) == ["tp1", "tp2"]


def test_the_trash(kb: Path, tmp_path: Path):
    folder = store.session_folder(kb, "s")
    other = kb.with_name("kb.duckdb.replaced-1")
    other.write_bytes(b"")
    imports.store_import(kb, "import-a", job(), {}, 1.0, iter([measured(1.0, tp=1), measured(9.0, tp=9)]))
    [file] = store.imports_folder(kb).glob("*.parquet")
    with lock.exclusive(folder / "owner.lock"):
        assert refusal(forget.forget, kb, ["s"]) == ("session s is running; stop it first (`autoscout stop s`)", 1)
    unknown = "there is no session or import x; `autoscout sessions` and `autoscout sql 'FROM imports'` list them"
    assert refusal(forget.forget, kb, ["x"]) == (unknown, 2)
    keeps = (
        f"`autoscout kb undelete {{0}}` restores {{0}} from {tmp_path}/trash/{{0}}; delete that folder to "
        f"remove it for good"
    )
    gone = forget.forget(kb, ["s"])
    assert gone == forget.Forgotten(
        ["s"],
        4,
        [str(folder)],
        ["1 measurements stay, because other sessions or imports contain them too", f"{other} is an older copy of the "
         "knowledge base; delete it if it must not contain the data either", keeps.format("s")],
    )  # fmt: skip
    assert not folder.exists()
    gone = forget.forget(kb, ["import-a"])
    assert (gone.measurements, gone.files, gone.left[1:]) == (2, [str(file)], [keeps.format("import-a")])
    assert not file.exists()
    assert forget.deleted(kb) == ["import-a", "s"]
    said = refusal(forget.undelete, kb, ["x"])
    assert said == ("x is not in the trash, which holds import-a, s", 2)
    assert forget.undelete(kb, ["import-a", "s"]) == forget.Undeleted(["import-a", "s"], 6)
    assert (file.exists(), folder.exists(), forget.deleted(kb)) == (True, True, [])
    assert refusal(forget.undelete, kb, ["x"])[0] == "x is not in the trash, which holds nothing"
    # An older one of the same name in the trash makes way.
    (tmp_path / "trash" / "s" / "session").mkdir(parents=True)
    (tmp_path / "trash" / "s" / "session" / "old").write_text("")
    forget.forget(kb, ["s"])
    assert not (tmp_path / "trash" / "s" / "session" / "old").exists()
    assert (tmp_path / "trash" / "s" / "session" / "journal.jsonl").exists()
    said = "no session ran on gpu-07; SELECT DISTINCT host FROM sessions lists the hosts"
    assert refusal(forget.sessions_of_host, kb, "gpu-07") == (said, 2)


def test_imports(tmp_path: Path):
    kb = tmp_path / "new" / "kb.duckdb"

    def stored(*found: Measurement) -> imports.Stored:
        return imports.store_import(kb, "import-a", job(), {"reader": "csv", "file": "a.csv"}, 7.0, iter(found))

    assert stored() == ("import-a", 0, 0)
    assert not kb.exists()
    one, two = measured(1.0, tp=1), measured(2.0, tp=2)
    assert stored(one, two, one) == ("import-a", 2, 1)
    [row] = asked(kb, "SELECT source, strategy, fidelity, warm_start, seed, kb_mark, unix_s, context FROM session")
    assert row == ("import", "import", "profile", "off", 0, 0, 7.0, "")
    assert asked(kb, "SELECT hyper FROM session") == [('{"reader":"csv","file":"a.csv"}',)]
    assert stored(one, two) == ("import-a", 0, 2)
    forget.forget(kb, ["import-a"])
    assert stored(one, two) == ("import-a", 2, 0)  # who imports it again wants it again


def test_only_imports_that_nobody_runs_are_swept_away_whatever_the_clock_says(tmp_path: Path):
    kb = tmp_path / "kb.duckdb"
    folder = store.imports_folder(kb)
    for name in ("left", "running"):
        (folder / f".unfinished-{name}").mkdir(parents=True)
        (folder / f".unfinished-{name}" / "x").write_text("")
    with lock.exclusive(folder / ".unfinished-running" / "owner.lock"):
        os.utime(folder / ".unfinished-running", (1, 1))
        imports.store_import(kb, "import-a", job(), {}, 1.0, iter([measured(1.0, tp=1)]))
    assert [path.name for path in folder.glob(".unfinished-*/")] == [".unfinished-running"]


def test_who_wins_among_answers():
    """What was measured comes before what was answered, whatever the order of the journals."""
    shared = measured(9.0, tp=9)
    answer = journal.Answered(measurement=shared, measured_by="second")
    tails = [
        journal_rows._Tail(started("first"), 0, {1: answer}, 1, 1, None),
        journal_rows._Tail(started("second"), 0, {1: ended(shared, 4), 2: journal.Passed()}, 1, 1, None),
    ]
    found = [(row["session"], row["number"], row["purpose"]) for row in journal_rows._measurement_rows(tails)]
    assert found == [("second", 4, "search"), ("second", None, "answered")]
