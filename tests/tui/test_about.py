"""Help by what a person wants to do, an example that works, completion, the manual page."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import verbs
from click.shell_completion import BashComplete

from tui.cli import cli

ROOT = Path(__file__).parents[2]


def test_help_names_every_verb_once_on_a_line_of_80():
    shown = verbs.run("--help").stdout
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 80
    for verb in cli.commands:
        assert sum(bool(re.match(rf"  {verb} ", line)) for line in lines) == 1
    for heading in cli.headings:
        assert f"{heading}:" in lines
    assert not any(line.endswith("...") for line in lines if line.startswith("  "))


def test_without_a_verb_and_without_a_terminal_there_is_help():
    done = verbs.run()
    assert done.returncode == 0
    assert done.stdout == verbs.run("--help").stdout


def test_tune_without_a_file_shows_examples_that_work(tmp_path):
    done = verbs.run("tune")
    assert done.returncode == 2
    examples = re.findall(r"^  autoscout (\S.*?)(?:   .*)?$", done.stderr, re.MULTILINE)
    assert examples[0].startswith("tune ")
    tried = verbs.run(*shlex.split(examples[0]), "--profiles", "1", "--no-tui", "--kb", tmp_path / "kb.duckdb")
    assert tried.returncode == 0, tried.stderr
    assert examples[1].startswith("init config.json --out job.toml")


def test_the_manual_page_is_made_from_the_verbs_and_shipped():
    page = ROOT / "docs/autoscout.1"
    made = verbs.run("man").stdout
    if os.environ.get("UPDATE_SNAPSHOTS"):
        page.write_text(made)
    assert page.read_text() == made
    for verb in cli.commands:
        assert f"autoscout {verb}" in made


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_the_manual_page_is_troff_without_a_warning():
    done = subprocess.run(
        ["groff", "-man", "-Tascii", "-P-c", "-ww", "-rLL=100n", "docs/autoscout.1"],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0
    assert "invalid" not in done.stderr
    assert "KEYS OF THE SCREENS" in re.sub(".\x08", "", done.stdout)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_told_how_to_complete(shell):
    assert "_AUTOSCOUT_COMPLETE" in verbs.run("completion", shell).stdout


def test_what_is_completed():
    complete = BashComplete(cli, {}, "autoscout", "_AUTOSCOUT_COMPLETE")
    assert [item.value for item in complete.get_completions([], "ex")] == ["export", "explain"]
    assert "--report" in [item.value for item in complete.get_completions(["best"], "--")]


def test_sessions_are_completed_the_newest_first(tmp_path, monkeypatch):
    for i, name in enumerate(("llama-1", "llama-2", "other")):
        journal = tmp_path / "sessions" / name / "journal.jsonl"
        journal.parent.mkdir(parents=True)
        journal.touch()
        os.utime(journal, (i, i))
    monkeypatch.setenv("AUTOSCOUT_KB", str(tmp_path / "kb.duckdb"))
    complete = BashComplete(cli, {}, "autoscout", "_AUTOSCOUT_COMPLETE")
    for verb in ("watch", "stop", "steer", "export", "best", "why"):
        assert [item.value for item in complete.get_completions([verb], "lla")] == ["llama-2", "llama-1"]
    assert [item.value for item in complete.get_completions(["tune", "--resume"], "o")] == ["other"]
