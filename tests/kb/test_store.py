import math
import os
import pwd
import random
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kb_samples import asked, ended, job, measured, python, started, write

from kb import door, journal, query, store, user_folders
from kb.records import AutoscoutError, Configuration, Measurement, Objective
from kb.sharing import lake

finite = st.floats(allow_nan=False, allow_infinity=False).map(lambda x: x + 0.0)  # −0.0 is 0.0 in a column
words = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=12)
any_measurement = st.builds(
    Measurement,
    configuration=st.builds(
        Configuration,
        knobs=st.dictionaries(
            st.sampled_from(["pp", "tp", "sp", "ar", "mbs", "ddp_bucket", "other knob"]),
            st.booleans() | st.integers(-(2**63), 2**63 - 1) | finite | words,
        ),
    ),
    name=words,
    context=words,
    status=st.sampled_from(["ok", "oom", "invalid", "error", "timeout", "wrong", "killed"]),
    metrics=st.dictionaries(st.sampled_from(["step_time_s", "tokens_per_s", "ttft_p99_ms"]), finite),
    iterations_s=st.lists(finite, max_size=3),
    losses=st.lists(st.floats(), max_size=3),
    grad_norms=st.lists(st.floats(), max_size=3),
    rank_memory_gib=st.lists(finite, max_size=3),
    evidence=words,
    cost_s=finite.map(abs),
    device_s=finite.map(abs),
    environment=st.dictionaries(words, words, max_size=3),
    at=st.floats(0, door.LATEST),
    period=words,
    per_rank=st.dictionaries(words, st.lists(st.floats(), max_size=3), max_size=2),
    rank_devices=st.lists(words, max_size=3),
    conditions=st.dictionaries(words, finite, max_size=2),
)


@pytest.fixture
def kb(tmp_path: Path) -> Path:
    return tmp_path / "new" / "kb.duckdb"


