"""Whatever data hold, no control character reaches a terminal: OSC 52 would fill the clipboard, others hide or move
what is read."""

import re
import sys
from pathlib import Path

import msgspec
import pytest
import verbs

from autoscout.targets.jobs import load_job as load
from kb import connect, journal, store
from kb.records import Configuration, Measurement
from tui.cli import main
from tui.hygiene import plain
from tui.session.follow import Follower

CLIPBOARD, LINK, CLEAR, C1 = (
    "\x1b]52;c;aGk=\x07",
    "\x1b]8;;http://x\x1b\\click\x1b]8;;\x1b\\",
    "\x1b[2J\x1b[H",
    "\x9b2J\x9d52;c;\x9c",
)
EVIL = f"a{CLIPBOARD}b{LINK}c{CLEAR}d{C1}e\r\x08\x7ff"
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
JOB = Path(__file__).parents[2] / "fixtures/jobs/smallest-cpu-replay.toml"


@pytest.fixture(scope="module")
def kb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A knowledge base with a journal that somebody forged, and rows that passed no door."""
    path = tmp_path_factory.mktemp("hygiene") / "kb.duckdb"
    job = load(JOB)
    start = journal.SessionStarted(
        session="evil",
        job=job,
        context="here",
        strategy=EVIL,
        seed=0,
        fidelity="adaptive",
        warm_start="off",
        hyper={"x": EVIL},
        environment={"torch": "1"},
        kb_mark=0,
        default=Configuration({"tp": 1}),
        orderings=[],
        host="h",
    )
    configuration = Configuration({"tp": 1, "pp": 1})
    ok = Measurement(configuration=configuration, name="tp1", context="here", status="ok", metrics={"step_time_s": 1.0})
    bad = msgspec.structs.replace(ok, name="bad", status="error", metrics={}, evidence="it failed")
    events = [
        start,
        journal.ExperimentEnded(number=1, purpose="search", measurement=ok),
        journal.ExperimentEnded(number=2, purpose="search", measurement=bad),
        journal.SessionEnded(reason="failed", experiments=2, engine_ms_mean=0.0, engine_ms_max=0.0, problem="broken"),
    ]
    file = path.parent / "sessions" / "evil" / "journal.jsonl"
    with_journal = journal.Journal(file)
    with_journal.append(*events)
    with_journal.close()
    store.ingest(path, file)
    forged = [
        msgspec.structs.replace(ok, name=EVIL),
        msgspec.structs.replace(bad, name=EVIL, evidence=EVIL),
    ]
    with_journal = journal.Journal(file)
    with_journal.append(
        journal.ExperimentStarted(number=3, purpose="search", configuration=configuration, name=EVIL, folder="e"),
        *(journal.ExperimentEnded(number=3 + i, purpose="search", measurement=m) for i, m in enumerate(forged)),
        journal.SessionEnded(reason=EVIL, experiments=2, engine_ms_mean=0.0, engine_ms_max=0.0, problem=EVIL),
    )
    with_journal.close()
    (file.parent / "e").mkdir()
    (file.parent / "e" / "rank-0.log").write_text(EVIL * 3 + "\n")
    with connect.writer(path) as con:
        for table, column in (("configuration", "name"), ("measurement", "evidence"), ("session", "strategy")):
            con.execute(f"UPDATE {table} SET {column} = ?", [EVIL])
    return path


@pytest.mark.parametrize(
    "arguments",
    [
        *(
            ["sql", f"SELECT '{EVIL}' AS \"{EVIL}\", * FROM runs", "--format", form]
            for form in ("table", "csv", "markdown")
        ),
        ["sql", "FROM runs", "--json"],
        ["sql", f"SELECT {EVIL}"],
        ["sessions"],
        ["watch", "evil", "--no-tui"],
        ["why", "evil"],
        ["best", str(JOB)],
        ["similar", str(JOB)],
        ["kb", "check"],
        ["kb", "forget", EVIL, "--yes"],
        ["kb", "pull", EVIL],
        ["import", EVIL, "--job", str(JOB)],
        [EVIL],
        ["sql", "SELECT '\udcff'"],
    ],
)
def test_no_output_holds_control_characters(
    kb: Path, arguments: list[str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("AUTOSCOUT_KB", str(kb))
    monkeypatch.setattr(sys, "argv", ["autoscout", *arguments])
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    with pytest.raises(SystemExit):
        main()
    out, err = capfd.readouterr()
    assert out or err
    assert not CONTROL.search(out + err)
    assert "internal error" not in err


def test_the_screens_read_plain_text(kb: Path):
    follower = Follower(kb.parent / "sessions" / "evil" / "journal.jsonl")
    events = msgspec.json.encode(follower.everything())
    assert b"\\u00" not in events
    assert not CONTROL.search(events.decode())
    assert not CONTROL.search("".join(follower.tail("e")))


def test_names_stay_on_their_line(kb: Path, tmp_path: Path):
    """A configuration's broke the lines of `watch --plain`, and a job's those of `tune --resume --dry-run`."""
    journal_of = kb.parent / "sessions" / "evil" / "journal.jsonl"
    lines = journal_of.read_text().replace('"smallest-cpu-replay"', r'"two\nlines"').replace('"tp1"', r'"t\np1"')
    forged = tmp_path / "sessions" / "evil" / "journal.jsonl"
    forged.parent.mkdir(parents=True)
    forged.write_text(lines)
    said = verbs.run("watch", "--plain", forged).stdout
    assert all(re.match(r"\d\d:\d\d  |  ", line) for line in said.splitlines()), said
    refused = verbs.run("tune", "--resume", "evil", "--dry-run", "--kb", tmp_path / "kb.duckdb")
    assert refused.returncode == 2
    assert "'two\\nlines' cannot be the name of a job" in refused.stderr


def test_plain_text_stays_as_it_is():
    assert plain("α → β × 3 ─ …\n\tx") == "α → β × 3 ─ …\n\tx"
    assert plain(f"a{CLIPBOARD}b{LINK}c") == "abclickc"


@pytest.mark.parametrize(
    "words",
    [
        ["sessions", "--kb", "{}.duckdb"],
        ["kb", "ingest", "--kb", "{}.duckdb"],
        ["tune", str(JOB), "--no-tui", "--kb", "{}.duckdb"],
        ["kb", "push", "{}"],
        ["kb", "pull", "{}"],
        ["import", "{}.csv", "--job", str(JOB)],
        ["bench", "--table", "{}.csv", "--metric", "x", "--goal", "min"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_a_file_whose_name_is_no_utf8_is_refused_in_one_sentence(
    kb: Path, tmp_path: Path, words: list[str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    name = str(tmp_path / "no\udcffutf8")
    (tmp_path / "no\udcffutf8").mkdir()
    for suffix in (".csv", ".duckdb"):
        Path(name + suffix).write_text("")
    monkeypatch.setenv("AUTOSCOUT_KB", str(kb))
    monkeypatch.setattr(sys, "argv", ["autoscout", *(word.replace("{}", name) for word in words)])
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    with pytest.raises(SystemExit) as ended:
        main()
    _, err = capfd.readouterr()
    assert ended.value.code == 2
    assert "no?utf8" in err
    assert err.endswith("the file name is not UTF-8, which DuckDB requires; rename the file, or pass a different one\n")
    assert err.count("\n") == 1
