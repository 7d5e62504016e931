"""Rows of a lake as a colleague could send them, changed one by one: which file stays outside, and its whole reason."""

from collections.abc import Iterator
from pathlib import Path

import duckdb
import msgspec
import pytest
from kb_samples import ended, job, measured, write

from kb import journal, store
from kb.connect import reader
from kb.door import Newer
from kb.records import RECORDS, Traffic
from kb.sharing import arrivals, lake


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a session with one measurement and one event."""
    folder = tmp_path_factory.mktemp("sent")
    kb = folder / "kb.duckdb"
    store.ingest(kb, write(kb, "s", journal.Passed(), ended(measured(1.0, tp=1), 1)))
    with reader(kb, files=True) as con:
        return folder / f"{lake.write_session(con, 's', folder)}.parquet"


@pytest.fixture
def con(sent: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(":memory:", config={"threads": 1}) as con:
        con.execute(f"CREATE TABLE arrived AS SELECT *, 'f' AS hash FROM read_parquet('{sent}')")
        yield con


WORDS = ("host", "cluster", "goal", "metric", "strategy", "warm_start", "context", "type", "purpose", "period")
ID = "0123456789abcdef"
CASES = [
    ("SELECT 1", None),
    ("UPDATE arrived SET session = '..'", "'..' cannot be the name of a session: "),
    ("UPDATE arrived SET session = NULL", "'' cannot be the name of a session: "),
    ("UPDATE arrived SET job = NULL WHERE kind = 'session'", "a job cannot be read ("),
    ("UPDATE arrived SET job = '[]' WHERE kind = 'session'", "a job cannot be read ("),
    (f"UPDATE arrived SET job_id = '{ID}' WHERE kind = 'session'",
     f"the job tiny does not match its id '{ID}'"),
    ("UPDATE arrived SET job_name = NULL WHERE kind = 'session'", "'' cannot be the name of a job: "),
    ("UPDATE arrived SET job_name = NULL WHERE kind = 'job'", "'' cannot be the name of a job: "),
    ("UPDATE arrived SET job_target = NULL WHERE kind = 'job'", "'' cannot be the name of a target: "),
    ("UPDATE arrived SET job_task = NULL WHERE kind = 'job'", "'' cannot be the name of a task: "),
    ("UPDATE arrived SET job_model = NULL WHERE kind = 'job'", "the job tiny cannot be read ("),
    ("UPDATE arrived SET job_traffic = '{\"x\":1}' WHERE kind = 'job'", "the job tiny cannot be read ("),
    ("UPDATE arrived SET job_family = 'x' WHERE kind = 'job'", "the job tiny is not of the family 'x'"),
    (f"UPDATE arrived SET job_id = '{ID}' WHERE kind = 'job'", f"the job tiny does not match its id '{ID}'"),
    ("UPDATE arrived SET status = 'odd' WHERE kind = 'measurement'",
     "a measurement has the unknown status 'odd'"),
    ("UPDATE arrived SET fidelity = 'odd' WHERE kind = 'measurement'",
     "a measurement has the unknown fidelity 'odd'"),
    ("UPDATE arrived SET knobs = '{\"tp\":2}' WHERE kind = 'measurement'",
     "the configuration tp1 does not match its id"),
    ("UPDATE arrived SET step_time_s = 2 WHERE kind = 'measurement'",
     "the measurement tp1 was changed: its id is not the hash of its content"),
    ("UPDATE arrived SET knobs = '[' WHERE kind = 'measurement'", "it cannot be read ("),
    *((f"UPDATE arrived SET {word} = 'a' || chr(10)", f"the {word} 'a\\n' contains a control character")
      for word in WORDS),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "said"), CASES)
def test_why_a_file_stays_outside(con: duckdb.DuckDBPyConnection, sql: str, said: str | None):
    con.execute(sql)
    refused = arrivals.refused(con)
    if said is None:
        assert refused == {}
    else:
        assert refused.keys() == {"f"}
        assert str(refused["f"]).startswith(said)
        assert not isinstance(refused["f"], Newer)


@pytest.mark.parametrize("version", [RECORDS, RECORDS + 1])
def test_what_is_newer_is_said_to_be(con: duckdb.DuckDBPyConnection, version: int):
    """Whatever it is that this one stumbled over; of this one's own version it is told what is wrong."""
    con.execute(f"UPDATE arrived SET job = replace(job, '\"records\":{RECORDS}', '\"records\":{version}')")
    assert arrivals.refused(con) == {}  # nothing is wrong with it
    con.execute("UPDATE arrived SET status = 'odd' WHERE kind = 'measurement'")
    newer = f"a newer AutoScout wrote it (record format {version}, this one reads {RECORDS}); upgrade AutoScout"
    unknown = "a measurement has the unknown status 'odd'"
    assert str(arrivals.refused(con)["f"]) == (newer if version > RECORDS else unknown)
    for odd in ("{}", "[]", "{", '{"records":"9"}'):
        con.execute("UPDATE arrived SET job = $job WHERE kind = 'session'", {"job": odd})
        assert not isinstance(arrivals.refused(con)["f"], Newer)


def test_a_job_of_a_trace_is_not_held_against_an_id_that_had_its_path():
    of = msgspec.structs.replace(job(), traffic=Traffic(seq_len=8, trace="/home/t.csv"))
    fields = (of.task, of.target, "pretrain-megatron-dense", msgspec.json.encode(of.model).decode())
    arrivals._check_workload(ID, "tiny", *fields, msgspec.json.encode(of.traffic).decode())
    arrivals._check_job(lambda stored: of, "", ID, "tiny")
    known = msgspec.structs.replace(of, traffic=msgspec.structs.replace(of.traffic, trace_id="01"))
    with pytest.raises(arrivals.Refused, match="does not match its id"):
        arrivals._check_workload(ID, "tiny", *fields, msgspec.json.encode(known.traffic).decode())
    with pytest.raises(arrivals.Refused, match="does not match its id"):
        arrivals._check_job(lambda stored: known, "", ID, "tiny")


def test_older_files_become_todays(con: duckdb.DuckDBPyConnection):
    con.execute("UPDATE arrived SET fidelity = 'simulated', period = NULL WHERE kind = 'measurement'")
    con.execute("UPDATE arrived SET fidelity = 'profiled' WHERE kind = 'session'")
    con.execute("UPDATE arrived SET type = 'fidelity_switched', body = '{\"to\":\"profiled\"}' WHERE kind = 'decision'")
    con.execute("ALTER TABLE arrived DROP COLUMN conditions")
    arrivals.as_today(con)
    rows = con.execute("SELECT kind, fidelity, period, body, conditions FROM arrived WHERE kind != 'job' ORDER BY 1")
    assert rows.fetchall() == [
        ("decision", None, None, '{"to":"measured"}', None),
        ("measurement", "predicted", "", None, None),
        ("session", "profile", None, None, None),
    ]
