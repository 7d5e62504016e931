"""Machines that lack something: UTF-8, a home that can be written, a network, git."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pty_terminal import PtyScreens

ROOT = Path(__file__).parents[2]
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
LATIN = {**ASCII, "LANG": "en_US.ISO-8859-1", "PYTHONIOENCODING": "iso-8859-1"}
HOMELESS = {"HOME": "/proc/none"}  # where not even root can make a folder
TUNE = ("tune", "smallest-cpu-replay", "--no-tui", "--profiles", "1", "--kb", "kb.duckdb")
WATCH = ("watch", "--plain", "tiny-moe-session")
_OURS = ("XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "AUTOSCOUT_KB", "LANG", "LC_CTYPE", "PYTHONIOENCODING")


def started(
    folder: Path, words: tuple[str, ...], changes: dict[str, str], before: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[bytes]:
    """A process of its own, with its first imports: this is about how one starts."""
    clean = {name: value for name, value in os.environ.items() if name not in _OURS}
    environment = {**clean, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(folder), **changes}
    command = [*before, sys.executable, "-m", "tui.cli", *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True)
    assert b"Traceback" not in done.stderr
    return done


@pytest.mark.parametrize("locale", [ASCII, pytest.param(LATIN, marks=pytest.mark.thorough)], ids=["ascii", "latin-1"])
def test_in_a_locale_without_utf8_files_are_utf8_and_what_cannot_be_written_is_a_mark(tmp_path, locale):
    """Shipped files could not be read, and the sign for "to" in a line ended a session."""
    done = started(tmp_path, TUNE, locale)
    assert done.returncode == 0, done.stderr
    assert b"best measured configuration" in done.stdout
    done = started(tmp_path, WATCH, locale)
    assert done.returncode == 0, done.stderr
    assert b"again 1/" in done.stdout


def test_without_a_home_what_needs_none_works_and_what_does_says_so(tmp_path):
    for words in (WATCH, ("predict", "llama-3.2-3b")):
        done = started(tmp_path, words, HOMELESS)
        assert done.returncode == 0, done.stderr
    done = started(tmp_path, ("sessions",), HOMELESS)
    assert done.returncode == 1
    assert done.stderr.count(b"\n") == 1
    assert b"/proc/none/.local/share/autoscout/kb.duckdb" in done.stderr


def test_nothing_is_fetched_from_a_network_and_git_is_not_needed(tmp_path):
    alone = (shutil.which("unshare") or "unshare", "--net")
    if not shutil.which("unshare") or subprocess.run([*alone, "true"], capture_output=True).returncode:
        pytest.skip("needs the right to leave the network")
    assert started(tmp_path, TUNE, {"PATH": "/nonexistent"}, alone).returncode == 0
    done = started(tmp_path, ("sql", "SELECT count(*) AS n FROM runs", "--kb", "kb.duckdb"), {}, alone)
    assert done.returncode == 0, done.stderr


def test_a_script_for_a_batch_system_runs_and_goes_on_wherever_the_job_and_the_knowledge_base_are(tmp_path):
    """A job that comes with us was named as a file beside it, a knowledge base's own sessions were not found again."""
    words = ("tune", "smallest-cpu-replay", "--profiles", "1", "--kb", "my kb.duckdb", "--json", "--as")
    made = json.loads(started(tmp_path, (*words, "slurm"), {}).stdout)
    assert made["form"] == "slurm"
    (tmp_path / "autoscout").write_text(f'#!/bin/sh\nexec {sys.executable} -m tui.cli "$@"\n')
    (tmp_path / "autoscout").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "SLURM_JOB_ID": "7"}
    for said in (b"best measured configuration", b"resuming smallest-cpu-replay-7"):
        done = subprocess.run(["bash", "-c", made["script"]], cwd=tmp_path, env=environment, capture_output=True)
        assert said in done.stdout + done.stderr
    given, _ = json.loads(started(tmp_path, (*words, "jobset"), {}).stdout)["script"].split("\n---\n")
    assert "smallest-cpu.jsonl" in given


@pytest.mark.parametrize("kind", ["dumb", ""])
def test_a_terminal_that_cannot_place_a_cursor_gets_lines(tmp_path, kind):
    shown = PtyScreens(TERM=kind, AUTOSCOUT_KB=str(tmp_path / "kb.duckdb"))
    shown.shows("Print the manual page")
    assert shown.process.wait(60) == 0
    assert b"\x1b" not in shown.sent
    shown.close()


@pytest.mark.parametrize(("screen", "key"), [((), "n\t"), (("watch", "tiny-moe-session"), "5")], ids=["home", "watch"])
def test_without_colour_none_is_sent_and_what_the_keys_act_on_is_reversed(tmp_path, screen, key):
    """Shades of grey were sent."""
    shown = PtyScreens(*screen, NO_COLOR="1", AUTOSCOUT_KB=str(tmp_path / "kb.duckdb"), XDG_STATE_HOME=str(tmp_path))
    shown.settle(some=True)
    shown.press(key)
    shown.settle(some=True)
    assert shown.close() == 0
    looks = {int(n) for codes in re.findall(rb"\x1b\[([\d;]*)m", bytes(shown.sent)) for n in codes.split(b";") if n}
    assert not looks - {*range(10), *range(21, 30)}
    assert 7 in looks


def test_in_a_folder_that_is_gone(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    words = f"cd {gone}; rmdir {gone}; exec {sys.executable} -m tui.cli init -- torchrun train.py --lr 1"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", words], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "autoscout: the current folder no longer exists; change to another\n")
