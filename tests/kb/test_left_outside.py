"""What cannot come in keeps nothing else out, is named each time, and no verb ends with 0 over it."""

import json
from pathlib import Path

import msgspec
import pytest
import verbs
from kb_samples import ended, measured, write

from kb import care, claims, connect, journal, redact, store
from kb.records import AutoscoutError


@pytest.fixture
def kb(tmp_path: Path) -> Path:
    return tmp_path / "kb.duckdb"


def names(kb: Path) -> list[str]:
    return [m.name for _, m in store.measurements(kb)]


def journals_finding(kb: Path) -> care.CareFinding:
    return next(finding for finding in care.check(kb) if finding.subject == "journals")


def session_with_a_bad_row(kb: Path, **odd: object) -> Path:
    bad = msgspec.structs.replace(measured(1.0, tp=2), **odd)
    end = journal.SessionEnded(reason="budget", experiments=3, engine_ms_mean=0.0, engine_ms_max=0.0)
    return write(kb, "s", ended(measured(2.0, tp=1), 1), ended(bad, 2), ended(measured(3.0, tp=4), 3), end)


def test_a_bad_row_keeps_no_other_out_and_is_named_each_time(kb: Path):
    """A negative cost in one row once kept out the eleven after it and the session's end, and nothing said so."""
    path = session_with_a_bad_row(kb, cost_s=-259_198.0)
    for _ in range(2):
        with pytest.raises(
            AutoscoutError, match=r"the measurement 'tp2' has a number that is not finite.*; this line is not stored"
        ):
            store.ingest(kb, path)
        assert names(kb) == ["tp1", "tp4"]
    assert store.session_rows(kb)[0]["state"] == "ended"
    found = journals_finding(kb)
    assert not found.ok
    assert "the measurement 'tp2' has a number that is not finite" in found.found
    assert "kb ingest" not in found.found, "ingest does not"
    again = verbs.run("kb", "ingest", "--json", "--kb", kb)
    assert again.returncode == 1
    assert json.loads(again.stdout)["new"] == 0
    assert "the measurement 'tp2' has a number that is not finite" in again.stderr


def test_a_damaged_line_keeps_no_other_out(kb: Path):
    path = session_with_a_bad_row(kb)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2].replace(b'"number":2', b'"number":x')
    path.write_bytes(b"".join(lines))
    with pytest.raises(AutoscoutError, match="is not a journal event"):
        store.ingest(kb, path)
    assert names(kb) == ["tp1", "tp4"]
    assert store.session_rows(kb)[0]["state"] == "ended"


def test_a_given_journal_that_cannot_be_read_keeps_no_other_out(kb: Path):
    good = write(kb, "good", ended(measured(1.0, tp=1)))
    (kb.parent / "bad.jsonl").write_text("nothing\n")
    done = verbs.run("kb", "ingest", kb.parent / "bad.jsonl", good, "--kb", kb)
    assert done.returncode == 2
    assert "bad.jsonl" in done.stderr
    assert names(kb) == ["tp1"]


def test_lines_are_counted_alike_when_they_come_in_later(kb: Path):
    """Decisions are known by the number of their line: one that was refused must not shift the others."""
    path = write(kb, "s", journal.Passed(), ended(msgspec.structs.replace(measured(1.0, tp=2), cost_s=-1.0)))
    with pytest.raises(AutoscoutError):
        store.ingest(kb, path)
    log = journal.Journal(path)
    log.append(journal.Passed(), journal.Waiting(holder="t"))
    log.close()
    with pytest.raises(AutoscoutError):
        store.ingest(kb, path)
    path.write_bytes(path.read_bytes().replace(b'"cost_s":-1.0', b'"cost_s":1.00'))  # as if it could come in by now
    assert store.ingest(kb, path) == 1
    with store.reader(kb) as con:
        found = con.execute("SELECT seq, type FROM decision ORDER BY seq").fetchall()
    assert found == [(1, "passed"), (3, "passed"), (4, "waiting")]
    assert journals_finding(kb).ok


def test_what_a_killed_redact_took_out_comes_back_with_the_next(kb: Path):
    """It was killed between taking rows out and bringing them in: the next call found no secret and did nothing."""
    path = write(kb, "s", ended(measured(1.0, tp=1)))
    path.with_name("output.log").write_text("password: " + "Xk29" + "vbQ7pL")
    store.ingest(kb, path)
    with connect.writer(kb) as con:
        claims.remove(con, ["s"])
    redact.remove(kb)
    assert len(store.measurements(kb)) == 1