@pytest.mark.thorough
@settings(max_examples=settings().max_examples // 3, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batch=st.lists(any_measurement, min_size=1, max_size=30))
def test_measurements_come_back_exactly(tmp_path_factory: pytest.TempPathFactory, batch: list[Measurement]):
    kb = tmp_path_factory.mktemp("round_trip") / "kb.duckdb"
    unique: dict[str, Measurement] = {}
    for each in batch:
        unique.setdefault(each.id, each)

    path = write(kb, "s", *map(ended, batch))
    assert store.ingest(kb, path) == len(unique)

    back = [measurement for _, measurement in store.measurements(kb)]
    assert [each.id for each in back] == list(unique)
    assert [_written(each) for each in back] == [_written(each) for each in unique.values()]


def _written(measurement: Measurement) -> bytes:
    return msgspec.json.encode(measurement, order="deterministic")


def test_knobs_come_back_in_the_order_of_the_space(kb: Path):
    store.ingest(kb, write(kb, "s", ended(measured(1.0, tp=1, pp=2, ar="none"))))
    [(_, back)] = store.measurements(kb)
    assert list(back.configuration.knobs) == ["tp", "pp", "ar"]


def test_numbers_that_are_none_come_back_as_nan_and_keep_the_id(kb: Path):
    wrong = msgspec.structs.replace(measured(1.0, tp=1), status="wrong", losses=[9.5, math.nan, -math.inf])

    store.ingest(kb, write(kb, "s", ended(wrong)))

    [(_, back)] = store.measurements(kb)
    assert back.losses[0] == 9.5
    assert all(math.isnan(x) for x in back.losses[1:])
    assert back.id == wrong.id


def test_ingesting_again_changes_nothing(kb: Path):
    path = write(kb, "s", *(ended(measured(i + 1.0, tp=i)) for i in range(5)))
    assert store.ingest(kb, path) == 5
    before = [query.run(kb, f"FROM {table}") for table in ("measurement", "decision", "session", "job", "journal")]

    assert store.ingest(kb, path) == 0
    assert store.ingest_all(kb) == (0, [])
    # Also when it is not known how far the journal was ingested: the rows have their own identity.
    with store.writer(kb) as con:
        con.execute("DELETE FROM journal")
    assert store.ingest(kb, path) == 0

    after = [query.run(kb, f"FROM {table}") for table in ("measurement", "decision", "session", "job", "journal")]
    assert after == before


def test_a_torn_last_line_waits_until_it_is_whole(kb: Path):
    path = write(kb, "s", ended(measured(1.0, tp=1)))
    line = msgspec.json.encode(ended(measured(2.0, tp=2))) + b"\n"
    with open(path, "ab") as file:
        file.write(line[:40])
    assert store.ingest(kb, path) == 1
    with open(path, "ab") as file:
        file.write(line[40:])
    assert store.ingest(kb, path) == 1
    assert [each.metrics["step_time_s"] for _, each in store.measurements(kb)] == [1.0, 2.0]


def test_a_journal_of_which_not_even_the_first_line_is_whole_is_no_error(kb: Path):
    path = write(kb, "s")
    path.write_bytes(path.read_bytes()[:30])
    assert store.ingest(kb, path) == 0
    assert store.ingest_all(kb) == (0, [])


def test_what_a_damaged_journal_has_else_and_other_journals_are_ingested(kb: Path):
    damaged = write(kb, "a", ended(measured(1.0, tp=1)))
    with open(damaged, "ab") as file:
        file.write(b'{"type": "decided"}\n')
    write(kb, "b", ended(measured(2.0, tp=2)))
    other = kb.parent / "sessions" / "c" / "journal.jsonl"
    other.parent.mkdir()
    other.write_bytes(msgspec.json.encode(ended(measured(3.0, tp=3))) + b"\n")

    new, problems = store.ingest_all(kb)

    assert new == 2
    assert len(problems) == 2
    assert f"{damaged}: the line that ends at byte" in problems[0]
    assert f"{other}: is not a session's journal" in problems[1]
    with pytest.raises(AutoscoutError, match="this line is skipped"):
        store.ingest(kb, damaged)


def test_a_session_knows_what_was_there_when_it_started(kb: Path):
    assert store.mark(kb) == 0
    store.ingest(kb, write(kb, "a", ended(measured(1.0, tp=1)), ended(measured(None, tp=2))))
    mark = store.mark(kb)
    store.ingest(kb, write(kb, "b", ended(measured(2.0, tp=4)), of=job("other", seq_len=16)))

    assert [session for session, _ in store.measurements(kb, up_to=mark)] == ["a", "a"]
    assert [session for session, _ in store.measurements(kb)] == ["a", "a", "b"]
    assert [session for session, _ in store.measurements(kb, job=job(seq_len=16).id)] == ["b"]
    assert store.measurements(kb, context="elsewhere") == []
    assert store.measurements(kb, up_to=0) == []


def test_an_answer_brings_back_a_measurement_that_was_lost(kb: Path):
    known = measured(1.0, tp=1)
    answer = journal.Answered(measurement=known, measured_by="a")
    assert store.ingest(kb, write(kb, "b", answer)) == 1
    assert [session for session, _ in store.measurements(kb)] == ["a"]
    assert asked(kb, "SELECT type FROM decisions") == [("answered",)]

    kb.unlink()
    write(kb, "c", ended(known), answer)
    assert store.ingest_all(kb) == (1, [])
    assert asked(kb, "SELECT session, purpose FROM runs") == [("c", "search")]


def test_winning_orderings_newest_first_and_each_once(kb: Path):
    def ranked(round_: int, orderings: list[list[str]], kept: list[int]) -> journal.TournamentRanked:
        return journal.TournamentRanked(round=round_, orderings=orderings, rewards=[0.1, 0.3, 0.2], kept=kept)

    ab, ba, ca = ["tp", "pp"], ["pp", "tp"], ["mbs", "tp"]
    write(kb, "old", ranked(0, [ab, ba, ca], [1, 2]), ranked(1, [ba, ca, ab], [1, 2]), at=1.0)
    write(kb, "new", ranked(0, [ab, ba, ca], [1]), at=2.0)
    write(kb, "other", ranked(0, [["x"], ["y"], ["z"]], [0]), of=job(seq_len=16), at=3.0)
    store.ingest_all(kb)

    assert store.orderings(kb, job().id) == [ba, ca, ab]
    assert store.orderings(kb)[0] == ["x"]


def test_views_answer(kb: Path):
    objective = Objective(minimize="step_time_s", constraints=["peak_memory_gib <= 25"])
    wrong = msgspec.structs.replace(measured(0.5, tp=16), status="wrong")
    store.ingest(
        kb,
        write(
            kb,
            "s",
            journal.Decided(step=1, phase="search", arm="SPARSE", configurations=[], names=["tp2"], why="because"),
            ended(measured(3.0, tp=1), 0),  # does not meet the constraint
            ended(measured(2.0, tp=2, sp=True, ar="full", pp=4), 1),
            ended(measured(2.2, 1.5, tp=2, sp=True, ar="full", pp=4), 2),
            ended(measured(2.4, tp=4), 3),
            ended(measured(None, tp=8), 4),
            ended(wrong, 5),
            ended(measured(0.6, tp=16), 6),  # the same configuration computed something else before
            journal.BestFound(configuration=Configuration(knobs={"tp": 2}), name="tp2", value=2.0, experiments=2),
            journal.Checked(step=3, name="tp2", predicted=1.0, measured=2.0, mape=0.5, epsilon=0.2, weights={}),
            journal.SessionEnded(reason="budget", experiments=7, engine_ms_mean=1.0, engine_ms_max=2.0, at=60.0),
            of=job(objective=objective),
        ),
    )

    best = asked(kb, "SELECT job, name, value, measurements, metric FROM best")
    assert best == [("tiny", "tp2_spTrue_arfull_pp4", 2.1, 2, "step_time_s")]
    runs = asked(kb, "SELECT tp, pp, sp, ar, mbs, step_time_s FROM runs WHERE number = 1")
    assert runs == [(2, 4, True, "full", None, 2.0)]
    [(when,)] = asked(kb, "SELECT ended FROM runs WHERE number = 2")
    assert str(when) == "1970-01-01 00:00:01.500000"
    failures = asked(kb, "SELECT name, status, evidence FROM failures")
    assert failures == [("tp8", "oom", "out of memory on rank 1"), ("tp16", "wrong", "")]
    assert asked(kb, "SELECT step, predicted, measured, mape FROM checks") == [(3, 1.0, 2.0, 0.5)]
    assert asked(kb, "SELECT type, why FROM decisions LIMIT 1") == [("decided", "because")]
    assert asked(kb, "FROM orderings") == []
    [row] = store.session_rows(kb)
    assert (row["state"], row["reason"], row["experiments"], row["failed"]) == ("ended", "budget", 7, 2)
    assert (row["best"], row["value"], row["gain"]) == ("tp2", 2.0, None)


def test_the_best_is_the_largest_when_the_job_maximizes(kb: Path):
    store.ingest(
        kb,
        write(
            kb,
            "s",
            *(ended(measured(float(x), tp=x)) for x in (1, 3, 2)),
            of=job(objective=Objective(maximize="step_time_s")),
        ),
    )
    assert asked(kb, "SELECT name, value FROM best") == [("tp3", 3.0)]


def test_a_session_is_running_while_its_owner_lives(kb: Path):
    def state() -> str:
        return store.session_rows(kb)[0]["state"]

    folder = write(kb, "s").parent
    store.ingest_all(kb)
    assert state() == "interrupted"
    owner = python(
        "import sys, time, pathlib; from kb import lock\n"
        "with lock.exclusive(pathlib.Path(sys.argv[1])): print('held', flush=True); time.sleep(60)",
        folder / "owner.lock",
    )
    assert owner.stdout
    assert owner.stdout.readline() == "held\n"
    assert state() == "running"
    owner.kill()
    owner.wait()
    assert state() == "interrupted"


WRITER = """
import sys
from pathlib import Path
from kb_samples import *
from kb import store
kb, session, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
path = kb.parent / "sessions" / session / "journal.jsonl"
log = journal.Journal(path)
if not path.stat().st_size:
    log.append(started(session))
for i in range(count):
    one = ended(measured(1.0 + i, tp=i, of=session, pid=os.getpid()), i)
    log.append(one)
    store.ingest(kb, path)
    print(one.measurement.id, flush=True)
"""


def _ids(kb: Path) -> set[str]:
    return {each.id for _, each in store.measurements(kb)}


def test_a_killed_writer_loses_nothing_that_it_acknowledged(kb: Path):
    acknowledged: set[str] = set()
    chance = random.Random(0)
    for _ in range(10):
        child = python(WRITER, kb, "s", 1000)
        assert child.stdout
        acknowledged.add(child.stdout.readline().strip())  # it is at work
        time.sleep(chance.uniform(0.0, 0.25))
        child.kill()
        rest = child.stdout.read()
        child.wait()
        assert "Error" not in rest
        acknowledged |= set(rest.split("\n")[:-1])
        assert acknowledged <= _ids(kb)
    store.ingest_all(kb)
    written = journal.events(kb.parent / "sessions" / "s" / "journal.jsonl")
    assert _ids(kb) == {event.measurement.id for event in written if isinstance(event, journal.ExperimentEnded)}


def test_processes_that_write_in_turns_lose_nothing(kb: Path):
    children = [python(WRITER, kb, name, 12) for name in ("a", "b", "c")]
    outputs = [child.communicate()[0] for child in children]
    assert [child.returncode for child in children] == [0, 0, 0], outputs
    acknowledged = {line for output in outputs for line in output.split()}
    assert len(acknowledged) == 36
    assert acknowledged == _ids(kb)
    added = [row[0] for row in asked(kb, "SELECT added FROM runs")]
    assert len(set(added)) == 36


def test_default_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    monkeypatch.delenv("AUTOSCOUT_KB", raising=False)
    assert store.default_path() == Path("/data/autoscout/kb.duckdb")
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert store.default_path() == tmp_path / ".local/share/autoscout/kb.duckdb"
    for ignored in ("", "not/absolute"):  # it was the folder of the system, or one in the folder of the moment
        monkeypatch.setenv("XDG_DATA_HOME", ignored)
        monkeypatch.setenv("HOME", ignored)
        assert store.default_path() == Path(pwd.getpwuid(os.getuid()).pw_dir) / ".local/share/autoscout/kb.duckdb"
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)  # as in a container that is told a number only
    with pytest.raises(AutoscoutError, match="this user has no home folder; set HOME or XDG_DATA_HOME"):
        store.default_path()
    monkeypatch.setenv("XDG_STATE_HOME", "not/absolute")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_folders.user_folder("XDG_STATE_HOME", ".local/state") == tmp_path / ".local/state"
    monkeypatch.setenv("AUTOSCOUT_KB", "/mine.duckdb")
    assert store.default_path() == Path("/mine.duckdb")
    assert store.sessions_folder(Path("/x/kb.duckdb")) == Path("/x/sessions")


