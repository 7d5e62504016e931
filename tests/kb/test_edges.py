"""Where something begins and where it ends: ages to the second, defaults, ties, the one too many; and what a knowledge
base does when somebody else was quicker."""

import contextlib
import io
import json
import pickle
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest
from kb_samples import ended, measured, python, write

from kb import care, connect, journal, journal_rows, lock, query, query_room, similar, store
from kb.connect import reader, writer
from kb.records import AutoscoutError, Cluster, Job, Model, Node, Objective, Traffic
from kb.sharing import lake


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five measurements of one session."""
    path = tmp_path_factory.mktemp("made") / "kb.duckdb"
    store.ingest(path, write(path, "s", *(ended(measured(float(i), tp=i), i) for i in range(1, 6))))
    return path


@pytest.fixture
def kb(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made.parent, tmp_path, dirs_exist_ok=True)
    return tmp_path / "kb.duckdb"


def test_a_check_hashes_all_or_a_sample(kb: Path, monkeypatch: pytest.MonkeyPatch):
    for most, part in ((6, "all"), (5, "all"), (4, "4 random")):
        monkeypatch.setattr(care, "_HASHED", most)
        with reader(kb) as con:
            assert care._hashes(con).found == f"{part} measurements are unchanged"


def test_a_check_names_the_first_that_has_changed(kb: Path):
    def said() -> tuple[bool, str]:
        with reader(kb) as con:
            found = care._hashes(con)
        return found.ok, found.found

    with writer(kb) as con:
        con.execute("UPDATE configuration SET id = 'x' WHERE name IN ('tp2', 'tp4')")
    assert said() == (False, "2 of all measurements have changed, such as tp2")
    with writer(kb) as con:
        con.execute("UPDATE measurement SET cost_s = 7.0 WHERE added IN (3, 5)")
    assert said() == (False, "4 of all measurements have changed, such as tp3 of s")


def test_what_a_killed_writer_left_in_its_log_is_in_the_file_that_is_written_anew(kb: Path):
    with duckdb.connect(kb) as con:
        con.execute("PRAGMA disable_checkpoint_on_shutdown; INSERT INTO forgotten VALUES ('x', 0.0)")
    log = kb.with_name("kb.duckdb.wal")
    assert log.exists()
    connect.rewrite(kb)
    assert not log.exists()
    with reader(kb) as con:
        assert con.execute("SELECT session FROM forgotten").fetchall() == [("x",)]


def test_another_program_that_has_the_file_is_waited_for(kb: Path, monkeypatch: pytest.MonkeyPatch):
    code = "import sys, duckdb; con = duckdb.connect(sys.argv[1]); print('here', flush=True); sys.stdin.read()"
    program = python(code, kb, stdin=-1)
    assert program.stdin
    assert program.stdout
    assert program.stdout.readline() == "here\n"
    waits: list[float] = []

    def end(seconds: float) -> None:
        waits.append(seconds)
        program.communicate()

    monkeypatch.setattr("time.sleep", end)
    monkeypatch.setattr("time.monotonic", lambda: 0.0)
    with pytest.raises(duckdb.IOException, match="Could not set lock on file"):
        connect._connect(kb, False, 0.0)
    assert waits == []
    with contextlib.closing(connect._connect(kb, False, 1.0)) as con:
        assert con.execute("SELECT count(*) FROM measurement").fetchall() == [(5,)]
    assert len(waits) == 1


def test_whose_journal_somebody_else_has_brought_in_has_nothing_to_do(kb: Path):
    path = write(kb, "later", ended(measured(9.0, tp=9)))
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(store.ingest(kb, path)))
    requests = kb.with_name("kb.duckdb.requests")
    with lock.exclusive(connect.lock_path(kb)):
        thread.start()
        while not (waiting := list(requests.glob("later-*"))):
            time.sleep(0.005)
        waiting[0].unlink()
    thread.join(10)
    assert found == [0]
    assert store.mark(kb) == 5
    # A journal without a measurement brings none in.
    assert store.ingest(kb, write(kb, "empty", journal.Passed())) == 0


def test_a_journal_is_read_from_where_it_was_left(kb: Path):
    path = store.sessions_folder(kb) / "s" / "journal.jsonl"
    whole = path.read_bytes().splitlines(keepends=True)

    def tail() -> tuple[int, int, int]:
        with reader(kb) as con:
            found = journal_rows.read_tail(con, path)
        assert found is not None
        return found.line, len(found.events), found.end

    assert tail() == (6, 0, path.stat().st_size)
    path.write_bytes(b"".join(whole) + whole[-1])
    assert tail() == (6, 1, path.stat().st_size)
    path.write_bytes(b"".join(whole[:2]))  # a shorter one is another one
    assert tail() == (0, 2, path.stat().st_size)


def test_one_file_that_is_none_does_not_keep_the_others_out(kb: Path, tmp_path: Path):
    store.ingest(kb, write(kb, "t", ended(measured(9.0, tp=9, of="t"))))
    folder, other = tmp_path / "lake", tmp_path / "other" / "kb.duckdb"
    assert lake.push(kb, folder) == (2, 6, [])
    bad = folder / "family=x" / "bad.parquet"
    bad.parent.mkdir()
    bad.write_text("half")
    bad = bad.rename(bad.with_name(f"{lake.hash_of(bad)}.parquet"))
    sessions, measurements, passed_over = lake.pull(other, folder)
    assert (sessions, measurements) == (2, 6)
    [said] = passed_over
    assert said.startswith(f"{bad} was not written by AutoScout (")


def test_a_query_without_a_limit_gets_the_first_thousand_rows(kb: Path):
    found = query.run(kb, "FROM range(1001)")
    assert (found.rows[0], found.rows[-1], len(found.rows), found.truncated) == ((0,), (999,), 1000, True)


def test_what_takes_too_long_in_the_file_is_asked_of_a_copy_if_it_may_take_longer(
    kb: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(query, "_IN_THE_FILE_S", 0.001)
    left = kb.with_name(".asked-left")
    left.mkdir()  # whoever makes a copy removes what others left
    slow = "SELECT count(*) FROM range(3_000_000) AS t WHERE t.range % 7 = 3"
    with pytest.raises(AutoscoutError, match=r"stopped after 0\.001 s"):
        query.run(kb, slow, seconds=0.001)
    assert left.exists()
    assert query.run(kb, slow, seconds=30.0).rows == [(428_571,)]
    assert not left.exists()


@pytest.mark.parametrize(("cores", "threads"), [(64, 4), (4, 4), (3, 3), (None, 1)])
def test_a_query_takes_four_threads_at_most(
    kb: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int | None, threads: int
):
    folder = tmp_path / "it's"
    folder.mkdir()
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    with query_room._opened(query_room.Request(str(kb), "", 1, 0, 1.0, 256, str(folder))) as con:
        sql = "SELECT current_setting('threads'), current_setting('temp_directory')"
        assert con.execute(sql).fetchall() == [(threads, f"{folder}/spilled")]


def replied(request: query_room.Request, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[int]]:
    """What a query room says on its output, and the exit codes of its end and of the end of its input."""
    codes: list[int] = []
    done = threading.Event()

    def leave(code: int) -> None:
        codes.append(code)
        if len(codes) == 2:
            done.set()

    for name in ("resource.setrlimit", "signal.setitimer", "signal.signal"):  # they hold for the rest of a process
        monkeypatch.setattr(name, lambda *to: None)
    monkeypatch.setattr("os._exit", leave)
    said = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(msgspec.to_builtins(request)).encode())))
    monkeypatch.setattr(sys, "stdout", said)
    query_room.main()
    assert done.wait(10)
    monkeypatch.undo()
    return pickle.loads(said.buffer.getvalue()), sorted(codes)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("sql", "reply"),
    [
        ("SELECT 1 AS a, 'x' AS b", (["a", "b"], ["INTEGER", "VARCHAR"], [(1, "x")])),
        ("DROP TABLE job", ("error", "DROP is refused: SQL here only reads the knowledge base; start with SELECT or "
                            "FROM", 2)),
    ],
)  # fmt: skip
def test_a_query_room_answers_once_and_ends(
    kb: Path, monkeypatch: pytest.MonkeyPatch, sql: str, reply: tuple[Any, ...]
):
    request = query_room.Request(str(kb), sql, 10, 0, 60.0, 256, "")
    assert replied(request, monkeypatch) == (reply, [0, 1])


def sized(layers: int = 1, hidden: int = 1, seq_len: int = 1, devices: int = 1, **more: Any) -> Job:
    return Job(
        name="n",
        target=more.pop("target", "megatron"),
        objective=Objective(minimize="step_time_s"),
        model=Model(layers=layers, hidden=hidden, **more),
        traffic=Traffic(seq_len=seq_len),
        cluster=Cluster(nodes=[Node(device="a100", count=devices)] * bool(devices)),
    )


PAST = {
    "the same": sized(),
    "longer": sized(seq_len=2),
    "deeper": sized(layers=2),
    "longest": sized(seq_len=4),
    "deepest": sized(layers=4),
    "wider": sized(hidden=2),
    "more": sized(layers=4, devices=2),
    "widest": sized(hidden=4),
    "experts": sized(seq_len=2, experts=2),
    "most": sized(layers=4, devices=4),
    "another target": sized(target="deepspeed"),
}


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> Path:
    kb = tmp_path_factory.mktemp("past") / "kb.duckdb"
    for name, of in PAST.items():
        write(kb, name.replace(" ", "-"), ended(measured(1.0, tp=1, of=name)), of=of)
    store.ingest_all(kb)
    return kb


def candidates(kb: Path, wanted: Job) -> list[str]:
    with reader(kb) as con:
        return [row[-1][0].replace("-", " ") for row in similar._candidates(con, wanted)]


def test_candidates_are_the_nearest_in_size(past: Path):
    # Twice as long is 0.25 away, as deep 0.3, as wide 0.9, as many devices 1; experts 2, another target 3.
    assert candidates(past, sized()) == list(PAST)
    # A job that does not say its sizes counts as one of one.
    assert candidates(past, sized(0, 0, 0, 0)) == list(PAST)
    # The job itself comes first, whatever it ran on.
    assert candidates(past, sized(layers=4, devices=4))[:4] == ["most", "more", "deepest", "deeper"]
    assert candidates(past, sized(experts=1))[0] == "experts"
    assert candidates(past, msgspec.structs.replace(sized(), task="serve")) == []


def test_results_of_many_jobs_at_once_are_kept(past: Path):
    with reader(past, results=True) as con:
        sql = "SELECT count(DISTINCT job_id), count(*) FROM results"
        jobs = len({of.id for of in PAST.values()})
        assert con.execute(sql).fetchall() == [(jobs, len(PAST))]  # one configuration each, on each cluster


def test_five_past_jobs_unless_more_are_asked_for(past: Path):
    nearest = similar.similar(past, sized(), lambda node: 80.0)
    assert len(nearest) == 5
    assert len(similar.similar(past, sized(), lambda node: 80.0, count=50)) == len(PAST)
