"""Which hosts a job's experiments run on: those of its host file, of our Slurm allocation, or of a Ray cluster."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from autoscout.cluster.placement import Device, Host, Placement
from autoscout.cluster.reach import RAY_TASK, Way
from kb.records import AutoscoutError, Job

_SLOTS = re.compile(r"^([\w.@:-]+)(?:\s+(?:slots|slots_per_host)\s*=\s*(\d+))?(?:\s+max[_-]slots\s*=\s*\d+)?\s*$")


Choose = Callable[[int, frozenset[str]], Placement]  # (ranks, hosts that are not to be used) → hosts, the first leads


def way_to(hosts: str, name: str) -> Way:
    """How a process is started on one of a job's hosts (`cluster.hosts`)."""
    if hosts in ("slurm", "ray"):
        return "srun" if hosts == "slurm" else "ray"
    return "local" if name in (os.uname().nodename, "localhost") else "ssh"


def reached(hosts: str) -> list[Host]:
    """Errors: AutoscoutError (exit 2) for a host file, an allocation or a cluster that is not there, or is wrong."""
    if hosts == "slurm":
        return _of_slurm()
    if hosts == "ray":
        return _of_ray()
    return _of_file(Path(hosts))


def chooser(job: Job) -> Choose:
    """Takes the first hosts that have as many devices as each of the job's nodes; ranks fill them in turn."""
    known = reached(job.cluster.hosts)

    def choose(ranks: int, avoided: frozenset[str]) -> Placement:
        free = [host for host in known if host.name not in avoided]
        taken: list[Host] = []
        left = ranks
        for node in job.cluster.nodes:
            if left == 0:
                break
            host = next((host for host in free if len(host.devices) >= node.count), None)
            if host is None:
                raise AutoscoutError(
                    f"no host with {node.count} devices is free for node {len(taken) + 1} of {len(job.cluster.nodes)}: "
                    f"{', '.join(f'{h.name} has {len(h.devices)}' for h in known)}"
                    f"{f'; not used: {_list(avoided)}' if avoided else ''}",
                    2,
                )
            free.remove(host)
            devices = [msgspec.structs.replace(d, kind=node.device) for d in host.devices[: min(left, node.count)]]
            taken.append(msgspec.structs.replace(host, devices=tuple(devices)))
            left -= len(devices)
        return Placement(tuple(taken))

    return choose


def first(placement: Placement, ranks: int) -> Placement:
    """Where so many ranks of it run."""
    found: list[Host] = []
    for host in placement.hosts:
        if ranks > 0:
            found.append(msgspec.structs.replace(host, devices=host.devices[:ranks]))
            ranks -= len(host.devices)
    return Placement(tuple(found))


def _of_file(path: Path) -> list[Host]:
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise AutoscoutError(f"cluster.hosts: {path}: {error.strerror}", 2) from error
    found: list[Host] = []
    for number, line in enumerate(lines, 1):
        bare = line.partition("#")[0].strip()
        if not bare:
            continue
        parts = _SLOTS.match(bare)
        if parts is None or parts[2] == "0":
            raise AutoscoutError(f"{path}, line {number}: '{bare}' is not 'HOST slots=N' with at least one slot", 2)
        if any(host.name == parts[1] for host in found):
            raise AutoscoutError(f"{path}, line {number}: {parts[1]} is named twice; one line a host", 2)
        found.append(_host(parts[1], int(parts[2] or 1)))
    if not found:
        raise AutoscoutError(f"{path}: names no host", 2)
    return found


def _of_slurm() -> list[Host]:
    names, tasks = os.environ.get("SLURM_JOB_NODELIST"), os.environ.get("SLURM_JOB_CPUS_PER_NODE", "")
    if not names:
        raise AutoscoutError(
            'cluster.hosts = "slurm": this is no Slurm allocation; start it with `salloc -N 2 autoscout tune …`, or '
            "write what sbatch takes with `autoscout export --format slurm`",
            2,
        )
    listed = subprocess.run(["scontrol", "show", "hostnames", names], capture_output=True, text=True).stdout.split()
    gpus = os.environ.get("SLURM_GPUS_ON_NODE")
    counts = [int(gpus)] * len(listed) if gpus else _repeated(tasks)
    return [_host(host, count) for host, count in zip(listed, counts, strict=True)]


def _repeated(said: str) -> list[int]:
    """ "2(x2),4" → [2, 2, 4]"""
    found: list[int] = []
    for part in said.split(","):
        count, _, times = part.partition("(x")
        found += [int(count)] * int(times.rstrip(")") or 1)
    return found


def _of_ray() -> list[Host]:
    asked = subprocess.run([sys.executable, str(RAY_TASK)], capture_output=True, text=True)
    if asked.returncode:
        raise AutoscoutError(f'cluster.hosts = "ray": {asked.stderr.strip().splitlines()[-1:]}', 2)
    nodes = json.loads(asked.stdout.strip().splitlines()[-1])
    return [_host(node["address"], int(node["gpus"] or node["cpus"])) for node in nodes]


def _host(name: str, devices: int) -> Host:
    return Host(name, tuple(Device(str(index)) for index in range(devices)))


def _list(names: frozenset[str]) -> str:
    return ", ".join(sorted(names))
