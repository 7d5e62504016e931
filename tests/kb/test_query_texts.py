"""What people's SQL answers, as text: every kind of cell in every format, and each refusal as a whole sentence."""

import datetime
import decimal
import json
import os
import pickle
import signal
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest
from kb_samples import python

from kb import allowed, query, query_formats, query_room
from kb.query import Table
from kb.query_formats import render
from kb.records import AutoscoutError

WHEN = datetime.datetime(2026, 11, 24, 1, 2, 3)


def table(types: str, *rows: tuple[Any, ...], truncated: bool = False) -> Table:
    kinds = types.split()
    return Table([f"c{i}" for i in range(len(kinds))], kinds, list(rows), truncated)


def test_numbers_stand_right_and_words_left():
    rows = table("INTEGER VARCHAR DOUBLE", (7, "a", 0.5), (12345, "bcd", 1 / 3), truncated=True)
    assert render(rows, "table") == (
        "   c0  c1         c2\n"
        "─────  ───  ────────\n"
        "    7  a         0.5\n"
        "12345  bcd  0.333333\n"
        "… only the first 2 rows are shown\n"
    )
    assert render(rows, "markdown") == (
        "| c0 | c1 | c2 |\n| ---: | --- | ---: |\n| 7 | a | 0.5 |\n| 12345 | bcd | 0.333333 |\n"
    )
    assert render(table("VARCHAR"), "table") == "c0\n──\n"
    # What is at the right end leaves no blanks.
    assert render(table("VARCHAR", ("long one",), ("x",)), "table") == "c0\n────────\nlong one\nx\n"


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        *((kind, True) for kind in ("INT", "INTEGER", "UTINYINT", "SMALLINT", "BIGINT", "UHUGEINT", "DOUBLE", "FLOAT")),
        *((kind, True) for kind in ("DECIMAL(9,2)", "UBIGINT")),
        *((kind, False) for kind in ("VARCHAR", "INTEGER[]", "BOOLEAN", "XINT", "DOUBLES")),
    ],
)
def test_which_kinds_are_numbers(kind: str, number: bool):
    assert query_formats._is_number(kind) is number


def test_a_cell_is_one_line_of_sixty_characters():
    assert query_formats._cell("x" * 60) == "x" * 60
    assert query_formats._cell("x" * 61) == "x" * 59 + "…"
    assert query_formats._cell(" a\n\tb ") == "a b"
    assert query_formats._cell(1234567.0) == "1.23457e+06"


@pytest.mark.parametrize(
    ("value", "text", "plain"),
    [
        (None, "", None),
        (True, "true", True),
        (False, "false", False),
        (0, "0", 0),
        (2**63 - 1, str(2**63 - 1), 2**63 - 1),
        (2**63, str(2**63), str(2**63)),  # larger than other readers of JSON can hold
        (1 - 2**63, str(1 - 2**63), 1 - 2**63),
        (0.1, "0.1", 0.1),
        (float("nan"), "nan", None),
        (float("inf"), "inf", None),
        ("a", "a", "a"),
        ([1, None, float("nan")], "[1,null,null]", [1, None, None]),
        ((1, (2,)), "(1, (2,))", [1, [2]]),
        ({1: decimal.Decimal("2.5")}, '{"1":2.5}', {"1": 2.5}),
        (decimal.Decimal("2.50"), "2.50", 2.5),
        (WHEN, "2026-11-24 01:02:03", "2026-11-24T01:02:03"),
        (WHEN.date(), "2026-11-24", "2026-11-24"),
        (b"\x00", "b'\\x00'", "b'\\x00'"),
    ],
)
def test_values_as_text_and_as_json_has_them(value: Any, text: str, plain: Any):
    assert query_formats._text(value) == text
    assert query_formats._plain(value) == plain
    assert type(query_formats._plain(value)) is type(plain)