def test_importing_the_store_does_not_import_duckdb():
    child = python("import sys, kb.store, kb.query; print('duckdb' in sys.modules)")
    assert child.communicate()[0] == "False\n"


def test_two_knowledge_bases_in_one_folder_keep_their_sessions_apart(tmp_path: Path):
    usual, other, third = (tmp_path / f"{name}.duckdb" for name in ("kb", "other", "third"))
    for kb in (usual, other, third):
        store.mark(kb)
        path = store.session_folder(kb, f"of-{kb.stem}") / "journal.jsonl"
        log = journal.Journal(path)
        log.append(started(f"of-{kb.stem}"), ended(measured(1.0, tp=1, of=kb.stem)))
        log.close()
    for kb in (usual, other, third):
        assert store.ingest_all(kb) == (1, [])
        assert [session for session, _ in store.measurements(kb)] == [f"of-{kb.stem}"]


def test_an_older_knowledge_base_of_another_name_keeps_its_sessions(tmp_path: Path):
    kb = tmp_path / "mine.duckdb"
    store.mark(kb)
    (tmp_path / "mine.sessions").rmdir()  # it was made before sessions had folders of their own
    path = write(kb, "s", ended(measured(1.0, tp=1)))
    assert store.session_folder(kb, "s") == path.parent
    store.mark(tmp_path / "new.duckdb")
    assert store.ingest_all(tmp_path / "new.duckdb") == (0, [])
    assert store.ingest_all(kb) == (1, [])


def test_a_session_that_was_pulled_is_one_without_its_journal(tmp_path: Path):
    """`export` and `best` said that there is no such session, and that `sessions` lists them: which listed it."""
    kb, other = tmp_path / "ours" / "kb.duckdb", tmp_path / "theirs" / "kb.duckdb"
    store.ingest(kb, write(kb, "s", ended(measured(1.0, tp=1), 1)))
    lake.push(kb, tmp_path / "lake")
    lake.pull(other, tmp_path / "lake")
    assert [row["session"] for row in store.session_rows(other)] == ["s"]
    with pytest.raises(AutoscoutError) as pulled:
        store.journalled(other, "s")
    assert str(pulled.value).startswith(f"the rows of s are in {other}, but its journal is not here: the")
    with pytest.raises(AutoscoutError) as unknown:
        store.journalled(other, "t")
    assert str(unknown.value).startswith("there is no session t next to")
    assert (pulled.value.exit_code, unknown.value.exit_code) == (2, 2)
