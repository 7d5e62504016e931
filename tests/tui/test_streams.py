"""Standard streams that are closed, as by cron, or whose reader leaves, as `head` does."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cases import few

ROOT = Path(__file__).parents[2]
TUNE = "tune smallest-cpu-replay --no-tui --profiles 1"


def in_bash(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs `line`, in which $A is `autoscout`, in a process of its own, with buffered output as users have it."""
    environment = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        "PYTHONPATH": str(ROOT),
        "A": f"{sys.executable} -m tui.cli",
        "AUTOSCOUT_KB": "",
        "XDG_DATA_HOME": str(folder),
    }
    return subprocess.run(["bash", "-c", line], cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("closed", few([">&-", "<&-", "2>&-", "<&- >&- 2>&-"], 2))
def test_a_verb_works_with_closed_streams(tmp_path, closed):
    """It was an internal error, exit code 120: no stream took its lines."""
    done = in_bash(f"$A check smallest-cpu-replay {closed}", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert ("✓ space" in done.stdout) == (">&-" not in closed.split())
    done = in_bash(f"$A nonsense {closed}", tmp_path)
    assert done.returncode == 2
    assert ("No such command 'nonsense'" in done.stderr) == ("2>&-" not in closed)


@pytest.mark.engine
def test_ranks_start_where_all_streams_are_closed(tmp_path):
    pytest.importorskip("megatron.core")
    job = (ROOT / "fixtures/jobs/smallest-cpu.toml").read_text()
    (tmp_path / "job.toml").write_text(job)
    assert in_bash("$A profile job.toml dp=2 <&- >&- 2>&-", tmp_path).returncode == 0
    done = in_bash("$A sql 'SELECT status FROM runs' --format csv", tmp_path)
    assert done.stdout.split() == ["status", "ok"]


def test_a_piped_job_that_is_no_text_is_a_sentence(tmp_path):
    """It was an internal error."""
    done = in_bash(r"printf 'name = \"j\"\n\xff' | $A tune - --no-tui", tmp_path)
    assert done.returncode == 2
    assert done.stderr.endswith(".toml: line 2 is not UTF-8; save this job file as UTF-8\n")


@pytest.mark.parametrize(
    "line",
    few(
        [
            "$A tune - --no-tui --profiles 1 < job.toml",
            "$A tune <(cat job.toml) --no-tui --profiles 1",
            "$A check /dev/stdin < job.toml",
            "$A check <(cat job.toml)",
        ],
        2,
    ),
)
def test_paths_of_a_piped_job_are_from_the_working_directory(tmp_path, line):
    """They were looked up beside its saved copy, or in /dev."""
    job = (ROOT / "fixtures/jobs/smallest-cpu.toml").read_text()
    replay = '[launch]\nlauncher = "replay"\nrecorded = "there/recorded.jsonl"'
    (tmp_path / "job.toml").write_text(job.replace("[launch]", replay))
    (tmp_path / "there").mkdir()
    shutil.copy(ROOT / "fixtures/recorded/smallest-cpu.jsonl", tmp_path / "there/recorded.jsonl")
    done = in_bash(line, tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "verb",
    few(
        [
            "--help",
            "space smallest-cpu-replay --list 9",
            "check smallest-cpu-replay",
            "explain smallest-cpu-replay tp=2",
            "watch --plain tiny-moe-session",
            "man",
            "targets --json",
            "sql 'SELECT * FROM range(100000)' --format csv",
        ],
        4,
    ),
)
def test_a_reader_that_leaves_ends_a_verb_quietly_as_the_signal_would(tmp_path, verb):
    """Exit code 1 says that a sentence on standard error explains it: there was none."""
    done = in_bash(f"$A {verb} | true; exit ${{PIPESTATUS[0]}}", tmp_path)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def test_what_is_kept_is_kept_though_its_reader_leaves(tmp_path):
    done = in_bash(f"$A {TUNE} | true; exit ${{PIPESTATUS[0]}}", tmp_path)
    assert done.returncode == 0
    assert "Broken pipe); the session continues" in done.stderr


def test_a_mistake_keeps_its_exit_code_though_nobody_reads_why(tmp_path):
    for mistake in ("nonsense", "check no-such-job"):
        assert in_bash(f"$A {mistake} 2>&1 | true; exit ${{PIPESTATUS[0]}}", tmp_path).returncode == 2
