"""The verbs about the knowledge base, as an operator types them."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import verbs

JOB = "fixtures/jobs/smallest-cpu-replay.toml"


def autoscout(*arguments: str, kb: Path, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return verbs.run(*arguments, "--kb", kb, stdin=stdin, **environment)


@pytest.fixture(scope="module")
def kb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One import of four rows, one of them bad."""
    folder = tmp_path_factory.mktemp("kb")
    table = folder / "table.csv"
    table.write_text("tp,pp,dp,mbs,t_ms\n2,1,1,4,61.5\n1,1,2,8,40\n1,2,1,8,55\n1,x,1,1,1\n")
    done = autoscout("import", str(table), "--job", JOB, "--map", "t_ms=step_time_s", kb=folder / "kb.duckdb")
    assert done.returncode == 0, done.stderr
    assert "3 of 4 rows imported by the reader csv as import-" in done.stdout
    assert "  1 row was not imported:" in done.stdout
    assert "t_ms → metric step_time_s (ms → s)" in done.stdout
    assert "line 5: pp is 'x', which is not a number" in done.stdout
    return folder / "kb.duckdb"


def test_info_and_check(kb):
    assert "3 measurements (3 ok) of 3 configurations" in autoscout("kb", "info", kb=kb).stdout
    done = autoscout("kb", "check", "--json", kb=kb)
    assert (done.returncode, all(f["ok"] for f in json.loads(done.stdout))) == (0, True)


def test_similar_says_by_what_and_what_would_be_taken_over(kb, tmp_path):
    bigger = tmp_path / "bigger.toml"
    text = Path("fixtures/jobs/smallest-cpu.toml").read_text()
    bigger.write_text(text.replace('name = "smallest-cpu"', 'name = "bigger"').replace("hidden = 64", "hidden = 128"))
    shown = autoscout("similar", str(bigger), kb=kb).stdout
    assert "smallest-cpu-replay on 2×cpu differs by" in shown
    assert "parameters per device" in shown
    assert re.search(r"\bhidden +128 +64 ", shown), "they were 128.0 and 64.00"
    assert "first to try here" in shown
    document = json.loads(autoscout("similar", str(bigger), "--json", kb=kb).stdout)
    [past] = document["similar"]
    assert past["distance"] == pytest.approx(sum(f["distance"] for f in past["features"]))
    assert document["carried"]["favourites"][0]["job"] == "smallest-cpu-replay"


@pytest.mark.thorough
def test_a_rejected_job_hands_nothing_over_and_an_accepted_one_does_however_far(kb, tmp_path):
    """What a person decided is kept beside the knowledge base, where `tune --warm-start auto` reads it."""
    copy = tmp_path / "kb.duckdb"
    shutil.copy(kb, copy)
    text = Path("fixtures/jobs/smallest-cpu.toml").read_text()
    near, far = tmp_path / "near.toml", tmp_path / "far.toml"
    near.write_text(text.replace('name = "smallest-cpu"', 'name = "near"').replace("hidden = 64", "hidden = 128"))
    wide = text.replace('name = "smallest-cpu"', 'name = "far"').replace("hidden = 64", "hidden = 65536")
    wide = wide.replace("layers = 4", "layers = 64").replace("vocab = 512", "vocab = 65536")
    far.write_text(wide.replace("seq_len = 64", "seq_len = 4096"))

    def carried(job: Path, *more: str) -> list[str]:
        document = json.loads(autoscout("similar", str(job), "--json", *more, kb=copy).stdout)
        return [source["job"] for source in document["carried"]["sources"]]

    assert carried(near) == ["smallest-cpu-replay"]
    assert carried(near, "--reject", "smallest-cpu-replay") == []
    assert carried(near, "--accept", "smallest-cpu-replay") == ["smallest-cpu-replay"]
    assert carried(far) == []
    assert carried(far, "--accept", "smallest-cpu-replay") == ["smallest-cpu-replay"]
    shown = autoscout("similar", str(near), "--reject", "smallest-cpu-replay", kb=copy).stdout
    assert "no, rejected" in shown
    assert "is not used, because a user rejected it" in shown
    wrong = autoscout("similar", str(near), "--accept", "nobody", kb=copy)
    assert (wrong.returncode, "is not among the" in wrong.stderr) == (2, True)


def test_sql_leaves_out_what_came_before(kb):
    rows = autoscout("sql", "SELECT range AS n FROM range(10)", "--limit", "3", "--offset", "8", "--json", kb=kb).stdout
    assert json.loads(rows) == [{"n": 8}, {"n": 9}]


