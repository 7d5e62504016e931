"""Files beside the knowledge base that a person or a session writes line by line: journals, orders, decisions about
warm starts, traces. What is torn, damaged, too late or forbidden, in whole sentences."""

import errno
import gzip
import os
import sqlite3
from pathlib import Path

import duckdb
import msgspec
import pytest
from asking import refusal
from kb_samples import ended, measured, started

from kb import choices, journal, orders, sources, table_files, traces
from kb.orders import Order


def test_a_journal_is_cut_at_its_last_whole_line(tmp_path: Path):
    path = tmp_path / "deep" / "er" / "journal.jsonl"
    log = journal.Journal(path)
    log.append(started("s"))
    log.append(journal.Passed(), journal.Passed(at=2.0), sync=False)
    log.close()
    whole = path.read_bytes()
    assert whole.count(b"\n") == 3
    for torn in (b"", b"{", b'{"type":'):
        path.write_bytes(whole + torn)
        journal.Journal(path).close()
        assert path.read_bytes() == whole
    path.write_bytes(b"no line at all")
    journal.Journal(path).close()
    assert path.read_bytes() == b""


def test_a_journal_is_on_disk_before_anything_acts_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    synced: list[int] = []
    monkeypatch.setattr("os.fsync", synced.append)
    log = journal.Journal(tmp_path / "journal.jsonl")
    log.append(journal.Passed())
    assert len(synced) == 1
    log.append(journal.Passed(), sync=False)
    assert len(synced) == 1
    log.close()


