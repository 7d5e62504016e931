"""The command line is a contract: verbs, --json, exit codes, one sentence for every mistake."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
import verbs

from autoscout.tuning.loop import Stop
from kb import store
from tui.options import stop_on_signals

RECORDED = Path("fixtures/recorded/smallest-cpu.jsonl").resolve()
TINY = "fixtures/jobs/tiny-gpt-cpu.toml"


def autoscout(*arguments: str, kb: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    return verbs.run(*arguments, *(["--kb", kb] if kb else []), **environment)


@pytest.fixture(scope="module")
def job(tmp_path_factory) -> Path:
    text = Path("fixtures/jobs/smallest-cpu.toml").read_text()
    path = tmp_path_factory.mktemp("job") / "replay.toml"
    path.write_text(text.replace("[launch]", f'[launch]\nlauncher = "replay"\nrecorded = "{RECORDED}"'))
    return path


@pytest.fixture(scope="module")
def tuned(job, tmp_path_factory) -> tuple[Path, dict]:
    kb = tmp_path_factory.mktemp("kb") / "kb.duckdb"
    done = autoscout("tune", str(job), "--no-tui", "--json", kb=kb)
    assert done.returncode == 0, done.stderr
    return kb, json.loads(done.stdout)


def test_usual_names_of_other_tuners_lead_to_ours():
    refused = verbs.run("tune", "job.toml", "--budget", "3").stderr
    assert "Did you mean --profiles, --wall or --device-time?" in refused


def test_help_imports_nothing_heavy():
    """--help must be instant over SSH: no numpy, no DuckDB, no torch, no Textual, not even the records."""
    script = (
        "import sys; sys.argv = ['autoscout', '--help']\n"
        "import tui.cli\n"
        "tui.cli.cli.main(standalone_mode=False)\n"
        "heavy = {'numpy', 'duckdb', 'torch', 'textual', 'sklearn', 'networkx', 'kb.records', 'urllib.request'}\n"
        "print('HEAVY', sorted(set(sys.modules) & heavy))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=1800)
    assert "HEAVY []" in done.stdout
    for verb in ("tune", "profile", "explain", "space", "best", "sessions", "sql", "doctor"):
        assert f"\n  {verb} " in done.stdout


def test_a_training_job_is_predicted_without_scipy(tmp_path):
    """It was a third of the verb's time."""
    script = (
        "import sys; sys.argv = ['autoscout', 'predict', 'smallest-cpu', '--kb', sys.argv[1]]\n"
        "import tui.cli\n"
        "tui.cli.cli.main(standalone_mode=False)\n"
        "print('scipy' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "kb.duckdb"], capture_output=True, text=True, timeout=1800
    )
    assert "90 % interval" in done.stdout
    assert done.stdout.endswith("False\n")


def test_sessions_are_listed_without_the_search():
    """Half of the verb's time was scipy's, for the type of a result and for counting knobs."""
    script = "import sys, tui.printing.report; print('scipy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600)
    assert done.stdout == "False\n"


def test_the_time_to_go_needs_neither_numpy_nor_scipy():
    """The screens' first frame waited 0.8 s for them."""
    script = "import sys, tui.session.eta; print({'numpy', 'scipy'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600)
    assert done.stdout == "set()\n"


def test_a_space_needs_no_networkx():
    """It was a quarter of what a verb takes to start."""
    script = "import sys, autoscout.space.picture, autoscout.targets.jobs; print('networkx' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=1800)
    assert done.stdout == "False\n"


def test_tune_says_best_beside_the_default(tuned):
    _, document = tuned
    assert document["session"]["experiments"] >= 8
    assert document["best"]["value"] > 0
    assert document["default"]["name"].startswith("dp2_distopt")
    assert document["gain"] is not None
    assert "of 8 measured configurations" in document["evidence"]


def test_progress_lines_tell_elapsed_best_gain_arm_and_budget(job, tmp_path):
    done = autoscout("tune", str(job), "--no-tui", kb=tmp_path / "kb.duckdb")
    assert done.returncode == 0
    line = next(line for line in done.stdout.splitlines() if " 3/8 " in line)
    assert line.startswith("00:0")
    assert " s/iter " in line
    assert re.search(r"% (better|worse)", line)
    assert "overlap_" in line


def test_best_of_a_session_and_of_a_job(tuned, job):
    kb, document = tuned
    by_session = json.loads(autoscout("best", document["session"]["session"], "--json", kb=kb).stdout)
    by_job = json.loads(autoscout("best", str(job), "--json", kb=kb).stdout)
    assert by_session["best"]["name"] == by_job["best"]["name"] == document["best"]["name"]
    assert {c["knob"] for c in by_session["changes"]} == {
        k
        for k in {**by_session["best"]["configuration"], **by_session["default"]["configuration"]}
        if by_session["best"]["configuration"].get(k) != by_session["default"]["configuration"].get(k)
    }
    assert "expert default" in autoscout("best", str(job), kb=kb).stdout


