"""Chooses the hosts of a job's experiments: from its host file, the Slurm allocation that we run in, or a Ray
cluster."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from autoscout.line import hostfile
from autoscout.running.cluster import slurm
from autoscout.running.cluster.devices import used_nodes
from autoscout.running.cluster.placement import Device, Host, Placement
from autoscout.running.cluster.reach import RAY_TASK, Way, refusal
from kb.records import AutoscoutError, Cluster, Configuration, Job, Node

Choose = Callable[[int, frozenset[str]], Placement]  # (number of ranks, hosts to avoid) → hosts; rank 0 is on the first


def way_to(hosts: str, name: str) -> Way:
    """The way to start processes on the host `name`; `hosts`: the job's `cluster.hosts`."""
    if hosts in ("slurm", "ray"):
        return "srun" if hosts == "slurm" else "ray"
    return "local" if name in (os.uname().nodename, "localhost") else "ssh"


def reached(cluster: Cluster) -> list[Host]:
    """The hosts of `cluster.hosts` that `include` and `exclude` select. Errors: AutoscoutError (exit 2) if the host
    file, Slurm allocation or Ray cluster is missing or invalid."""
    if cluster.hosts == "slurm":
        found = slurm.allocation(os.environ)
    elif cluster.hosts == "ray":
        found = _of_ray()
    else:
        found = {host: [str(i) for i in range(n)] for host, n in hostfile.read(Path(cluster.hosts)).items()}
    left = hostfile.part({host: len(names) for host, names in found.items()}, cluster.include, cluster.exclude)
    kinds = _kinds(cluster, list(left))
    return [
        Host(host, tuple(Device(found[host][i], kind) for i in indices))
        for (host, indices), kind in zip(left.items(), kinds, strict=True)
    ]


def _kinds(cluster: Cluster, hosts: list[str]) -> list[str]:
    """Device kind of each host, taken from the job's nodes in order, because neither host files nor Slurm nor Ray
    report it; "" for each host if the job has only one kind."""
    kinds = [node.device for node in cluster.nodes]
    if len(set(kinds)) == 1:
        return [""] * len(hosts)
    if len(hosts) != len(kinds):
        raise AutoscoutError(
            f"cluster.hosts: the job mixes kinds of device on {len(kinds)} nodes, but AutoScout cannot find out "
            f"which of the {len(hosts)} hosts ({', '.join(hosts)}) have which kind; list the job's hosts in the "
            "order of cluster.nodes (cluster.include or exclude)",
            2,
        )
    return kinds


def chooser(job: Job) -> Choose:
    """Returns a function that chooses, for each of the job's nodes, the first host with enough devices, and fills the
    chosen hosts with ranks in order. `chooser` and the returned function raise AutoscoutError (exit 2) if there are too
    few hosts."""
    known = reached(job.cluster)
    nodes = used_nodes(job, Configuration({}))

    def choose(ranks: int, avoided: frozenset[str]) -> Placement:
        free = [host for host in known if host.name not in avoided]
        taken: list[Host] = []
        left = ranks
        for node in nodes:
            if left == 0:
                break
            fitting = (h for h in free if len(h.devices) >= node.count and h.devices[0].kind in ("", node.device))
            host = next(fitting, None)
            if host is None:
                spelled = f"{node.count} device{'s' if node.count > 1 else ''}"
                mend = (
                    f"not used: {_list(avoided)}" if avoided else "add hosts to cluster.hosts, or correct cluster.nodes"
                )
                raise AutoscoutError(
                    f"no host with {spelled} is free for node {len(taken) + 1} of {len(nodes)}: "
                    f"{', '.join(f'{h.name} has {len(h.devices)}' for h in known)}; {mend}",
                    2,
                )
            free.remove(host)
            devices = [msgspec.structs.replace(d, kind=node.device) for d in host.devices[: min(left, node.count)]]
            taken.append(msgspec.structs.replace(host, devices=tuple(devices)))
            left -= len(devices)
        return Placement(tuple(taken))

    return choose


def first(placement: Placement, ranks: int) -> Placement:
    """The part of a placement on which its first `ranks` ranks run."""
    found: list[Host] = []
    for host in placement.hosts:
        if ranks > 0:
            found.append(msgspec.structs.replace(host, devices=host.devices[:ranks]))
            ranks -= len(host.devices)
    return Placement(tuple(found))


def of_nodes(placement: Placement, nodes: Sequence[Node]) -> Placement:
    """The part of a placement for these nodes: for each, the first remaining host with enough devices of its kind."""
    left, found = list(placement.hosts), []
    for node in nodes:
        host = next(host for host in left if host.devices[0].kind == node.device and len(host.devices) >= node.count)
        left.remove(host)
        found.append(msgspec.structs.replace(host, devices=host.devices[: node.count]))
    return Placement(tuple(found))


def _of_ray() -> dict[str, list[str]]:
    asked = subprocess.run([sys.executable, str(RAY_TASK)], capture_output=True, text=True)
    if asked.returncode:
        last = asked.stderr.strip().rpartition("\n")[2].removeprefix("ray: ")
        raise AutoscoutError(f'cluster.hosts = "ray": {refusal("", asked.stderr) or last}', 2)
    nodes = json.loads(asked.stdout.strip().splitlines()[-1])
    return {node["address"]: [str(i) for i in range(int(node["gpus"] or node["cpus"]))] for node in nodes}


def _list(names: frozenset[str]) -> str:
    return ", ".join(sorted(names))
