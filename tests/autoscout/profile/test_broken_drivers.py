"""Drivers that are slow, that lose a GPU, and GPUs that err in mid-run: fake driver programs, real processes."""

import sys
from pathlib import Path

import msgspec
import pytest
import verbs

from autoscout.machine.doctor import examine
from autoscout.running.cluster import gpus
from autoscout.running.interfaces import Profiler
from autoscout.targets.command.profiler import CommandProfiler
from autoscout.tuning.loop import Stop
from autoscout.tuning.session import profile_one
from kb import journal as journals
from kb import store
from kb.journal import ExperimentEnded
from kb.records import Cluster, Configuration, Job, LaunchSettings, Node, Objective, OwnKnob, SpaceLimits

A100 = "NVIDIA A100-SXM4-80GB"
LOST = "Unable to determine the device handle for GPU0000:3B:00.0: GPU is lost.  Reboot the system to recover this GPU"


def said_by_doctor(tmp_path: Path) -> tuple[str, str]:
    job = Job(name="x", target="command", objective=Objective(minimize="step_time_s"), cluster=Cluster(nodes=[]))
    found = next(f for f in examine(tmp_path / "kb.duckdb", job) if f.subject == "gpu")
    assert not found.ok
    return found.found, found.remedy


def test_a_driver_that_hangs_is_not_waited_for(driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is a child of it that keeps its pipe open: it would outlast the limit of a test."""
    monkeypatch.setattr(gpus, "_LIMIT_S", 0.3)
    driver("sleep 3600 & sleep 3600")
    found, remedy = said_by_doctor(tmp_path)
    assert found == "nvidia-smi did not answer within 0 s"
    assert "persistence mode" in remedy


def test_a_driver_without_its_module_says_why(driver, tmp_path: Path) -> None:
    driver("echo 'NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver.'; exit 9")
    assert "no driver answers it (NVIDIA-SMI has failed because it could" in said_by_doctor(tmp_path)[0]


def test_half_of_the_gpus_fell_off(driver, tmp_path: Path) -> None:
    rows = f"0, GPU-aa, {A100}, 12, 81920\n1, GPU-bb, {A100}, 12, 81920"
    driver(f'case "$*" in *ecc*) printf "GPU-aa, 0\\nGPU-bb, 0\\n{LOST}\\n";; *) printf "{rows}\\n";; esac')
    assert len(gpus.look()) == 2
    found, remedy = said_by_doctor(tmp_path)
    assert found == "2 answer, but the driver can no longer reach 1: " + " ".join(LOST.split())
    assert "or replace the GPU" in remedy


def job(tmp_path: Path, script: str) -> Job:
    (tmp_path / "train.py").write_text(script)
    return Job(
        name="own",
        target="command",
        objective=Objective(minimize="step_time_s"),
        cluster=Cluster(nodes=[Node(device="a100", count=1)]),
        space=SpaceLimits(knob=[OwnKnob(name="mbs", values=[1, 2], sets="--mbs")]),
        launch=LaunchSettings(
            path=str(tmp_path),
            command=f"{sys.executable} train.py",
            metrics={"step_time_s": r"step ([\d.]+)"},
            timeout_s=300.0,
        ),
    )


def test_ecc_errors_in_mid_run_are_no_fact_about_a_configuration(driver, tmp_path: Path) -> None:
    """Whatever the script makes of them."""
    counts = tmp_path / "errors"
    counts.write_text("3")
    driver(f'case "$*" in *ecc*) echo "GPU-aa, $(cat {counts})";; *) echo "0, GPU-aa, {A100}, 12, 81920";; esac')
    script = f"open({str(counts)!r}, 'w').write('5'); raise RuntimeError('CUDA error: unspecified launch failure')"
    one = job(tmp_path, script)
    measured = profile_one(one, tmp_path / "kb.duckdb", ["mbs=1"], lambda text: None, Stop())
    assert measured.status == "infrastructure", measured.evidence
    assert "GPU-aa had 2 uncorrected ECC errors" in measured.evidence
    assert "reset or replace the GPU" in measured.evidence


def ran(profiler: Profiler, folder: Path) -> tuple[str, str]:
    measured = profiler.run(Configuration({"mbs": 1}), "x", folder)
    return measured.status, measured.evidence


@pytest.mark.parametrize(
    ("script", "status", "named"),
    [
        ("raise RuntimeError('No CUDA GPUs are available')", "infrastructure", "check the driver (`nvidia-smi`)"),
        (
            "import socket; s = socket.socket(); s.bind(('', 0)); s.listen(); t = socket.socket(); "
            "t.bind(('', s.getsockname()[1]))",
            "infrastructure",
            "a port is in use",
        ),
        ("import os, signal; os.kill(os.getpid(), signal.SIGBUS)", "infrastructure", "no room in /dev/shm"),
        ("import ctypes; ctypes.CDLL('libcudnn_adv.so.9')", "infrastructure", "a library is missing"),
        ("print('CUDA out of memory, halving'); raise ValueError('3 heads')", "oom", "halving"),
        ("print('out of memory is what we avoid'); raise ValueError('3 heads')", "error", "ValueError: 3 heads"),
        ("print('GPU is lost in thought', flush=True); print('step 0.5')", "ok", ""),
    ],
    ids=["no gpu", "port", "shared memory", "library", "oom", "speaks of memory", "fine"],
)
def test_a_broken_machine_under_a_persons_own_command(tmp_path: Path, script: str, status: str, named: str) -> None:
    cpu = msgspec.structs.replace(job(tmp_path, script), cluster=Cluster(nodes=[Node(device="cpu", count=1)]))
    came, evidence = ran(CommandProfiler(cpu), tmp_path / "run")
    assert came == status, evidence
    assert named in evidence


def test_it_ends_a_session_of_a_persons_own_command_after_two_alike(tmp_path: Path) -> None:
    cpu = msgspec.structs.replace(
        job(tmp_path, "raise RuntimeError('No CUDA GPUs are available')"),
        cluster=Cluster(nodes=[Node(device="cpu", count=1)]),
    )
    (tmp_path / "job.toml").write_text(
        f"""name = "own"
target = "command"
cluster = {{ nodes = [{{ device = "cpu", count = 1 }}] }}
objective = {{ minimize = "step_time_s" }}
[launch]
path = "{tmp_path}"
command = "{cpu.launch.command}"
metrics = {{ step_time_s = 'step ([\\d.]+)' }}
[[space.knob]]
name = "mbs"
values = [1, 2, 4]
sets = "--mbs"
"""
    )
    kb = tmp_path / "kb.duckdb"
    done = verbs.run("tune", "--no-tui", "--kb", kb, tmp_path / "job.toml", TMPDIR=str(tmp_path))
    assert done.returncode == 1
    assert "so the session stops: check the driver" in done.stderr
    folder = next(store.sessions_folder(kb).iterdir())
    ended = [e for e in journals.events(folder / "journal.jsonl") if isinstance(e, ExperimentEnded)]
    assert {e.measurement.status for e in ended} == {"infrastructure"}
