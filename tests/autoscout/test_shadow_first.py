"""A session on GPUs asks a layout's shadow before its first experiment, where the memory model doubts that it fits."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kb import journal as journals
from kb import store
from kb.journal import ExperimentEnded, charged

pytestmark = [
    pytest.mark.engine,
    pytest.mark.thorough,
    pytest.mark.skipif(importlib.util.find_spec("megatron") is None, reason="needs the megatron extra"),
]
MEMORY_GIB = 0.4
# What probe.py sees of a machine with two H100 of so much memory, and of Transformer Engine.
MACHINE = f"""
import sys, types
if "probe.py" in " ".join(sys.orig_argv):
    import torch
    gpu = types.SimpleNamespace(total_memory=int({MEMORY_GIB} * 2**30), major=9, minor=0)
    torch.cuda.device_count = lambda: 2
    torch.cuda.get_device_name = lambda number=0: "NVIDIA H100 80GB HBM3"
    torch.cuda.get_device_properties = lambda number=0: gpu
    torch.version.cuda = "12.8"
    torch.cuda.nccl.version = lambda: (2, 27, 3)
"""
JOB = """
name = "tight"
task = "pretrain"
target = "megatron"
[model]
layers = 2
hidden = 512
heads = 8
vocab = 4096
ffn = 1536
gated = true
norm = "rmsnorm"
bias = false
position = "rope"
[traffic]
seq_len = 512
global_batch = 4
[cluster]
nodes = [{{ device = "h100", count = 2, memory_gib = {gib} }}]
[objective]
minimize = "step_time_s"
[budget]
profiles = 2
wall = "1s"
[launch]
python = "{python}"
transformer_engine = true
"""


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """An interpreter that finds GPUs."""
    packages, python = tmp_path / "packages", tmp_path / "python"
    about = packages / "transformer_engine-2.3.0.dist-info"
    for folder in (about, packages / "transformer_engine" / "pytorch"):
        folder.mkdir(parents=True)
    for module in ("__init__.py", "pytorch/__init__.py"):
        (packages / "transformer_engine" / module).touch()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: transformer-engine\nVersion: 2.3.0\n")
    (packages / "sitecustomize.py").write_text(MACHINE)
    python.write_text(f'#!/bin/sh\nPYTHONPATH={packages} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python


def test_what_its_shadow_does_not_fit_starts_no_rank_and_costs_no_experiment(tmp_path: Path, machine: Path) -> None:
    (tmp_path / "job.toml").write_text(JOB.format(gib=MEMORY_GIB, python=machine))
    kb = tmp_path / "kb.duckdb"
    command = [sys.executable, "-m", "tui.cli", "tune", str(tmp_path / "job.toml"), "--no-tui", "--kb", str(kb)]
    environment = {**os.environ, "XDG_DATA_HOME": str(tmp_path / "data")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=1800, check=False)
    assert "shadow 0/2" in done.stdout, done.stdout + done.stderr
    assert f"which does not fit into {MEMORY_GIB} GiB" in done.stdout
    (session,) = store.sessions_folder(kb).iterdir()
    (first,) = [e for e in journals.events(session / "journal.jsonl") if isinstance(e, ExperimentEnded)]
    m = first.measurement
    assert (m.status, m.fidelity, m.device_s) == ("oom", "shadow", 0.0)
    assert not charged(m)
    assert not list((session / "experiments").rglob("*.log")), "no rank was started"