def test_a_job_that_comes_with_us_is_asked_about_by_its_name(tmp_path):
    kb = tmp_path / "kb.duckdb"
    assert autoscout("tune", "smallest-cpu-replay", "--no-tui", "--profiles", "1", kb=kb).returncode == 0
    assert "smallest-cpu-replay: Nothing better" in autoscout("best", "smallest-cpu-replay", kb=kb).stdout
    assert autoscout("similar", "smallest-cpu-replay", kb=kb).returncode == 0


def test_sessions_and_sql(tuned):
    kb, document = tuned
    assert re.search(r" \d{4}-\d\d-\d\d \d\d:\d\d:\d\d$", autoscout("sessions", kb=kb).stdout, re.MULTILINE)
    (row,) = json.loads(autoscout("sessions", "--json", kb=kb).stdout)
    assert row["session"] == document["session"]["session"]
    assert row["state"] == "ended"
    done = autoscout("sql", "SELECT count(*) AS n FROM runs", "--json", kb=kb)
    assert json.loads(done.stdout) == [{"n": document["session"]["experiments"]}]
    assert autoscout("sql", "DELETE FROM measurement", kb=kb).returncode == 2
    for ending, begins in (
        (".csv", b"n\n"),
        (".json", b"["),
        (".md", b"| n |"),
        (".parquet", b"PAR1"),
        (".txt", b"n\n\xe2"),
    ):
        file = kb.with_name(f"out{ending}")  # it was the same table for people in each
        assert autoscout("sql", "SELECT 1 AS n", "--out", file, kb=kb).returncode == 0
        assert file.read_bytes().startswith(begins)


def test_resuming_by_name(tuned, job):
    kb, document = tuned
    done = autoscout("tune", "--no-tui", "--json", "--resume", document["session"]["session"], kb=kb)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["best"] == document["best"]


def test_resuming_changes_nothing_silently(tuned):
    kb, document = tuned
    name = document["session"]["session"]
    for change in (["--seed", "7"], ["--strategy", "random"]):
        done = autoscout("tune", "--resume", name, *change, kb=kb)
        assert done.returncode == 2
        assert f"{change[0]} cannot be changed by --resume" in done.stderr
    done = autoscout("tune", TINY, "--resume", name, kb=kb)
    assert done.returncode == 2
    assert "is not the job of the session in --resume" in done.stderr


def test_resuming_takes_a_longer_limit_where_one_can_help(tuned):
    kb, document = tuned
    name = document["session"]["session"]
    done = autoscout("tune", "--resume", name, "--profiles", "50", kb=kb)
    assert (done.returncode, "has ended, so --profiles has no effect" in done.stderr) == (2, True)
    done = autoscout("tune", "--no-tui", "--json", "--resume", name, "--wall", "3h", kb=kb)
    assert (done.returncode, json.loads(done.stdout)["best"]) == (0, document["best"])
    assert f"to prove its gain: autoscout gate {name}" in done.stderr  # no wall had ended it


def test_a_reader_that_leaves_does_not_end_the_session(job, tmp_path):
    kb = tmp_path / "kb.duckdb"
    script = f"{sys.executable} -m tui.cli tune {job} --no-tui --kb {kb} | head -2; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=1800)
    assert done.stdout.splitlines()[-1] == "0", done.stderr
    (row,) = store.session_rows(kb)
    assert row["state"] == "ended"


def test_explain(job):
    good = json.loads(autoscout("explain", TINY, "tp=2", "pp=2", "--json").stdout)
    assert good["valid"]
    assert good["configuration"]["knobs"]["dp"] == 1
    bad = autoscout("explain", TINY, "pp=2", "vpp=2", "overlap_p2p=false")
    assert bad.returncode == 3
    assert "not valid" in bad.stdout
    assert "trains incorrectly" in bad.stdout
    assert "nearest valid" in bad.stdout


@pytest.mark.thorough
def test_switches_are_written_as_they_are_shown():
    for word, value in (("on", True), ("off", False), ("true", True), ("no", False)):
        found = json.loads(autoscout("explain", TINY, "dp=4", f"distopt={word}", "--json").stdout)
        assert found["configuration"]["knobs"]["distopt"] is value


def test_a_mixed_cluster_explains_parts_of_a_kind():
    done = autoscout("explain", "fixtures/jobs/llama-3.2-3b.toml", "a100=0", "a40=0")
    assert done.returncode == 3, done.stderr
    assert "not valid: a100=0 a40=0" in done.stdout
    assert "no device is used" in done.stdout