def test_sql_refuses_a_file_whose_format_it_does_not_know(kb, tmp_path):
    """A table for terminals was written to results.xlsx."""
    done = autoscout("sql", "SELECT 1 AS n", "--out", str(tmp_path / "r.xlsx"), kb=kb)
    assert done.returncode == 2
    assert "the ending must be .csv, .json, .parquet, .md or .txt; or give --format" in done.stderr
    assert autoscout("sql", "SELECT 1 AS n", "--out", str(tmp_path / "R.CSV"), kb=kb).returncode == 0
    assert (tmp_path / "R.CSV").read_text().split() == ["n", "1"]


@pytest.mark.parametrize("words", [["sql"], ["sql", "-"]])
def test_sql_reads_a_pipe(kb, words):
    done = autoscout(*words, "--json", kb=kb, stdin="SELECT 7 AS seven\n")
    assert json.loads(done.stdout) == [{"seven": 7}]


def test_pushed_here_pulled_there_backed_up_and_forgotten(kb, tmp_path):
    lake, other = tmp_path / "lake", tmp_path / "other" / "kb.duckdb"
    assert "1 sessions with 3 measurements put into" in autoscout("kb", "push", str(lake), kb=kb).stdout
    assert "1 sessions with 3 measurements taken from" in autoscout("kb", "pull", str(lake), kb=other).stdout
    copy = tmp_path / "copy.duckdb"
    assert json.loads(autoscout("kb", "backup", str(copy), "--json", kb=other).stdout)["bytes"] == copy.stat().st_size
    [row] = json.loads(autoscout("sql", "FROM imports", "--json", kb=other).stdout)
    gone = json.loads(autoscout("kb", "forget", "--import", row["import"], "--yes", "--json", kb=other).stdout)
    assert gone["measurements"] == 3
    assert "0 measurements" in autoscout("kb", "info", kb=other).stdout
    assert autoscout("kb", "restore", str(copy), kb=other).returncode == 0
    assert "3 measurements" in autoscout("kb", "info", kb=other).stdout


def test_sql_times_itself_and_points_at_the_place(kb):
    done = autoscout("sql", "SELECT name FROM runs", "--format", "csv", kb=kb)
    assert done.stdout.count("\n") == 5
    assert re.search(r"3 rows in \d+\.\d{3} s", done.stderr)
    wrong = autoscout("sql", "SELECT nam FROM runs", kb=kb)
    assert wrong.returncode == 2
    assert wrong.stderr.rstrip().endswith("^")
    assert "LINE 1: SELECT nam FROM runs" in wrong.stderr
    assert autoscout("sql", kb=kb).returncode == 2  # no terminal


def test_the_console(kb, tmp_path):
    """On a terminal of its own (script), with a query over two lines, a mistake and a command."""
    typed = (
        "SELECT count(*) AS n\nFROM runs;\nSELECT oops;\n.format csv\n.columns best\n.nonsense\nSELECT 7 AS seven;\n"
    )
    command = f"{sys.executable} -m tui.cli sql --kb {kb}"
    console = subprocess.Popen(
        ["script", "-qec", command, "/dev/null"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path), "TERM": "dumb"},
    )
    assert console.stdin
    assert console.stdout
    console.stdin.write(typed)
    console.stdin.flush()
    shown = ""
    while "seven\n7\n" not in shown.replace("\r", ""):
        shown += (line := console.stdout.readline())
        assert line
    with contextlib.suppress(BrokenPipeError):
        while console.poll() is None:  # between two prompts the terminal itself takes Ctrl-D
            console.stdin.write("\x04")
            console.stdin.flush()
            time.sleep(0.2)
    shown += console.stdout.read()
    assert "1 row in" in shown
    assert "confirmed,BOOLEAN" in shown
    assert "the query failed" in shown
    assert "seven\n7\n" in shown.replace("\r", "")
    assert "there is no command .nonsense; .help lists them" in shown


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["kb", "forget"], 2, "give a session"),
        (["kb", "forget", "nobody", "--yes"], 2, "there is no session or import nobody"),
        (["kb", "pull", "/nowhere/at/all"], 2, "is not a folder"),
        (["kb", "push", "s3://bucket/lake"], 2, "AutoScout cannot write to s3; push to a local folder"),
        (["kb", "restore", "none.duckdb"], 2, "there is no such file"),
        (["import", "none.csv", "--job", JOB], 2, "there is no such file"),
        (["tune", JOB, "--no-tui", "--warm-start", "auto:luck"], 2, "'luck' cannot be carried over"),
    ],
)
def test_mistakes_are_one_sentence(kb, arguments, code, sentence):
    done = autoscout(*arguments, kb=kb)
    assert done.returncode == code, done.stderr
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
