"""Implements `autoscout doctor`: what this machine can run (devices, frameworks, limits) and what is missing."""

import contextlib
import json
import os
import platform
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec

from autoscout.machine import gpu_state
from autoscout.running import processes
from autoscout.running.cluster import gpus
from autoscout.targets import audited
from autoscout.targets.jobs import profiler_of
from autoscout.targets.seams import REMEDY, SeamFit
from autoscout.targets.target import target_of
from kb import store
from kb.records import AutoscoutError, Cluster, Job, LaunchSettings, Model, Node, Objective, Traffic

_ASKED = "`autoscout targets JOB.toml --audit` also checks the engine's settings, if the target supports it"
_REHEARSED = "`tune` first trains two layers with this version; `autoscout targets --audit` also checks its settings"
_SHM = "/dev/shm"
_MORE_SHM = "free space in /dev/shm; start a container with `--shm-size=16g`"
_NETWORK_FILESYSTEMS = {"nfs", "nfs4", "lustre", "cifs", "smb3", "fuse.sshfs", "beegfs", "gpfs", "ceph"}


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    subject: str
    ok: bool | None  # None: unknown
    found: str
    remedy: str = ""
    needed: bool = False  # whether AutoScout cannot work unless this is ok


def examine(kb: Path, job: Job | None) -> list[Finding]:
    """All findings. With a job, they include whether its target can run here."""
    return [
        _python(),
        _processor(),
        _memory(),
        *_target(job),
        (gpu := _gpu()),
        *(_gpu_limits() if gpu.ok else []),
        _shared_memory(),
        _knowledge_base(kb),
        _filesystem(kb),
    ]


def _python() -> Finding:
    return Finding(subject="python", ok=True, found=platform.python_version(), needed=True)


def _processor() -> Finding:
    cores = len(os.sched_getaffinity(0))
    return Finding(subject="processor", ok=True, found=f"{cores} cores usable of {os.cpu_count()}")


def _memory() -> Finding:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return Finding(subject="memory", ok=total > 4, found=f"{total:.0f} GiB")


def _target(job: Job | None) -> list[Finding]:
    """Findings on the target's packages in the interpreter that would run the job."""
    probe = job or _any_job()
    try:
        with contextlib.closing(profiler_of(probe)) as profiler:
            environment = profiler.environment()
        fit = target_of(probe).fit(probe, environment)
    except AutoscoutError as error:
        return [
            Finding(
                subject=probe.target,
                ok=False,
                found=str(error),
                remedy=""
                if ";" in str(error)
                else "install the missing package, or name a different interpreter in launch.python",
                needed=job is not None,
            )
        ]
    packages = [
        Finding(subject=name, ok=True, found=environment[name], needed=job is not None)
        for name in target_of(probe).packages
        if name in environment
    ]
    return [*packages, *engine(fit)]


def engine(fit: SeamFit | None) -> list[Finding]:
    """Findings on whether the installed engine has the functions and the settings that AutoScout uses."""
    if fit is None:
        return []
    remedy = REMEDY if fit.unfit else _REHEARSED if fit.tried and not fit.known else "" if fit.known else _ASKED
    ok = False if fit.unfit else True if fit.known else None
    audit = audited.recorded().get(fit.engine)
    return [
        Finding(subject="engine", ok=ok, found=fit.verdict, remedy=remedy, needed=bool(fit.unfit)),
        *([Finding(subject="audit", ok=audit.sound, found=audit.counts)] if audit else []),
    ]


