import datetime
import io
import json
import os
import pickle
import signal
import subprocess
import time
from pathlib import Path

import duckdb
import pytest
from cases import few
from kb_samples import ended, measured, python, write

from kb import lock, query, store
from kb.connect import lock_path
from kb.query_formats import render
from kb.records import AutoscoutError


@pytest.fixture(scope="module")
def kb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("query") / "kb.duckdb"
    store.ingest(path, write(path, "s", *(ended(measured(float(i), tp=i), i) for i in range(1, 6))))
    return path


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1",
        "FROM runs",
        "WITH x AS (SELECT 1) FROM x",
        "SHOW TABLES",
        "DESCRIBE runs",
        "SUMMARIZE runs",
        "EXPLAIN FROM runs",
        "PIVOT runs ON status USING count(*) GROUP BY job",
        "SELECT 1;",
        "-- a comment\nVALUES (1)",
    ],
)
def test_queries_answer(kb: Path, sql: str):
    assert query.run(kb, sql).rows


_REFUSED = [
    "INSERT INTO job SELECT * FROM job",
    "DELETE FROM measurement",
    "UPDATE measurement SET name = ''",
    "DROP TABLE job",
    "CREATE TABLE x (y INTEGER)",
    "CREATE TEMP TABLE x AS SELECT 1",
    "CREATE TABLE x AS SELECT 1; SELECT 1",
    "COPY job TO 'out.csv'",
    "EXPORT DATABASE 'out'",
    "ATTACH 'out.duckdb'",
    "SET threads = 1",
    "INSTALL httpfs",
    "LOAD httpfs",
    "CALL pragma_version()",
    "BEGIN",
    "CHECKPOINT",
    "PRAGMA enable_profiling",
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM '/etc/passwd'",
    "SELECT * FROM glob('/*')",
    "SELECT 1; SELECT 2",
    "SELECT 1; DROP TABLE job",
    "SELECT nothing FROM runs",
    "SELECT CAST('x' AS INTEGER)",
    "SELECT now()",
    "SELECT write_log('x')",
    'EXPLAIN ANALYZE SELECT "sleep_ms" /* a comment */ (1)',
    "PIVOT (SELECT getvariable('x') AS a) ON a USING count(*)",
    "FROM query('SELECT 1')",
    "SELECT json_execute_serialized_sql('{}')",
    "CREATE TEMP TYPE x AS ENUM ('a'); SELECT 1",
    "SELECT repeat('x', 4000000000)",
    "SELECT " + "abs(" * 2000 + "1" + ")" * 2000,
    "SELECT '\ud800'",
    "",
    "-- only a comment",
]