def test_a_disk_that_takes_no_more_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "journal.jsonl"
    log = journal.Journal(path)
    log.append(journal.Passed())
    whole = path.read_bytes()

    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def broken(file: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    for problem, said in (
        (full, "the disk is full; finished experiments are kept; free some space, then run the same command with "
               "--resume"),
        (broken, "cannot write the journal (Input/output error); choose a file in another folder with --kb"),
    ):  # fmt: skip
        monkeypatch.setattr("os.fsync", problem)
        assert refusal(log.append, journal.Passed(at=5.0)) == (f"{path}: {said}", 1)
        assert path.read_bytes() == whole
    log.close()
    monkeypatch.undo()
    assert refusal(journal.Journal, path / "x")[0].startswith(f"{path / 'x'}: cannot write the journal (")


def test_reading_from_an_offset_on(tmp_path: Path):
    path = tmp_path / "journal.jsonl"
    log = journal.Journal(path)
    log.append(journal.Passed(at=1.0), journal.Passed(at=2.0), journal.Waiting(holder="a\x07"))
    log.close()
    ends = [end for _, end in journal.read(path)]
    lines = path.read_bytes().splitlines(keepends=True)
    assert ends == [len(lines[0]), len(lines[0] + lines[1]), sum(map(len, lines))]
    assert [(e.at, end) for e, end in journal.read(path, ends[0])] == [(2.0, ends[1]), (0.0, ends[2])]
    assert journal.events(path)[2] == journal.Waiting(holder="a\x07")
    assert journal.events(path, plain=True)[2] == journal.Waiting(holder="a ")
    with open(path, "ab") as file:
        file.write(b"torn")
    assert len(journal.events(path)) == 3
    with open(path, "ab") as file:
        file.write(b"\n")
    assert f"the line that ends at byte {ends[2] + 5} is" in refusal(journal.events, path)[0]


def test_journals_that_cannot_be_read(tmp_path: Path):
    nowhere = tmp_path / "none.jsonl"
    assert refusal(journal.events, nowhere) == (f"{nowhere}: no such journal; `autoscout sessions` lists them", 2)
    assert refusal(journal.events, tmp_path) == (f"{tmp_path}: cannot read the journal (Is a directory)", 1)


def test_events_of_a_later_autoscout_pass_and_damage_does_not(tmp_path: Path):
    assert journal._decode(b'{"type":"x","at":3,"b":[]}') == journal.Later(
        kind="x", body={"type": "x", "at": 3, "b": []}, at=3
    )
    assert journal._decode(b'{"type":"x","at":"soon"}').at == 0.0
    assert journal._decode(b'{"type":"passed","more":1}') == journal.Passed()
    for line in (b'{"type":"waiting","pid":"x"}', b'{"type":7}', b"[]", b"{}", b'{"at":1.0}'):
        with pytest.raises(msgspec.ValidationError):
            journal._decode(line)
    old = msgspec.to_builtins(ended(measured(1.0, tp=1)))
    old["measurement"]["fidelity"] = "profiled"
    read = journal._decode(msgspec.json.encode(old))
    assert isinstance(read, journal.ExperimentEnded)
    assert read.measurement.fidelity == "measured"


def test_what_is_decided():
    confirmed = journal._decode(
        b'{"type":"confirmed","winner":{"knobs":{}},"name":"a","value":1,"default_name":"b","default_value":1,'
        b'"gain":1,"low":1,"high":1,"pairs":1,"verdict":"faster"}'
    )
    assert isinstance(confirmed, journal.Confirmed)
    assert confirmed.decided
    for word, decided in (("undecided", False), ("alone", False), ("equal", True), ("", True)):
        assert msgspec.structs.replace(confirmed, verdict=word).decided is decided


def test_words_of_an_order():
    assert orders.parsed("budget", ["40"], "ann") == Order(what="budget", values={"profiles": 40}, by="ann")
    assert orders.parsed("budget", ["profiles=4"], "").values == {"profiles": 4}
    assert orders.parsed("try", ["tp=2", "sp=true", "x=-1", "y="], "").values == {
        "tp": 2, "sp": "true", "x": "-1", "y": "",
    }  # fmt: skip
    for what, words in (("budget", ["4", "5"]), ("budget", ["x"]), ("try", ["7"]), ("pause", ["40"])):
        assert refusal(orders.parsed, what, words, "") == (
            f"'{words[0]}' is not NAME=VALUE, for example tp=2", 2,
        )  # fmt: skip


def test_orders_that_cannot_be_given(tmp_path: Path):
    there = "pause, go, stop, budget, profile, validate, try, retry, propose, hold, hear, pin, exclude"
    assert refusal(orders.give, tmp_path, Order(what="unreadable")) == (
        f"there is no order 'unreadable'; there are {there}", 2,
    )  # fmt: skip
    for values in ({}, {"profiles": 0}, {"profiles": -1}, {"profiles": "4"}):
        assert refusal(orders.give, tmp_path, Order(what="budget", values={**values})) == (
            "budget needs profiles=N with N more than 0", 2,
        )  # fmt: skip
    for what in ("try", "retry", "pin", "exclude"):
        assert refusal(orders.give, tmp_path, Order(what=what)) == (f"{what} needs KNOB=VALUE", 2)
    missing = tmp_path / "none"
    assert refusal(orders.give, missing, Order(what="go")) == (
        f"{missing}/orders.jsonl: cannot write the order (No such file or directory)", 1,
    )  # fmt: skip
    assert orders.given(tmp_path) == []


def test_orders_in_their_order_and_torn_ones_later(tmp_path: Path):
    given = [
        Order(what="budget", values={"profiles": 1}),
        Order(what="go"),
        Order(what="pin", values={"tp": 2}, by="a"),
    ]
    for order in given:
        orders.give(tmp_path, order)
    file = tmp_path / "orders.jsonl"
    assert oct(file.stat().st_mode & 0o777) == oct(0o644 & ~_umask())
    assert orders.given(tmp_path) == given
    with open(file, "ab") as more:
        more.write(b'{"what":"levitate"}\n[\n{"what":"stop"}')
    odd = Order(what="unreadable")
    assert orders.given(tmp_path) == [*given, odd, odd]
    with open(file, "ab") as more:
        more.write(b"\n")
    assert orders.given(tmp_path)[-1] == Order(what="stop")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_the_last_decision_about_a_warm_start_counts(tmp_path: Path):
    kb = tmp_path / "kb.duckdb"
    assert choices.choices(kb, "a") == {}
    choices.choose(kb, "a", "x", True)
    choices.choose(kb, "a", "y", False, by="ann")
    choices.choose(kb, "b", "x", False)
    with open(tmp_path / "warm-choices.jsonl", "ab") as file:
        file.write(b'{"job":"a"}\n{"job"\n')
    choices.choose(kb, "a", "x", False)
    choices.choose(kb, "a", "x", True)
    assert choices.choices(kb, "a") == {"x": True, "y": False}
    assert choices.choices(kb, "b") == {"x": False}
    assert oct((tmp_path / "warm-choices.jsonl").stat().st_mode & 0o777) == oct(0o644 & ~_umask())
    nowhere = tmp_path / "none" / "kb.duckdb"
    assert refusal(choices.choose, nowhere, "a", "x", True) == (
        f"{tmp_path}/none/warm-choices.jsonl: cannot save the decision on this past job (No such file or directory)", 1,
    )  # fmt: skip


def test_traces_are_kept_and_those_that_cannot_be_read_are_not_known(tmp_path: Path):
    kb = tmp_path / "home" / "kb.duckdb"
    trace = Order(what="go", by="a")
    assert traces.known(kb, "k", Order) is None
    traces.keep(kb, "k", Order(what="stop"))
    traces.keep(kb, "k", trace)
    assert traces.known(kb, "k", Order) == trace
    [file] = (tmp_path / "home" / "shadows").iterdir()
    assert file.name == "k.json.gz"
    for content in (b"x", gzip.compress(b"{"), gzip.compress(b"[]"), file.read_bytes()[:9]):
        file.write_bytes(content)
        assert traces.known(kb, "k", Order) is None
    (tmp_path / "file").write_text("")
    traces.keep(tmp_path / "file" / "kb.duckdb", "k", trace)  # nowhere to put it: traced again


def test_rows_of_parquet_and_sqlite(tmp_path: Path):
    path = tmp_path / "t.parquet"
    with duckdb.connect() as con:
        con.execute(f"COPY (SELECT range AS a, 'x' AS b FROM range(10_001)) TO '{path}' (FORMAT parquet)")
    rows = list(sources.parquet_rows(path))
    assert (len(rows), rows[0], rows[-1]) == (10_001, {"a": 0, "b": "x"}, {"a": 10_000, "b": "x"})
    path.write_text("no")
    said, code = refusal(list, sources.parquet_rows(path))
    assert said.startswith(f"{path} cannot be read as Parquet (")
    assert code == 2
    base = tmp_path / "t.sqlite"
    with sqlite3.connect(base) as con:
        con.execute("CREATE TABLE a (x, y)")
        con.execute("INSERT INTO a VALUES (1, 'z')")
        con.execute("CREATE VIEW v AS SELECT 1")
    assert (sources.sqlite_tables(base), sources.sqlite_tables(path)) == ({"a"}, set())
    assert list(sources.sqlite_rows(base, "SELECT * FROM a")) == [{"x": 1, "y": "z"}]
    nowhere = tmp_path / "none.sqlite"
    said, code = refusal(list, sources.sqlite_rows(nowhere, "SELECT 1"))
    assert said == f"{nowhere} cannot be read as SQLite (unable to open database file)"
    assert code == 2
    assert not nowhere.exists()


def test_tables_of_others(tmp_path: Path):
    content = "a,b\n" + "".join(f"{i},x\n" for i in range(3))
    (tmp_path / "t.csv").write_text(content)
    (tmp_path / "t.CSV.gz").write_bytes(gzip.compress(content.encode()))
    (tmp_path / "t.tsv").write_text(content.replace(",", "\t"))
    for name in ("t.csv", "t.CSV.gz", "t.tsv"):
        table = table_files.read_table(tmp_path / name)
        assert table == (["a", "b"], ["BIGINT", "VARCHAR"], [(0, "x"), (1, "x"), (2, "x")], False)
    # Lines of a comment in the predicate end with it.
    assert table_files.read_table(tmp_path / "t.csv", "a > 1 -- more").rows == [(2, "x")]
    for name, where, said in (
        ("none.csv", "", f"{tmp_path}/none.csv: there is no such file"),
        ("", "", f"{tmp_path}: there is no such file"),
        (
            "t.txt",
            "",
            f"{tmp_path}/t.txt is not a table that AutoScout can read; pass a .csv, .csv.gz, .tsv, .json or .parquet "
            "file",
        ),
        ("t.csv", "true); SELECT (1", "--where true); SELECT (1: give one predicate, without ';'"),
    ):
        (tmp_path / "t.txt").write_text("")
        assert refusal(table_files.read_table, tmp_path / name, where) == (said, 2)
    said, code = refusal(table_files.read_table, tmp_path / "t.csv", "c > 1")
    assert said.startswith('--where c > 1: Binder Error: Referenced column "c" not found in FROM clause!')
    assert "LINE" not in said
    assert code == 2
    bad = tmp_path / "bad.parquet"
    bad.write_text("no")
    said, code = refusal(table_files.read_table, bad)
    assert said.startswith(f"{bad} cannot be read as a table (")
    assert code == 2
    sql = f"a IN (SELECT 1 FROM read_csv('{tmp_path}/t.tsv'))"
    assert "file system operations are disabled" in refusal(table_files.read_table, tmp_path / "t.csv", sql)[0]