def _gpu() -> Finding:
    """Whether the driver answers, and which GPUs it reports. (A driver may be installed but not answer.)"""
    seen = gpus.look()
    if not seen:
        silence = gpus.silence()
        if silence.startswith("there is no"):
            found = f"{silence.removeprefix('there is ')}, so only CPU jobs can run here"
            return Finding(subject="gpu", ok=False, found=found)
        return Finding(
            subject="gpu",
            ok=False,
            found=silence,
            remedy="run nvidia-smi yourself; after a driver update restart the machine; if it is only slow, turn on "
            "persistence mode (`nvidia-smi -pm 1`)",
        )
    if lost := gpus.health().lost:
        return Finding(
            subject="gpu",
            ok=False,
            found=f"{len(seen)} answer, but the driver can no longer reach {len(lost)}: {lost[0]}",
            remedy=(
                "reset (`nvidia-smi -r`) or replace the GPU, or restart the machine; `dmesg | grep Xid` shows the error"
            ),
        )
    counted = Counter(f"{gpu.name}{f' ({gpu.total_gib:.0f} GiB)' if gpu.total_gib else ''}" for gpu in seen)
    found = ", ".join(f"{count} × {name}" for name, count in counted.items())
    if busy := gpus.held():
        return Finding(subject="gpu", ok=False, found=f"{found}; {busy}", remedy="end the programs there, or wait")
    return Finding(subject="gpu", ok=True, found=found)


def _gpu_limits() -> list[Finding]:
    """Findings on limits of the GPUs' clocks, and on the links between GPUs."""
    asked = subprocess.run([sys.executable, str(processes.WORKER / "node_health.py")], capture_output=True, text=True)
    report = json.loads(asked.stdout) if asked.returncode == 0 else {"gpus": [], "links": ""}
    found, remedy = gpu_state.slowed(report["gpus"]) or gpu_state.limits(report["gpus"]) or ("", "")
    clocks = Finding(subject="clocks", ok=not found, found=found or "at their defaults", remedy=remedy)
    links = gpu_state.joined(report["links"])
    return [clocks, *([Finding(subject="links", ok=True, found=links)] if links else [])] if report["gpus"] else []


def _shared_memory() -> Finding:
    """Whether /dev/shm, through which NCCL, vLLM and data loaders exchange data, is large enough: containers have 64
    MiB of it by default."""
    try:
        free = shutil.disk_usage(_SHM).free / 2**30
    except OSError as error:
        return Finding(subject="shared memory", ok=False, found=f"{_SHM}: {error.strerror}", remedy=_MORE_SHM)
    return Finding(
        subject="shared memory",
        ok=free >= 1.0,
        found=f"{free:.1f} GiB free in {_SHM}",
        remedy="" if free >= 1.0 else _MORE_SHM,
    )


def _knowledge_base(kb: Path) -> Finding:
    try:
        rows = store.mark(kb)
    except AutoscoutError as error:
        return Finding(subject="knowledge base", ok=False, found=str(error), needed=True)
    if not os.access(kb, os.W_OK) or not os.access(kb.parent, os.W_OK):
        return Finding(
            subject="knowledge base",
            ok=False,
            found=f"{kb} is read-only",
            remedy="choose a --kb in a folder that you can write to",
            needed=True,
        )
    return Finding(subject="knowledge base", ok=True, found=f"{kb}, {rows} measurements")


def _filesystem(kb: Path) -> Finding:
    """Warns if the knowledge base is on a network filesystem, on which file locks may not work."""
    best, kind = "", ""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, fs, *_ = line.split()
        if str(kb.resolve()).startswith(mount) and len(mount) > len(best):
            best, kind = mount, fs
    on_network = kind in _NETWORK_FILESYSTEMS
    return Finding(
        subject="its filesystem",
        ok=not on_network,
        found=kind,
        remedy="file locks may not work on a network filesystem; choose a --kb on a local disk" if on_network else "",
    )


def _any_job() -> Job:
    return Job(
        name="doctor",
        target="megatron",
        model=Model(layers=1, hidden=8, heads=1, vocab=8),
        traffic=Traffic(seq_len=8, global_batch=1),
        cluster=Cluster(nodes=[Node(device="cpu", count=1)]),
        objective=Objective(minimize="step_time_s"),
        launch=LaunchSettings(),
    )
