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
    (path,) = store.sessions_folder(kb).glob("*/journal.jsonl")
    return [e for e in journals.events(path) if isinstance(e, ExperimentEnded)]


def test_a_session_killed_with_9_leaves_nothing_running_and_goes_on(tmp_path):
    kb = tmp_path / "kb.duckdb"
    rng = random.Random(1)
    finished: list[str] = []
    arguments = [JOB, "--profiles", "12"]
    for _ in range(4):
        process = start(kb, *arguments)
        time.sleep(rng.uniform(3.0, 5.0))
        family = psutil.Process(process.pid).children(recursive=True)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        _, alive = psutil.wait_procs(family, timeout=20)
        assert alive == []
        journal = next(store.sessions_folder(kb).glob("*/journal.jsonl"), None)
        if journal is None:
            continue
        now = [e.measurement.id for e in ended(kb)]
        assert now[: len(finished)] == finished
        finished = now
        arguments = ["--resume", journal.parent.name]
    output, errors = start(kb, *arguments).communicate(timeout=240)
    document = json.loads(output)
    assert document["best"]["value"] > 0, errors
    searched = [e.measurement.configuration.id for e in ended(kb) if e.purpose == "search"]
    assert len(searched) == len(set(searched)) == 12
    assert len(store.measurements(kb)) == len(ended(kb))


@pytest.mark.thorough
def test_profile_is_held_against_the_reference_that_the_knowledge_base_knows(tmp_path):
    kb = tmp_path / "kb.duckdb"

    def profile(*assignments: str) -> tuple[dict, str]:
        command = [sys.executable, "-m", "tui.cli", "profile", JOB, *assignments, "--json", "--kb", str(kb)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
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
