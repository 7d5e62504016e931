"""Several sources of one measurement: none is lost with another, and nothing is known twice."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kb_samples import asked, ended, job, measured, write

from kb import care, forget, imports, journal, outcomes, store
from kb.records import Measurement
from kb.sharing import lake

A, B = "import-aaaaaaaaaaaaaaaa", "import-bbbbbbbbbbbbbbbb"


def table(*of: int) -> list[Measurement]:
    return [measured(1.0 + i, tp=i) for i in of]


def brought(kb: Path, id: str, rows: list[Measurement]) -> imports.Stored:
    return imports.store_import(kb, id, job(), {"reader": "csv", "file": f"{id}.csv"}, 1.0, iter(rows))


def sizes(kb: Path) -> dict[str, int]:
    """Import → its measurements; all measurements."""
    found = asked(kb, "SELECT import, measurements FROM imports")
    return dict([*found, ("all", len(store.measurements(kb)))])


def content(kb: Path) -> list[list[tuple]]:
    tables = (
        "SELECT * EXCLUDE (added) FROM runs ORDER BY id",
        "FROM sources ORDER BY id, session",
        "FROM imports ORDER BY import",
        "FROM sessions ORDER BY session",
        "SELECT id, iterations_s FROM series ORDER BY id",
    )
    return [asked(kb, sql) for sql in tables]


def sound(kb: Path) -> bool:
    return all(finding.ok for finding in care.check(kb))


@pytest.fixture
def kb(tmp_path: Path) -> Path:
    """Two imports that have two of six rows in common."""
    path = tmp_path / "home" / "kb.duckdb"
    assert brought(path, A, table(1, 2, 3, 4)) == imports.Stored(A, 4, 0)
    assert brought(path, B, table(3, 4, 5, 6)) == imports.Stored(B, 2, 2)
    return path


def test_each_import_has_all_of_its_rows(kb: Path):
    assert sizes(kb) == {A: 4, B: 4, "all": 6}
    assert asked(kb, "SELECT count(*), count(*) FILTER (WHERE in_runs) FROM sources") == [(8, 6)]
    assert sound(kb)


@pytest.mark.parametrize(("first", "left"), [(A, B), (B, A)])
def test_undoing_one_import_keeps_what_the_other_has(kb: Path, first: str, left: str):
    before = content(kb)
    gone = forget.forget(kb, [first])
    assert gone.measurements == 2
    assert "2 measurements stay, because other sessions or imports contain them too" in gone.left
    assert sizes(kb) == {left: 4, "all": 4}
    assert {session for session, _ in store.measurements(kb)} == {left}
    assert sound(kb)
    assert brought(kb, first, table(1, 2, 3, 4) if first == A else table(3, 4, 5, 6)) == imports.Stored(first, 2, 2)
    assert content(kb) == before
    forget.forget(kb, [A, B])
    assert sizes(kb) == {"all": 0}
    assert asked(kb, "SELECT (SELECT count(*) FROM further_source), (SELECT count(*) FROM series)") == [(0, 0)]


def test_what_was_forgotten_of_two_comes_back_out_of_the_trash(kb: Path):
    before = content(kb)
    for name in (A, B):
        forget.forget(kb, [name])
        assert forget.undelete(kb, [name]).measurements == 2
        assert content(kb) == before
        assert sound(kb)


def test_a_session_and_an_import_share_a_row(kb: Path):
    """Who measured it has the row, whoever came first; the other one keeps it when that is forgotten."""
    shared = table(1)[0]
    store.ingest(kb, write(kb, "zz", ended(shared, 1), ended(measured(9.0, tp=9), 2)))
    assert asked(kb, "SELECT session, number, purpose FROM runs WHERE tp = 1") == [("zz", 1, "search")]
    assert asked(kb, "SELECT experiments FROM sessions") == [(2,)]
    assert sizes(kb)[A] == 4
    # Also for who asks what one source knows.
    counted = outcomes.outcomes(kb, job().id, ["step_time_s"], sessions=[A])
    assert sorted(o.knobs["tp"] for o in counted) == [1, 2, 3, 4]
    assert {o.runs for o in counted} == {1}
    assert [o.runs for o in outcomes.outcomes(kb, job().id, ["step_time_s"], sessions=[A, "zz"])] == [1] * 5

    assert forget.forget(kb, ["zz"]).measurements == 1
    assert asked(kb, "SELECT session, number, purpose FROM runs WHERE tp = 1") == [(A, None, "import")]
    assert forget.undelete(kb, ["zz"]).measurements == 1
    assert asked(kb, "SELECT session, number, purpose FROM runs WHERE tp = 1") == [("zz", 1, "search")]
    assert sound(kb)


def test_who_was_only_answered_is_no_source(tmp_path: Path):
    """Its journal speaks for the one that measured until that one speaks for itself."""
    kb = tmp_path / "kb.duckdb"
    shared = table(1)[0]
    store.ingest(kb, write(kb, "later", journal.Answered(measurement=shared, measured_by="first")))
    rows = "SELECT session, number, purpose FROM sources"
    assert asked(kb, rows) == [("first", None, "answered")]
    store.ingest(kb, write(kb, "first", ended(shared, 3)))
    assert asked(kb, rows) == [("first", 3, "search")]
    store.ingest(kb, write(kb, "third", journal.Answered(measurement=shared, measured_by="other")))
    assert asked(kb, rows) == [("first", 3, "search")]
    assert forget.forget(kb, ["first"]).measurements == 1


def test_who_measured_and_who_was_answered_arrive_together(tmp_path: Path):
    shared, folder = table(1)[0], tmp_path / "lake"
    ann, bob = tmp_path / "ann" / "kb.duckdb", tmp_path / "bob" / "kb.duckdb"
    store.ingest(ann, write(ann, "later", journal.Answered(measurement=shared, measured_by="first")))
    store.ingest(bob, write(bob, "first", ended(shared, 3)))
    lake.push(ann, folder)
    lake.push(bob, folder)
    files = sorted(folder.rglob("*.parquet"))
    assert len(files) == 3
    for i, order in enumerate((files, files[::-1])):
        kb = tmp_path / str(i) / "kb.duckdb"
        lake.take(kb, order)
        assert asked(kb, "SELECT session, number, purpose FROM sources") == [("first", 3, "search")]
        assert lake.push(kb, folder)[:2] == (0, 0)


def test_what_was_pushed_and_pulled_is_not_pushed_again(kb: Path, tmp_path: Path):
    """Ann and Bob have measured and imported things alike; then both have all, and nothing moves any more."""
    ann, bob, folder = kb, tmp_path / "bob" / "kb.duckdb", tmp_path / "lake"
    store.ingest(ann, write(ann, "a1", *map(ended, table(1, 20, 21))))
    store.ingest(bob, write(bob, "b1", *map(ended, table(20, 21, 22))))
    brought(bob, B, table(3, 4, 5, 6))
    for _ in range(2):
        for one in (ann, bob):
            lake.push(one, folder)
            lake.pull(one, folder)
    files = sorted(folder.rglob("*.parquet"))
    assert len(files) == 4
    for one in (ann, bob):
        assert lake.push(one, folder)[:2] == (0, 0)
        assert lake.pull(one, folder)[:2] == (0, 0)
        assert sound(one)
    assert sorted(folder.rglob("*.parquet")) == files
    # Who has which row is the same, but for the place where each stands: under our own name, if it is ours, too.
    everything = "SELECT id, session, purpose FROM sources ORDER BY ALL"
    assert asked(ann, everything) == asked(bob, everything)
    assert content(ann)[2:] == content(bob)[2:]
    assert sizes(ann) == {A: 4, B: 4, "all": 9}


sources = st.lists(
    st.tuples(st.sampled_from(["a", "b", A, B]), st.lists(st.integers(1, 5), min_size=1, max_size=4)), max_size=4
)


@pytest.mark.thorough
@settings(max_examples=settings().max_examples // 6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(given_=sources, forgotten=st.lists(st.sampled_from(["a", "b", A, B]), max_size=3, unique=True))
def test_the_order_of_arrival_does_not_matter(
    tmp_path_factory: pytest.TempPathFactory, given_: list[tuple[str, list[int]]], forgotten: list[str]
):
    """Whatever came when, and whatever was forgotten, the knowledge base is that of the sources that are left."""
    folder = tmp_path_factory.mktemp("order")
    parts: dict[str, set[int]] = {}
    for name, of in given_:
        parts.setdefault(name, set()).update(of)

    def made(names: list[str], kb: Path) -> Path:
        store.mark(kb)
        for name in names:
            rows = table(*sorted(parts[name]))
            if name in (A, B):
                brought(kb, name, rows)
            else:
                store.ingest(kb, write(kb, name, *map(ended, rows)))
        return kb

    kb = made(list(parts), folder / "one" / "kb.duckdb")
    gone = [name for name in forgotten if name in parts]
    if gone:
        forget.forget(kb, gone)
    left = [name for name in reversed(parts) if name not in gone]
    assert content(kb) == content(made(left, folder / "other" / "kb.duckdb"))
    assert sound(kb)
    if gone:
        forget.undelete(kb, gone)
        assert content(kb) == content(made(list(reversed(parts)), folder / "third" / "kb.duckdb"))