def test_csv_and_json_whole():
    rows = table("JSON VARCHAR", ('{"k":[1.0]}', None), (None, 'a"b'))
    assert render(rows, "csv") == 'c0,c1\n"{""k"":[1.0]}",\n,"a""b"\n'
    assert render(rows, "json") == '[{"c0":{"k":[1.0]},"c1":null},\n {"c0":null,"c1":"a\\"b"}]\n'
    # Only a column of JSON is embedded.
    assert render(table("VARCHAR", ("[1]",)), "json") == '[{"c0":"[1]"}]\n'


def test_parquet_has_every_kind_of_value(tmp_path: Path):
    kinds = ["INTEGER", "NULL", "BLOB", "INTERVAL", "INTEGER[]", "STRUCT(a INTEGER)", "MAP(VARCHAR, INTEGER)", "JSON"]
    span = datetime.timedelta(days=1, seconds=2, microseconds=3000)
    row = (1, None, b"\x00\xff", span, [1, None], {"a": 2}, {"k": 3}, '{"x": 1}')
    names = [f'c "{i}"' for i in range(len(kinds))]
    content = render(Table(names, kinds, [row, (None,) * 8], False), "parquet")
    assert isinstance(content, bytes)
    (tmp_path / "t.parquet").write_bytes(content)
    with duckdb.connect() as con:
        found = con.execute(f"FROM '{tmp_path}/t.parquet'")
        assert [column[0] for column in found.description] == names
        assert [str(column[1]) for column in found.description][:2] == ["INTEGER", "INTEGER"]
        assert found.fetchall() == [row, (None,) * 8]


def test_names_of_columns_are_told_apart_whatever_their_case():
    assert query._distinct(["a", "A", "a", "a_2", "b"]) == ["a", "A_2", "a_3", "a_2_2", "b"]


def test_formats_are_named():
    with pytest.raises(AutoscoutError) as caught:
        render(table("VARCHAR"), "xml")
    assert str(caught.value) == "there is no format 'xml'; choose one of table, csv, json, parquet, markdown"
    assert caught.value.exit_code == 2


@pytest.fixture(scope="module")
def kb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from kb import store

    path = tmp_path_factory.mktemp("texts") / "kb.duckdb"
    store.mark(path)
    return path


def refused(kb: Path, sql: str, **options: Any) -> tuple[str, int]:
    with pytest.raises(AutoscoutError) as caught:
        query.run(kb, sql, **options)
    return str(caught.value), caught.value.exit_code


