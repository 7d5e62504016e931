"""What is looked up is what all rows say, whatever entered or left, in whatever order, and after a kill."""

import re
import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kb_samples import asked, ended, job, measured, python, write

from kb import care, connect, forget, kept_up, query, store
from kb.imports import store_import
from kb.journal import Confirmed
from kb.records import Objective
from kb.sharing import author_trust, lake

MIGRATIONS = Path(__file__).parents[2] / "migrations"


def anew(view: str, file: str) -> str:
    """How an earlier schema computed a view, of all rows."""
    text = (MIGRATIONS / file).read_text()
    sql = re.split(rf"CREATE (?:OR REPLACE )?VIEW {view} AS\n", text)[1].split(";\n")[0]
    return re.sub(r"\bFROM results\b", "FROM results_anew", sql)


ANEW = {
    "results": "FROM results_anew",
    "best": anew("best", "0004_trust.sql"),
    "knob_effects": anew("knob_effects", "0002_many_sources.sql"),
}


def holds(kb: Path) -> None:
    for view, sql in ANEW.items():
        kept, fresh = (sorted(map(repr, asked(kb, each))) for each in (f"FROM {view}", sql))
        assert kept == fresh, view


OBJECTIVES = [
    Objective(minimize="step_time_s"),
    Objective(minimize="step_time_s", constraints=["peak_memory_gib <= 12"]),
    Objective(maximize="tokens_per_s"),
]
RUNS = st.lists(st.tuples(st.sampled_from([None, 0.5, 1.0, 1.25, 2.0]), st.integers(1, 3)), min_size=1, max_size=4)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("ingest"), st.integers(0, 2), st.integers(0, 1), RUNS),
        st.tuples(st.just("import"), st.integers(0, 1), st.integers(0, 1), RUNS),
        st.tuples(st.just("pull"), st.integers(0, 1)),
        st.tuples(st.sampled_from(["trust", "doubt", "forget", "undelete", "look"])),
    ),
    min_size=2,
    max_size=7,
)


def play(root: Path, events: list[tuple[Any, ...]]) -> None:
    kb, theirs = root / "ours" / "kb.duckdb", root / "theirs" / "kb.duckdb"
    store.ingest(kb, write(kb, "first", ended(measured(1.0, tp=1), 1)))
    for n, (what, *of) in enumerate(events):
        if what == "ingest":
            aim, seq, runs = of
            rows = [ended(measured(s, tp=tp, mbs=n), i) for i, (s, tp) in enumerate(runs, 1)]
            winner = rows[0].measurement
            said = Confirmed(winner=winner.configuration, name=winner.name, value=0.4, default_name="tp1",
                             default_value=1.0, gain=2.5, low=2.0, high=3.0, pairs=3)  # fmt: skip
            of_job = job(seq_len=8 + seq, objective=OBJECTIVES[aim])
            store.ingest(kb, write(kb, f"s{n}", *rows, *([said] if n % 2 else []), of=of_job))
        elif what == "import":
            whose, seq, runs = of
            rows = [measured(s, tp=tp, pp=n) for s, tp in runs]
            about = {"reader": "table", "file": f"{n}.csv"}
            store_import((kb, theirs)[whose], f"import-{n:016x}", job(seq_len=8 + seq), about, 1.0, iter(rows))
        elif what == "pull":
            lake.push(theirs if of[0] else kb, root / "lake")
            lake.pull(kb if of[0] else theirs, root / "lake")
        elif what in ("trust", "doubt"):
            author_trust.decide(kb, "unsigned", "answer" if what == "trust" else "hint", "")
        elif what == "forget" and n:
            sessions = [s for (s,) in asked(kb, "SELECT id FROM session ORDER BY hash(id) LIMIT 1")]
            forget.forget(kb, sessions)
        elif what == "undelete":
            forget.undelete(kb, forget.deleted(kb)[:1])
        else:
            holds(kb)
    holds(kb)
    assert {each.subject: each.ok for each in care.check(kb)}["results"]