def test_the_way_back_names_the_knowledge_base(job, tmp_path):
    kb = tmp_path / "other place" / "kb.duckdb"
    command = [sys.executable, "-m", "tui.cli", "tune", str(job), "--no-tui", "--profiles", "300", "--kb", str(kb)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    next(line for line in process.stdout if " 3/300 " in line)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=1800)
    assert f"--kb '{kb}'" in errors


def test_space():
    assert autoscout("space", TINY, "--count").stdout.strip() == "4432"
    document = json.loads(autoscout("space", TINY, "--json", "--list", "3").stdout)
    assert document["configurations"] == 4432
    assert len(document["list"]) == 3
    assert any(e["from"] == "tp" and e["to"] == "sp" and e["kind"] == "activates" for e in document["edges"])


def test_dry_run_runs_nothing(tmp_path):
    done = autoscout("tune", TINY, "--dry-run", "--json", kb=tmp_path / "kb.duckdb")
    assert json.loads(done.stdout)["configurations"] == 4432
    assert "torch.distributed.run" in json.loads(done.stdout)["launch"]
    assert list(tmp_path.iterdir()) == []


def test_doctor(tmp_path):
    done = autoscout("doctor", "--json", kb=tmp_path / "kb.duckdb")
    subjects = {f["subject"] for f in json.loads(done.stdout)}
    assert {"python", "processor", "memory", "gpu", "knowledge base"} <= subjects


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["tune", "none.toml"], 2, "none.toml: cannot read this job file"),
        (["tune", TINY, "--profiles", "0"], 2, "allows no experiment"),
        (["tune", TINY, "--wall", "soon"], 2, "'soon' is not a duration"),
        (["tune", TINY, "--strategy", "gradient"], 2, "strategy 'gradient' is unknown"),
        (["tune"], 2, "give a job file"),
        (["tune", "--resume", "nothing-1"], 2, "there is no session nothing-1"),
        (["profile", TINY, "tp=2", "pp=4"], 2, "must equal the 4 devices"),
        (["profile", TINY, "tq=2"], 2, "did you mean 'tp'?"),
        (["sql", "FROM runs"], 2, "there is no knowledge base"),
        (["space", TINY, "--list", "-1"], 2, "not in the range"),
        (["space", TINY, "--list", "9" * 30], 2, "not in the range"),
        (["space", TINY, "--graph", "x.png"], 2, "the file name must end in .svg, such as x.svg"),
        (["space", ""], 2, "it is empty; give a path"),
        (["kb", "pull", ""], 2, "it is empty; give a path"),
        (["tune", TINY, "--seed", "-1"], 2, "not in the range"),
        (["tune", TINY, "--seed", "9" * 30], 2, "not in the range"),
        (["bench", "--job", TINY, "--noise", "nan"], 2, "nan is not a number"),
        (["bench", "--job", TINY, "--budget", "9" * 30], 2, "not in the range"),
        (["explain", TINY, "tp=2", "tp=4"], 2, "tp is given twice"),
        (["explain", TINY, "tp"], 2, "'tp' is neither KNOB=VALUE"),
        (["profile", TINY, "tp=0"], 2, "tp 0 is not among 1, 2, 4"),
        (["profile", TINY, "mbs=abc"], 2, "mbs abc is not among 1, 2, 4, 8"),
        (["best", "nothing-1"], 2, "there is no knowledge base"),
        (["frobnicate"], 2, "No such command"),
        (["sql", "SELEC 1"], 2, "SELEC"),
        pytest.param(["tune", "fixtures/jobs/llama-3.2-3b.toml"], 2, "GPU", marks=pytest.mark.thorough),
    ],
)
def test_mistakes_are_one_sentence_and_exit_2(tmp_path, arguments, code, sentence):
    done = autoscout(*arguments, kb=tmp_path / "kb.duckdb")
    assert done.returncode == code, done.stderr
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("verb", [["space"], ["predict"], ["check"], ["tune", "--no-tui"], ["bench", "--job"]], ids=str)
def test_a_space_that_is_wrong_names_the_file(tmp_path, verb):
    """It named the job."""
    job = tmp_path / "j.toml"
    job.write_text(Path(TINY).read_text() + "\n[space]\nfix = { tpp = 2 }\n")
    done = autoscout(*verb, job, kb=tmp_path / "kb.duckdb")
    assert done.returncode == 2
    assert f"autoscout: {job}: [space]: 'tpp' is unknown; did you mean" in done.stderr


@pytest.mark.parametrize(
    ("folder", "named"), [("there/", "there/kb.duckdb"), (".", "kb.duckdb"), ("tests", "tests/kb.duckdb")]
)
def test_a_folder_is_no_knowledge_base(folder, named):
    """One that was yet to be made was a file of that name, and "." in the variable was said to need more memory."""
    for done in (autoscout("sql", "FROM runs", kb=folder), autoscout("sql", "FROM runs", AUTOSCOUT_KB=folder)):
        assert done.returncode == 2
        assert f"Invalid value for '--kb': {folder} is a folder; give a file, such as {named}\n" in done.stderr