def asked(kb: Path, sql: str, **changes: Any) -> Any:
    """What the query room answers, in this process; its limits are put back by `room`."""
    request = query_room.Request(str(kb), sql, 10, 0, 60.0, 256, "")
    return query_room._answer(msgspec.structs.replace(request, **changes))


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a query room would ask of the kernel, which holds for the rest of a process."""
    limits: dict[str, Any] = {}
    monkeypatch.setattr("resource.setrlimit", lambda what, limit: limits.update({f"limit {what}": limit}))
    monkeypatch.setattr("signal.setitimer", lambda which, seconds: limits.update({f"timer {which}": seconds}))
    monkeypatch.setattr("signal.signal", lambda *to: None)
    return limits


def test_the_kernel_is_told_time_and_memory(kb: Path, room: dict[str, Any]):
    import resource

    assert asked(kb, "SELECT 1 AS a, 'x' AS b")[0] == ["a", "b"]
    space = (256 + 1536) * 2**20
    assert room == {
        f"timer {signal.ITIMER_REAL}": 60.0,
        f"limit {resource.RLIMIT_AS}": (space, space),
        f"limit {resource.RLIMIT_CORE}": (0, 0),
    }


def test_rows_from_an_offset_on(kb: Path, room: dict[str, Any]):
    def rows(sql: str, **changes: Any) -> list[int]:
        return [row[0] for row in asked(kb, sql, **changes)[2]]

    assert rows("FROM range(5)") == [0, 1, 2, 3, 4]
    assert rows("FROM range(5)", count=2, offset=1) == [1, 2]
    assert rows("FROM range(5)", count=None, offset=3) == [3, 4]
    assert rows("FROM range(5)", offset=9) == []
    # More than are looked through at once.
    assert rows("FROM range(20_003)", offset=20_001) == [20_001, 20_002]


def test_a_copy_may_use_temporary_files_and_the_file_itself_may_not(kb: Path, room: dict[str, Any], tmp_path: Path):
    settings = "SELECT current_setting('temp_directory'), current_setting('max_temp_directory_size')"
    with query_room._opened(query_room.Request(str(kb), "", 1, 0, 1.0, 256, str(tmp_path))) as con:
        assert con.execute(settings).fetchall() == [(f"{tmp_path}/spilled", "4.0 GiB")]
        limits = "SELECT current_setting('memory_limit'), current_setting('threads')"
        assert con.execute(limits).fetchall() == [("256.0 MiB", min(4, os.cpu_count() or 1))]
        for name, value in (("enable_external_access", False), ("lock_configuration", True)):
            assert con.execute(f"SELECT current_setting('{name}')").fetchall() == [(value,)]
    assert (tmp_path / "kb.duckdb").read_bytes() == kb.read_bytes()
    with query_room._opened(query_room.Request(str(kb), "", 1, 0, 1.0, 256, "")) as con:
        assert con.execute("SELECT current_setting('temp_directory')").fetchall() == [("",)]


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("", "there is no SQL to run; `FROM runs` shows all measurements"),
        ("DROP TABLE job", "DROP is refused: SQL here only reads the knowledge base; start with SELECT or FROM"),
        ("SELECT 1; SELECT 2", "the text contains more than one query; run one at a time"),
        (
            "CREATE TEMP TYPE x AS ENUM ('a'); SELECT 1",
            "CREATE is refused: SQL here only reads the knowledge base; start with SELECT or FROM",
        ),
        (
            "SELECT write_log('x')",
            "SQL here cannot call write_log(): only functions that compute values from their arguments are allowed",
        ),
        (
            'EXPLAIN SELECT "sleep_ms"/**/ (1)',
            "SQL here cannot call sleep_ms(): only functions that compute values from their arguments are allowed",
        ),
        ("SELECT getvariable('x') + pg_sleep(1)", None),
        (
            "SELECT write_log('x'), getvariable('x')",
            "SQL here cannot call getvariable(): only functions that compute values from their arguments are allowed",
        ),
    ],
)
def test_what_is_refused_in_whole_sentences(kb: Path, room: dict[str, Any], sql: str, said: str | None):
    with pytest.raises(AutoscoutError) as caught:
        asked(kb, sql)
    assert caught.value.exit_code == 2
    assert str(caught.value) == said or (said is None and "SQL here cannot call getvariable()" in str(caught.value))


def test_what_is_let_through(kb: Path, room: dict[str, Any]):
    assert asked(kb, "EXPLAIN SELECT abs(1)")[2]
    assert asked(kb, "PIVOT (SELECT 'a' AS k) ON k USING count(*)")[2] == [(1,)]
    assert asked(kb, "SELECT 1 + abs(-1) /* sleep_ms (1) */")[2] == [(2,)]
    with pytest.raises(AutoscoutError, match=r"the query failed: .*nowhere does not exist") as caught:
        asked(kb, "SELECT nowhere(1)")
    assert caught.value.exit_code == 2


def test_functions_by_name_wherever_they_stand():
    assert set(allowed._in_tree({"a": [{"function_name": "f"}, {"function_name": "+", "is_operator": True}]})) == {"f"}
    assert list(allowed._before_parentheses('SELECT "a""b"(1), abs (2), c FROM (x) -- d(1)')) == ['a"b', "abs", "FROM"]


@pytest.mark.parametrize(
    ("of_duckdb", "ours"),
    [
        ("Binder Error:  x\ny\n\nLINE 1: x\n  ^", "the query failed: Binder Error: x y\nLINE 1: x\n  ^"),
        ("Parser Error: x", "the query failed: Parser Error: x"),
        (
            "Permission Error: file system operations are disabled",
            "SQL here cannot touch files or load extensions (Permission Error: file system operations are disabled); "
            "use --out to write a result",
        ),
        (
            "Invalid: x is disabled through configuration",
            "SQL here cannot touch files or load extensions (Invalid: x is disabled through configuration); "
            "use --out to write a result",
        ),
        ("attached in read-only mode", "SQL here only reads the knowledge base (attached in read-only mode)"),
        ("No module named 'pytz'", "times with a time zone cannot be shown; cast the column with ::TIMESTAMP"),
    ],
)
def test_duckdbs_words_become_a_sentence(of_duckdb: str, ours: str):
    assert query_room._sentence(of_duckdb) == ours


def test_a_query_that_needs_too_much_memory(kb: Path, room: dict[str, Any]):
    with pytest.raises(AutoscoutError) as caught:
        asked(kb, "SELECT list(range) FROM range(30_000_000)", memory_mib=16)
    assert str(caught.value) == (
        "the query needs more than 16 MiB of memory or 4096 MiB of temporary files; select less data, or raise the "
        "limit "
        "with --memory-mib"
    )
    assert caught.value.exit_code == 2


def test_what_is_no_text_and_what_takes_too_long(kb: Path):
    assert refused(kb, "SELECT '\ud800'") == ("the query is not valid UTF-8 text", 2)
    said = "the query was stopped after 0.5 s; set a longer limit with --seconds"
    endless = "SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE (a.range * b.range) % 7 = 3"
    assert refused(kb, endless, seconds=0.5) == (said, 2)


def test_what_a_query_leaves_out_is_said(kb: Path):
    found = query.run(kb, "FROM range(5)", limit=2, offset=3)
    assert found == (["range"], ["BIGINT"], [(3,), (4,)], False)
    assert query.run(kb, "FROM range(5)", 2) == (["range"], ["BIGINT"], [(0,), (1,)], True)
    # More than any file has rows; DuckDB's own limit is below 2⁶³.
    assert len(query.run(kb, "SELECT 1 AS a, 2 AS a", limit=2**70, offset=0).rows) == 1
    assert refused(kb, "DROP TABLE job")[1] == 2


def test_a_process_that_ends_is_said(kb: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """As of a kernel that ends whoever needs too much."""
    interpreter = tmp_path / "python"
    monkeypatch.setattr("sys.executable", str(interpreter))
    advice = "the query needs too much memory, or DuckDB failed; select less data, or raise the limit with --memory-mib"
    for script, said in (("kill -KILL $$", "Killed"), ("exit 3", "exit code 3")):
        interpreter.write_text(f"#!/bin/sh\n{script}\n")
        interpreter.chmod(0o755)
        assert refused(kb, "SELECT 1") == (f"the process of the query ended ({said}): {advice}", 2)
    interpreter.write_text("#!/bin/sh\nkill -ALRM $$\n")
    assert refused(kb, "SELECT 1", seconds=7.0)[0].startswith("the query was stopped after 7 s")


def test_values_that_no_query_answers_are_not_made():
    import io

    for value in (WHEN, decimal.Decimal(1), datetime.timedelta(1)):
        assert query._Plain(io.BytesIO(pickle.dumps(value))).load() == value
    with pytest.raises(pickle.UnpicklingError, match="is not a value"):
        query._Plain(io.BytesIO(pickle.dumps(Path("x")))).load()


def test_the_folder_of_a_copy_is_beside_and_what_killed_ones_left_goes(kb: Path):
    left = kb.parent / ".asked-old"
    left.mkdir()
    with query._folder(kb) as folder:
        assert Path(folder).parent == kb.parent
        assert not left.exists()
    assert not Path(folder).exists()


def test_a_query_room_answers_on_its_output(kb: Path):
    code = "import sys, signal; from kb import query_room; query_room.main()"
    child = python(code, stdin=-1)
    assert child.stdin
    assert child.stdout
    request = query_room.Request(str(kb), "SELECT (" * 2000 + "1" + ")" * 2000, 1, 0, 5.0, 256, "")
    child.stdin.write(json.dumps(msgspec.to_builtins(request)) + "\n")
    child.stdin.flush()
    reply = pickle.loads(os.fdopen(os.dup(child.stdout.fileno()), "rb").read())
    child.stdin.close()
    assert reply[0] == "error"
    assert reply[2] == 2
    assert child.wait() == 0
