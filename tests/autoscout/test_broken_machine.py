"""A machine that is broken stops a session, and is no fact about any configuration: through the command line."""

import importlib.util
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kb import journal as journals
from kb import query, store
from kb.journal import ExperimentEnded

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("megatron") is None, reason="needs the megatron extra"),
]


def tuned(kb: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Without waiting for who measures beside us: nothing is measured."""
    command = [sys.executable, "-m", "tui.cli", "tune", "--no-tui", "--kb", str(kb), *arguments]
    environment = {**os.environ, "TMPDIR": str(kb.parent)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800)


def ended(kb: Path) -> list[ExperimentEnded]:
    return [
        e
        for path in store.sessions_folder(kb).glob("*/journal.jsonl")
        for e in journals.events(path)
        if isinstance(e, ExperimentEnded)
    ]


def test_a_session_stops_and_says_what_to_mend(tmp_path: Path) -> None:
    kb, python, job = tmp_path / "kb.duckdb", tmp_path / "python", tmp_path / "job.toml"
    python.write_text(
        '#!/bin/sh\ncase "$*" in\n*torch.distributed.run*) echo "RuntimeError: No CUDA GPUs are available"; exit 1 ;;\n'
        f'*) exec {sys.executable} "$@" ;;\nesac\n'
    )
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    text = Path("fixtures/jobs/smallest-cpu.toml").read_text()
    job.write_text(text.replace("[launch]", f'[launch]\nlauncher = "torchrun"\npython = "{python}"'))

    done = tuned(kb, str(job))
    assert done.returncode == 1
    assert "(torch finds no GPU), so the session stops" in done.stderr
    assert "check the driver (`nvidia-smi`)" in done.stderr
    first = ended(kb)
    assert {e.measurement.status for e in first} == {"infrastructure"}
    assert len({e.measurement.configuration.id for e in first}) == 2
    assert len(first) <= 4, "each is tried once more, since it does not describe the configuration"
    assert store.measurements(kb) == []
    assert query.run(kb, "SELECT count(*) FROM failures").rows == [(0,)]
    assert query.run(kb, "SELECT count(*) FROM incidents").rows == [(len(first),)]

    again = tuned(kb, "--resume", next(store.sessions_folder(kb).iterdir()).name)
    assert again.returncode == 1, "the machine is as broken as before"
    assert len(ended(kb)) > len(first), "but it was tried"