@pytest.mark.parametrize("sql", few(_REFUSED, 14))
def test_everything_else_is_refused_with_a_sentence(kb: Path, sql: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(kb.parent)
    before = sorted(kb.parent.iterdir())
    with pytest.raises(AutoscoutError) as caught:
        query.run(kb, sql)
    assert caught.value.exit_code == 2
    assert sorted(kb.parent.iterdir()) == before
    assert len(store.measurements(kb)) == 5


def test_an_error_shows_where(kb: Path):
    with pytest.raises(AutoscoutError) as caught:
        query.run(kb, "SELECT name,\n  speed FROM runs")
    sentence, line, caret = str(caught.value).split("\n")
    assert 'Referenced column "speed" not found' in sentence
    assert line == "LINE 2:   speed FROM runs"
    assert caret.index("^") == line.index("speed")


def test_limit(kb: Path):
    assert len(query.run(kb, "FROM runs", 5).rows) == 5
    assert not query.run(kb, "FROM runs", 5).truncated
    assert len(query.run(kb, "FROM runs", 4).rows) == 4
    assert query.run(kb, "FROM runs", 4).truncated
    assert len(query.run(kb, "FROM runs", None).rows) == 5
    assert len(query.run(kb, "FROM range(100_000_000_000)", 10).rows) == 10  # the rest is never computed


def test_ctrl_c_ends_a_query(kb: Path):
    child = python(
        "import signal, sys, pathlib; from kb import query\n"
        # A shell's background jobs, such as these tests, are started with the signal ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "print('started', flush=True)\n"
        "try: query.run(pathlib.Path(sys.argv[1]),"
        " 'SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE (a.range * b.range) % 7 = 3')\n"
        "except KeyboardInterrupt: print('interrupted')",
        kb,
    )
    assert child.stdout
    assert child.stdout.readline() == "started\n"
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(1.0)
    child.send_signal(signal.SIGINT)
    assert child.communicate()[0] == "interrupted\n"
    assert store.mark(kb) == 5


LONG = "SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE (a.range * b.range) % 7 = 3"


def test_a_query_that_takes_too_long_is_ended(kb: Path):
    with pytest.raises(AutoscoutError, match="stopped after 1 s") as caught:
        query.run(kb, LONG, seconds=1)
    assert caught.value.exit_code == 2
    assert not list(kb.parent.glob(".asked-*/"))


def test_a_long_query_lets_sessions_write(kb: Path):
    child = python(f"import sys, pathlib; from kb import query; query.run(pathlib.Path(sys.argv[1]), {LONG!r})", kb)
    try:
        while not list(kb.parent.glob(".asked-*/kb.duckdb")):  # by now it asks a copy
            assert child.poll() is None
            time.sleep(0.05)
        with lock.exclusive(lock_path(kb), wait_s=30):
            assert child.poll() is None
    finally:
        child.kill()
        child.communicate()


def test_what_a_query_answers_are_values_only(kb: Path):
    """Whoever took over the query's process could send anything."""
    with pytest.raises(pickle.UnpicklingError, match=r"posix.system|os.system"):
        query._Plain(io.BytesIO(pickle.dumps(os.system))).load()


EVERYTHING = r"""
SELECT * FROM (VALUES
    (1, 'a|b', true, 1.5::DOUBLE, 2.50::DECIMAL(9, 2), TIMESTAMP '2020-01-02 03:04:05', [1, NULL], {'x': 'y'},
     '{"k": [1.0]}'::JSON, 170141183460469231731687303715884105727::HUGEINT, '\xC3\xBC'::BLOB, NULL),
    (2, NULL, false, 'nan'::DOUBLE, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)
) AS t(i, s, b, d, dec, ts, l, st, j, h, bl, n)
"""


def test_as_table(kb: Path):
    text = render(query.run(kb, "SELECT name, step_time_s / 3 AS x FROM runs", 2), "table")
    assert text == "name         x\n────  ────────\ntp1   0.333333\ntp2   0.666667\n… only the first 2 rows are shown\n"
    assert render(query.run(kb, "SELECT 'a\nb' AS t WHERE false"), "table") == "t\n─\n"
    assert render(query.run(kb, "SELECT repeat('x', 100) AS t"), "table") == f"t\n{'─' * 60}\n{'x' * 59}…\n"


def test_as_csv(kb: Path):
    text = render(
        query.run(kb, """SELECT 'a,"b"' AS t, [1, 2] AS l, 0.1::DOUBLE + 0.2::DOUBLE AS d, NULL AS n"""),
        "csv",
    )
    assert text == 't,l,d,n\n"a,""b""","[1,2]",0.30000000000000004,\n'


def test_as_markdown(kb: Path):
    text = render(query.run(kb, "SELECT 'a|b' AS t, 1 AS i"), "markdown")
    assert text == "| t | i |\n| --- | ---: |\n| a\\|b | 1 |\n"


def test_as_json(kb: Path):
    text = render(query.run(kb, EVERYTHING), "json")
    first, second = json.loads(text)
    assert first == {
        "i": 1,
        "s": "a|b",
        "b": True,
        "d": 1.5,
        "dec": 2.5,
        "ts": "2020-01-02T03:04:05",
        "l": [1, None],
        "st": {"x": "y"},
        "j": {"k": [1.0]},
        "h": str(2**127 - 1),
        "bl": str("ü".encode()),
        "n": None,
    }
    assert set(second.values()) == {2, None, False}
    assert json.loads(render(query.run(kb, "SELECT 1 AS a WHERE false"), "json")) == []
    assert json.loads(render(query.run(kb, "SELECT 1 AS a, 2 AS a, 3 AS A"), "json")) == [{"a": 1, "a_2": 2, "A_3": 3}]


def test_as_parquet(kb: Path, tmp_path: Path):
    for sql in (EVERYTHING, "FROM runs", "FROM best", "FROM orderings", "SELECT 1 AS a, 2 AS a"):
        table = query.run(kb, sql)
        path = tmp_path / "t.parquet"
        content = render(table, "parquet")
        assert isinstance(content, bytes)
        path.write_bytes(content)
        with duckdb.connect() as con:
            result = con.execute(f"FROM '{path}'")
            assert [column[0] for column in result.description] == table.columns
            rows = result.fetchall()
        assert len(rows) == len(table.rows)
        if sql == "FROM runs":
            assert rows == table.rows
        if sql == EVERYTHING:
            assert rows[0][:9] == table.rows[0][:9]
            assert rows[0][5] == datetime.datetime(2020, 1, 2, 3, 4, 5)


def test_an_unknown_format(kb: Path):
    with pytest.raises(AutoscoutError, match="choose one of table, csv, json, parquet, markdown"):
        render(query.run(kb, "SELECT 1"), "xml")
