"""Whole sessions on the real Megatron-core, killed and resumed, through the command line."""

import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from kb import journal as journals
from kb import store
from kb.journal import ExperimentEnded, SessionStarted

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("megatron") is None, reason="needs the megatron extra"),
]

JOB = "fixtures/jobs/smallest-cpu.toml"


def start(kb: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tui.cli", "tune", "--no-tui", "--json", "--kb", str(kb), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(kb: Path) -> list[ExperimentEnded]:
    paths = store.sessions_folder(kb).glob("*/journal.jsonl")
    return [e for path in paths for e in journals.events(path) if isinstance(e, ExperimentEnded)]


def test_a_session_killed_with_9_leaves_nothing_running_and_goes_on(tmp_path):
    kb = tmp_path / "kb.duckdb"
    rng = random.Random(1)
    finished: list[str] = []
    text = Path(JOB).read_text().replace("measure_s = 2", "measure_s = 0.1").replace("repeats = 3", "repeats = 1")
    (tmp_path / "job.toml").write_text(text.replace("timeout_s = 60", "timeout_s = 300"))
    arguments = [str(tmp_path / "job.toml"), "--profiles", "6"]
    for more in (1, 2):  # experiments, before it is killed in the next
        process = start(kb, *arguments)
        while len(ended(kb)) < len(finished) + more:
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.2)
        time.sleep(rng.uniform(0.0, 0.5))
        family = psutil.Process(process.pid).children(recursive=True)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        assert family
        _, alive = psutil.wait_procs(family, timeout=1800)
        assert alive == []
        now = [e.measurement.id for e in ended(kb)]
        assert now[: len(finished)] == finished
        finished = now
        (journal,) = store.sessions_folder(kb).glob("*/journal.jsonl")
        arguments = ["--resume", journal.parent.name]
    output, errors = start(kb, *arguments).communicate()
    document = json.loads(output)
    assert document["best"]["value"] > 0, errors
    searched = [e.measurement.configuration.id for e in ended(kb) if e.purpose == "search"]
    assert len(searched) == len(set(searched)) == 6
    assert len(store.measurements(kb)) == len(ended(kb))


@pytest.mark.thorough
def test_profile_is_held_against_the_reference_that_the_knowledge_base_knows(tmp_path):
    kb = tmp_path / "kb.duckdb"

    def profile(*assignments: str) -> tuple[dict, str]:
        command = [sys.executable, "-m", "tui.cli", "profile", JOB, *assignments, "--json", "--kb", str(kb)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout), done.stderr

    first, said = profile("pp=2")
    assert "not checked" in said
    default, said = profile()
    assert "not checked" not in said
    again, said = profile("pp=2")
    assert "not checked" not in said
    assert first["losses"] == pytest.approx(default["losses"], rel=1e-4)
    assert again["status"] == "ok"
    sessions = [path.parent.name for path in store.sessions_folder(kb).glob("*/journal.jsonl")]
    assert len(sessions) == 3
    started = next(journals.read(store.sessions_folder(kb) / sessions[0] / "journal.jsonl"))[0]
    assert isinstance(started, SessionStarted)
    assert "torch" in started.environment
