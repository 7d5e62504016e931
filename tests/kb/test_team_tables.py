"""The tables of a team's catalog (kb/sharing/ducklake.py), in a database that DuckDB itself attaches as `team`: what is
written, what is fetched, and what nobody shall have any more. tests/kb/test_ducklake.py has the same in Postgres."""

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from kb_samples import ended, measured, write

from kb import journal, rows, store
from kb.connect import reader, writer, writer_if
from kb.records import AutoscoutError
from kb.sharing import ducklake, lake


@pytest.fixture
def team() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(":memory:") as con:
        con.execute("ATTACH ':memory:' AS team")
        yield con


def made(folder: Path, session: str, *steps: float) -> Path:
    kb = folder / "kb.duckdb"
    kb.parent.mkdir(exist_ok=True)
    runs = (ended(measured(step, tp=i, of=session), i) for i, step in enumerate(steps, 1))
    store.ingest(kb, write(kb, session, journal.Passed(), *runs))
    return kb


def given(kb: Path, team: duckdb.DuckDBPyConnection, folder: Path) -> list[str]:
    written = ducklake._give(kb, team, folder)
    with writer_if(kb, lambda: bool(written), results=False) as con:
        for each, name in written:
            assert con is not None
            lake.remember(con, name, each)
    return [each.session for each, _ in written]


def parts(team: duckdb.DuckDBPyConnection) -> list[tuple[str, str, int]]:
    sql = "SELECT session, kind, count(*) FROM team.part GROUP BY ALL ORDER BY ALL"
    return team.execute(sql).fetchall()


def known(kb: Path) -> list[tuple[str, int]]:
    with reader(kb) as con:
        measurements = "measurement AS m JOIN origin AS o ON o.key = m.origin"
        return con.execute(f"SELECT o.session, count(*) FROM {measurements} GROUP BY 1 ORDER BY 1").fetchall()


def test_a_session_is_written_once_and_fetched_once(team: duckdb.DuckDBPyConnection, tmp_path: Path):
    one, two = made(tmp_path / "one", "a", 1.0, 2.0), made(tmp_path / "two", "b", 3.0)
    arrived = tmp_path / "arrived.parquet"
    assert ducklake._fetch(two, team, arrived) is None  # a catalog without tables holds nothing
    assert given(one, team, tmp_path) == ["a"]
    whole = [("a", "decision", 1), ("a", "job", 1), ("a", "measurement", 2), ("a", "session", 1)]
    assert parts(team) == whole
    assert given(one, team, tmp_path) == []
    assert parts(team) == whole
    assert ducklake._fetch(one, team, arrived) is None  # its own
    assert not arrived.exists()
    assert ducklake._fetch(two, team, arrived) == set()
    assert ducklake._take_in(two, arrived, set()) == (1, 2, [])
    assert known(two) == [("a", 2), ("b", 1)]
    assert ducklake._fetch(two, team, arrived) is None
    # What came from the team does not go back to it.
    assert given(two, team, tmp_path) == ["b"]
    assert [row for row in parts(team) if row[0] == "a"] == whole
    assert ducklake._fetch(one, team, arrived) == set()
    assert ducklake._take_in(one, arrived, set()) == (1, 1, [])
    assert known(one) == [("a", 2), ("b", 1)]


def test_the_same_file_of_another_knowledge_base_is_not_written_twice(team: duckdb.DuckDBPyConnection, tmp_path: Path):
    """One that has lost what it knew of the team's files."""
    kb = made(tmp_path / "one", "a", 1.0)
    assert given(kb, team, tmp_path) == ["a"]
    before = parts(team)
    with writer(kb) as con:
        con.execute("DELETE FROM lake_file")
    assert given(kb, team, tmp_path) == ["a"]
    assert parts(team) == before


def test_a_catalog_of_an_older_version_gets_its_columns(team: duckdb.DuckDBPyConnection, tmp_path: Path):
    kb = made(tmp_path / "one", "a", 1.0)
    given(kb, team, tmp_path)
    for column in rows.LATER:
        team.execute(f"ALTER TABLE team.part DROP COLUMN {column}")
    store.ingest(kb, write(kb, "b", ended(measured(2.0, tp=2))))
    store.ingest(kb, write(kb, "c", ended(measured(3.0, tp=3))))
    assert given(kb, team, tmp_path) == ["b", "c"]
    columns = {name for (name, *_) in team.execute("DESCRIBE team.part").fetchall()}
    assert set(rows.LATER) <= columns
    assert [session for session, kind, _ in parts(team) if kind == "measurement"] == ["a", "b", "c"]


def test_what_is_forgotten_leaves_the_team_and_comes_back_to_nobody(team: duckdb.DuckDBPyConnection, tmp_path: Path):
    one, two = made(tmp_path / "one", "a", 1.0), made(tmp_path / "two", "b", 3.0)
    with writer(one) as con:
        con.execute("INSERT INTO forgotten VALUES ('z', 0.0)")
    given(one, team, tmp_path)  # before there is anything to remove
    given(two, team, tmp_path)
    with writer(one) as con:
        con.execute("INSERT INTO forgotten VALUES ('a', 0.0)")
    given(one, team, tmp_path)
    assert sorted(team.execute("FROM team.forgotten").fetchall()) == [("a",), ("z",)]
    assert {session for session, *_ in parts(team)} == {"b"}
    # A file that was fetched before says nothing of what is forgotten.
    three = made(tmp_path / "three", "c", 1.0)
    arrived = tmp_path / "arrived.parquet"
    assert ducklake._fetch(three, team, arrived) == {"a", "z"}
    assert ducklake._take_in(three, arrived, {"b"}) == (0, 0, [])
    assert known(three) == [("c", 1)]


def test_without_the_extensions_a_sentence_says_what_to_install():
    with duckdb.connect(":memory:") as con, pytest.raises(AutoscoutError) as caught:
        ducklake._load(con, "no_such_extension")
    said = "a catalog in Postgres needs DuckDB's extension no_such_extension, which is not installed; run `pip install "
    assert str(caught.value).startswith(said)
    assert str(caught.value).endswith("`, or share through a folder, which needs no extension")
    assert caught.value.exit_code == 1
