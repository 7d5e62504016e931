"""A real terminal, through tmux: a whole live session of recorded experiments, watched, left, found again, ended."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
ROOT = Path(__file__).parents[2]


class Terminal:
    def __init__(self, folder: Path, width: int = 80, height: int = 24) -> None:
        self.socket = str(folder / "tmux")
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "screen-256color", "LANG": "C.UTF-8"}
        self._tmux("new-session", "-d", "-s", "t", "-x", str(width), "-y", str(height), "bash --norc", env=environment)

    def type(self, *keys: str) -> None:
        self._tmux("send-keys", "-t", "t", *keys)

    def run(self, *arguments: str) -> None:
        self.type(f"cd {ROOT}; clear; {sys.executable} -m tui.cli {' '.join(arguments)}", "Enter")

    def resize(self, width: int, height: int) -> None:
        """As a hand drags a window: in steps, the last of which is heard by a screen that was still starting."""
        for less in (1, 0):
            self._tmux("resize-window", "-t", "t", "-x", str(width - less), "-y", str(height))
            time.sleep(0.5)

    @property
    def text(self) -> str:
        return self._tmux("capture-pane", "-p", "-t", "t")

    def shows(self, *words: str, within_s: float = 1800.0) -> str:
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            text = self.text
            if all(word in text for word in words):
                return text
            time.sleep(0.1)
        raise AssertionError(f"{words} did not appear in:\n{self.text}")

    def lacks(self, *words: str, within_s: float = 1800.0) -> None:
        """A screen is drawn piece by piece: what the one before had is gone when all of it is there."""
        deadline = time.monotonic() + within_s
        while any(word in (text := self.text) for word in words):
            assert time.monotonic() < deadline, f"{words} did not go from:\n{text}"
            time.sleep(0.1)

    def close(self) -> None:
        self._tmux("kill-server")

    def _tmux(self, *arguments: str, env: dict[str, str] | None = None) -> str:
        command = ["tmux", "-S", self.socket, *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=env, timeout=1800).stdout


@pytest.fixture
def terminal(tmp_path):
    opened = Terminal(tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def job(tmp_path) -> Path:
    """Recorded experiments that take their time, so that there is something to watch."""
    text = (ROOT / "fixtures/jobs/smallest-cpu.toml").read_text().replace("profiles = 8", "profiles = 60")
    recorded = ROOT / "fixtures/recorded/smallest-cpu.jsonl"
    path = tmp_path / "job.toml"
    path.write_text(text.replace("[launch]", f'[launch]\nlauncher = "replay"\nrecorded = "{recorded}"'))
    return path


def sessions(tmp_path: Path) -> list[str]:
    return sorted(p.name for p in (tmp_path / "sessions").iterdir())


def test_a_whole_session(terminal, job, tmp_path):
    kb = tmp_path / "kb.duckdb"
    terminal.run("tune", str(job), "--kb", str(kb))
    terminal.shows("best so far", "experiments")
    terminal.type("p")
    terminal.shows("paused")
    (session,) = sessions(tmp_path)

    terminal.type("q")  # closing stops nothing
    terminal.shows("continues without its screens")
    other = Terminal(tmp_path / "sessions")
    try:
        other.run("watch", "--kb", str(kb))
        other.shows("paused")
        other.resize(120, 40)
        other.shows("2×2 grid", "failures")
        other.type("7")
        other.shows("knowledge base", "ctrl+j")
        other.type("select p")  # once it let the session go on: p was an order here, too
        other.shows("select p", "paused")
        other.type("Escape")
        other.shows("q close")  # else a terminal takes escape and 5 for one key
        other.type("5")
        other.shows("experiment ", "r again")
        other.type("p")  # a letter like another where one filters
        other.type("1")
        other.shows("best so far", "paused")
        other.type("p")
        other.shows("ended:")
        other.type("8")
        other.shows("torchrun --nproc-per-node")
        other.type("q")
        other.shows("bash-")
    finally:
        other.close()
    terminal.run("sessions", "--kb", str(kb))
    terminal.shows(session, "ended")


@pytest.mark.thorough
def test_stopping_asks_once_and_still_ends_on_a_result(terminal, job, tmp_path):
    terminal.run("tune", str(job), "--kb", str(tmp_path / "kb.duckdb"))
    terminal.shows("experiments")
    terminal.type("p")
    terminal.shows("paused")
    terminal.type("S")
    terminal.shows("Stop this session?", "are kept")
    terminal.type("y")
    terminal.type("p")
    terminal.shows("ended: the user stopped it")


def test_a_killed_engine_is_seen_and_the_session_resumes(terminal, job, tmp_path):
    kb = tmp_path / "kb.duckdb"
    terminal.run("tune", str(job), "--kb", str(kb))
    terminal.shows("experiments")
    terminal.type("p")
    terminal.shows("paused")
    (session,) = sessions(tmp_path)
    pid = int((tmp_path / "sessions" / session / "owner.lock").read_text().split()[0])
    os.kill(pid, 9)
    terminal.shows("the session's process is gone")
    terminal.type("q")
    terminal.shows("did not end by itself")
    terminal.run("tune", "--resume", session, "--kb", str(kb))
    terminal.shows("ended:")


def test_without_a_terminal_that_can_place_text_there_are_lines(terminal, job, tmp_path):
    terminal.resize(120, 60)
    terminal.type("export TERM=dumb", "Enter")
    terminal.run("tune", str(job), "--profiles", "3", "--kb", str(tmp_path / "kb.duckdb"))
    terminal.shows("best measured configuration", "experiments, re-measurements included")


@pytest.mark.engine
@pytest.mark.thorough
def test_real_experiments_through_a_lost_terminal_a_second_one_ctrl_c_and_a_killed_engine(tmp_path, terminal):
    """Nothing is replayed here: Megatron-core trains."""
    job, kb = tmp_path / "job.toml", tmp_path / "kb.duckdb"
    text = (ROOT / "fixtures/jobs/smallest-cpu.toml").read_text()
    text = text.replace("profiles = 8", "profiles = 6").replace("iterations = 3", "iterations = 60")
    job.write_text(text)
    terminal.run("tune", str(job), "--kb", str(kb))
    terminal.shows("best so far", "experiments 1/6")
    terminal.close()  # the screens die with their terminal, the engine does not
    (session,) = sessions(tmp_path)
    other = Terminal(tmp_path / "sessions")
    try:
        other.run("watch", session, "--kb", str(kb))
        other.shows("time ", "of 5m", "left ")
        other.type("4")
        other.shows("held by this session")
        other.resize(120, 40)
        other.shows("queue", "process")
        other.type("C-c")  # does not end anything
        other.type("1", "p")
        other.shows("paus")
        pid = int((tmp_path / "sessions" / session / "owner.lock").read_text().split()[0])
        os.kill(pid, 9)
        other.shows("the session's process is gone", f"autoscout tune --resume {session}")
        other.type("q")
        other.shows("bash-")  # what is typed before that, the closing screens would take
        other.run("tune", "--resume", session, "--kb", str(kb))
        other.shows("ended:", "result")
    finally:
        other.close()


class Stranger:
    """Somebody who reads the screen alone: every key is counted, but for those of a path."""

    def __init__(self, terminal: Terminal) -> None:
        self.terminal, self.keys = terminal, 0

    def press(self, *keys: str) -> None:
        self.keys += len(keys)
        self.terminal.type(*keys)

    def path(self, path: Path) -> None:
        self.terminal.type("-l", str(path))


def own_model(folder: Path) -> Path:
    model = folder / "my-llama"
    model.mkdir()
    (model / "config.json").write_text(
        '{"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128, '
        '"vocab_size": 256, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "hidden_act": "silu"}'
    )
    return model / "config.json"


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 50)], ids=lambda s: f"{s[0]}x{s[1]}")
def test_home_and_the_new_job_fit_each_size(tmp_path, size):
    terminal = Terminal(tmp_path, *size)
    try:
        terminal.type(f"export AUTOSCOUT_KB={tmp_path}/kb.duckdb XDG_STATE_HOME={tmp_path}/state", "Enter")
        terminal.run()
        terminal.shows("sessions", "none yet; press n to create a job", "gpt3-175b-stack", "n new job")
        terminal.type("n")
        shown = terminal.shows("config.json or its folder", "engine", "devices", "budget", "start", "esc back")
        assert "…" not in "\n".join(line for line in shown.splitlines() if "config.json" in line)
        terminal.lacks("n new job", "none yet")
        terminal.type("Escape")
        terminal.shows("n new job")
        terminal.type("q")
        terminal.shows("bash-")
    finally:
        terminal.close()


@pytest.mark.engine
def test_a_stranger_tunes_a_model_of_their_own_in_twelve_keys(terminal, tmp_path):
    """From an empty knowledge base to a session that runs, without the documentation: `autoscout`, then what the screen
    says."""
    config = own_model(tmp_path)
    home = f"XDG_STATE_HOME={tmp_path}/state AUTOSCOUT_KB={tmp_path}/kb.duckdb PYTHONPATH={ROOT}"
    terminal.type(f"mkdir {tmp_path}/work; cd {tmp_path}/work; clear; {home} {sys.executable} -m tui.cli", "Enter")
    stranger = Stranger(terminal)
    terminal.shows("press n to create a job")
    stranger.press("n")
    terminal.shows("config.json or its folder", "trains;")
    stranger.path(config)
    stranger.press("Enter")
    stranger.press("Enter")  # on "start"; it waits for the check by itself
    terminal.shows("measuring the default")
    terminal.shows("experiments 1/30")
    assert stranger.keys <= 12
    assert (tmp_path / "work/my-llama.toml").is_file()
    (session,) = sessions(tmp_path)
    pid = int((tmp_path / "sessions" / session / "owner.lock").read_text().split()[0])
    os.kill(pid, 15)
    terminal.shows("ended: interrupted")
    terminal.type("q")
    terminal.shows("my-llama-2", "interrupted", "n new job")  # home again
    terminal.type("q")
    terminal.shows("bash-")