@pytest.mark.parametrize(
    ("verb", "code", "sentence"),
    [
        (["best", TINY], 2, "there is no knowledge base; `autoscout tune` creates one\n"),
        (["predict", TINY], 0, "there is no knowledge base, so there are no measurements\n"),
    ],
)
def test_a_mistyped_knowledge_base_is_said_whether_the_option_or_the_variable_names_it(tmp_path, verb, code, sentence):
    """Of the variable's, nothing was said: it was an empty one. `predict` refused the option's."""
    kb = tmp_path / "none.duckdb"
    for done in (autoscout(*verb, kb=kb), autoscout(*verb, AUTOSCOUT_KB=str(kb))):
        assert done.returncode == code
        assert f"{kb}: {sentence}" in done.stderr
        assert not kb.exists()


def test_a_journal_without_a_session_says_so(tmp_path):
    """It said nothing, with exit code 0."""
    (tmp_path / "empty.jsonl").touch()
    done = autoscout("watch", "--plain", tmp_path / "empty.jsonl")
    assert done.returncode == 2
    sentence = "the file contains no session; name a journal.jsonl that AutoScout wrote"
    assert done.stderr == f"autoscout: {tmp_path}/empty.jsonl: {sentence}\n"


def test_a_knowledge_base_that_is_none(tmp_path, job):
    kb = tmp_path / "kb.duckdb"
    kb.write_text("this is not a database")
    done = autoscout("tune", str(job), kb=kb)
    assert done.returncode in (1, 2)
    assert str(kb) in done.stderr
    assert kb.read_text() == "this is not a database"


@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c(job, tmp_path, presses):
    kb = tmp_path / "kb.duckdb"
    command = [sys.executable, "-m", "tui.cli", "tune", str(job), "--no-tui", "--profiles", "300", "--kb", str(kb)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if " 3/300 " in line:
            break
    for _ in range(presses):
        process.send_signal(signal.SIGINT)
        time.sleep(0.02)
    _, errors = process.communicate(timeout=1800)
    assert process.returncode == 130
    assert "everything measured is kept" in errors
    assert len(store.measurements(kb)) >= 3
    (row,) = store.session_rows(kb)
    assert row["reason"] == "interrupted"


def test_best_names_what_it_rests_on(tuned):
    kb, document = tuned
    done = autoscout("best", document["session"]["session"], "--evidence", kb=kb)
    assert done.returncode == 0, done.stderr
    assert "ours" in done.stdout
    assert "confirm" in done.stdout


@pytest.mark.parametrize(("before", "asked"), [(signal.SIG_IGN, 0), (signal.SIG_DFL, 2)])
def test_a_hangup_ends_a_session_unless_nohup_started_it(before, asked):
    numbers = (signal.SIGINT, signal.SIGUSR1, signal.SIGTERM, signal.SIGHUP)
    found = [signal.getsignal(number) for number in numbers]
    signal.signal(signal.SIGHUP, before)
    try:
        stop = Stop()
        stop_on_signals(stop)
        signal.raise_signal(signal.SIGHUP)
        assert stop.asked == asked
    finally:
        for number, handler in zip(numbers, found, strict=True):
            signal.signal(number, handler)


def test_init_alone_asks_three_questions_on_a_terminal_and_writes_the_job(tmp_path):
    terminal, end = pty.openpty()
    answers = b"no-such-model\nllama-3.2-3b\nmany\n8 h100\n30m\n"
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    asked = subprocess.Popen(
        [sys.executable, "-m", "tui.cli", "init"], cwd=tmp_path, env=environment, stdin=end, stderr=subprocess.PIPE
    )
    os.write(terminal, answers)
    errors = asked.communicate(timeout=60)[1].decode()
    os.close(terminal)
    os.close(end)
    assert asked.returncode == 0, errors
    assert "'no-such-model' is neither a file nor a program on this machine" in errors
    assert "'many' is not a number and a kind of device" in errors
    job = tomllib.loads((tmp_path / "llama-3.2-3b.toml").read_text())
    assert job["cluster"]["nodes"] == [{"device": "h100", "count": 8}]
    assert job["budget"]["wall"] == "30m"


def test_demo_shows_a_recorded_verdict_and_tunes_a_recorded_job(tmp_path):
    done = verbs.run("demo", AUTOSCOUT_KB=str(tmp_path / "kb.duckdb"))
    assert done.returncode == 0, done.stderr
    assert "% faster than the expert default, sure" in done.stdout
    assert "smallest-cpu-replay: " in done.stdout
    assert "autoscout init" in done.stdout.splitlines()[-1]