def test_it_is_what_all_rows_say(tmp_path: Path):
    play(
        tmp_path,
        [
            ("ingest", 1, 0, [(1.0, 1), (2.0, 2), (None, 3)]),
            ("import", 1, 0, [(0.5, 1), (None, 2)]),
            ("pull", 1),
            ("look",),
            ("trust",),
            ("ingest", 2, 1, [(0.5, 3)]),
            ("look",),
            ("forget",),
            ("doubt",),
        ],
    )


@pytest.mark.thorough
@pytest.mark.timeout(1800)
@settings(max_examples=max(settings().max_examples // 10, 2))
@given(events=EVENTS)
def test_it_is_what_all_rows_say_in_any_order(tmp_path_factory: pytest.TempPathFactory, events: list[tuple[Any, ...]]):
    play(tmp_path_factory.mktemp("kept"), events)


def test_a_session_only_says_that_something_changed_and_who_asks_pays(tmp_path: Path):
    kb = tmp_path / "kb.duckdb"
    store.ingest(kb, write(kb, "s", ended(measured(1.0, tp=1), 1)))
    with connect.reader(kb) as con:
        assert kept_up.behind(con)
        assert con.execute("FROM results").fetchall() == []
    assert query.run(kb, "SELECT name, value FROM results").rows == [("tp1", 1.0)]
    with connect.reader(kb) as con:
        assert not kept_up.behind(con)


def test_only_jobs_that_changed_are_computed_anew(tmp_path: Path):
    kb = tmp_path / "kb.duckdb"
    for n in range(3):
        store.ingest(kb, write(kb, f"s{n}", ended(measured(1.0 + n, tp=1), 1), of=job(seq_len=8 + n)))
    with connect.writer_if(kb, lambda: True, results=False) as con:
        assert con is not None
        assert len(kept_up.refresh(con)) == 4  # and the word that something changed
        assert kept_up.refresh(con) == []
    store.ingest(kb, write(kb, "more", ended(measured(0.5, tp=2), 1), of=job(seq_len=9)))
    with connect.writer_if(kb, lambda: True, results=False) as con:
        assert con is not None
        assert set(kept_up.refresh(con)) == {"", job(seq_len=9).id}


def test_a_writer_that_is_killed_before_leaves_it_to_the_next_who_asks(tmp_path: Path):
    kb = tmp_path / "kb.duckdb"
    store.ingest(kb, write(kb, "s", ended(measured(1.0, tp=1), 1)))
    assert query.run(kb, "SELECT value FROM best").rows == [(1.0,)]
    killed = python(
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from kb import connect\n"
        "with connect.writer(Path(sys.argv[1])) as con:\n"
        "    con.execute('UPDATE measurement SET step_time_s = 0.5, added = added + 1')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n",
        kb,
    )
    assert killed.wait() == -signal.SIGKILL
    assert query.run(kb, "SELECT value FROM best").rows == [(0.5,)]


def test_who_may_only_read_is_told_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`best` of a knowledge base on a read-only share lacked what came since somebody with write access had asked."""
    kb = tmp_path / "kb.duckdb"
    store.ingest(kb, write(kb, "s", ended(measured(1.0, tp=1), 1)))
    assert asked(kb, "SELECT value FROM best") == [(1.0,)]
    store.ingest(kb, write(kb, "more", ended(measured(0.5, tp=2), 1)))
    monkeypatch.setattr("os.access", lambda path, mode, **how: False)
    holds(kb)
    assert asked(kb, "SELECT value FROM best") == [(0.5,)]
    assert query.run(kb, "SELECT value FROM best").rows == [(0.5,)]
    assert {each.subject: each.ok for each in care.check(kb)}["results"]


def test_a_check_names_what_is_not_as_its_rows_say(tmp_path: Path):
    kb = tmp_path / "kb.duckdb"
    store.ingest(kb, write(kb, "s", ended(measured(1.0, tp=1), 1)))
    assert {each.subject: each.ok for each in care.check(kb)}["results"]
    with connect.writer(kb) as con:
        con.execute("UPDATE kept_result SET value = 0.1")
    [found] = [each for each in care.check(kb) if each.subject == "results"]
    assert not found.ok
