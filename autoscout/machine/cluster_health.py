"""Checks a job's hosts before experiments: which hosts are reachable, which are faulty ("sick"), and how fast their
network is.

All nodes of a host file, an allocation or a cluster report their state, and every host sends messages to the next one.
Faulty hosts are written to a list in the scheduler's format, to exclude them."""

import contextlib
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from autoscout.machine import gpu_state
from autoscout.machine.doctor import Finding
from autoscout.running import interpreter, processes
from autoscout.running.cluster.choosing import reached, way_to
from autoscout.running.cluster.devices import device_kind
from autoscout.running.cluster.gpus import IDLE
from autoscout.running.cluster.placement import Host, Placement
from autoscout.running.node_agents import NodeAgent, packed, sent, started, wait_for
from autoscout.running.over_hosts import OverHosts, unfit_for
from kb.records import Job

_SCRIPT = processes.WORKER / "node_health.py"
_LINKS = processes.WORKER / "links.py"
_ASK_S, _LINKS_S = 20.0, 60.0  # time limits in seconds: of reports, and of the messages between hosts; assumed
_MIB, _TIMES = 16, 4  # size and number of messages: large enough for bandwidth, not latency, to dominate
_SLOW = 0.5  # links below this share of the median speed are slow; assumed, far beyond normal variation
_FOREIGN = 0.5  # tolerated load per core beyond 1, which other programs cause; assumed
_LEAST_SHM_GIB = 1.0  # free /dev/shm that NCCL, vLLM and data loaders need at least; assumed
_TOPOLOGY = "compare `nvidia-smi topo -m` and `nvidia-smi nvlink --status` on this host and on a different one"


class Health(msgspec.Struct, frozen=True):
    """The result of the checks. `sick`: host → (fault, remedy); `healthy`: every other host → its hardware, as text;
    `remarks`: healthy host → (what would disturb measurements, remedy); `links`: (host, next host) → GiB/s; `shared`:
    whether the working folder is the same on all hosts."""

    sick: dict[str, tuple[str, str]]
    healthy: dict[str, str]
    remarks: dict[str, tuple[str, str]]
    links: dict[tuple[str, str], float]
    shared: bool
    seconds: float


def smoke(job: Job) -> Health:
    """Checks all hosts that the job may run on. Errors: AutoscoutError (exit 2) if the job names none."""
    began = time.monotonic()
    known = reached(job.cluster)
    sick: dict[str, tuple[str, str]] = {}
    healthy: dict[str, str] = {}
    remarks: dict[str, tuple[str, str]] = {}
    joints: dict[str, str] = {}
    shared = True
    python, archive = interpreter.target_python(job), packed([])
    with contextlib.ExitStack() as ends, tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".autoscout-") as folder:
        agents = [NodeAgent(way_to(job.cluster.hosts, host.name), host.name, python, archive) for host in known]
        for agent in agents:
            ends.callback(agent.end)
        started(agents, lambda: False)
        (Path(folder) / "token").touch()
        for agent in agents:
            command = {"health": ["{python}", sent(_SCRIPT)]}
            agent.say(
                {"look": {"folder": folder, "token": "token", "files": [], "commands": command, "limit_s": _ASK_S}}
            )
        looked = wait_for(agents, "looked", _ASK_S, lambda: False)
    for agent in agents:
        if agent.lost:
            sick[agent.host] = _what_and_remedy(agent.lost)
            continue
        report = json.loads(looked[agent.host]["printed"]["health"])
        if problem := unfit_for(agent, looked[agent.host]):
            sick[agent.host] = _what_and_remedy(problem)
        elif trouble := troubles(report):
            sick[agent.host] = trouble
        else:
            shared = shared and looked[agent.host]["shared"]
            healthy[agent.host] = _shown(report)
            if (remark := busy(report) or gpu_state.limits(report["gpus"])) is not None:
                remarks[agent.host] = remark
            joints[agent.host] = gpu_state.joined(report["links"])
    for host, usual in gpu_state.odd_ones(joints).items():
        remarks.setdefault(host, (f"its GPUs are connected differently from most hosts' ({usual})", _TOPOLOGY))
    links: dict[tuple[str, str], float] = {}
    if len(healthy) > 1:
        links, failed = _measured(job, [host for host in known if host.name in healthy])
        for host, why in (failed | slow(links)).items():
            sick[host] = why
            healthy.pop(host, None)
    return Health(sick, healthy, remarks, links, shared, time.monotonic() - began)


def troubles(report: dict[str, Any]) -> tuple[str, str] | None:
    """(fault, remedy) according to a node's report; None if it is healthy."""
    gpus = report["gpus"]
    broken = [gpu for gpu in gpus if gpu["ecc"]]
    held = [gpu for gpu in gpus if gpu["used_gib"] and gpu["total_gib"] and gpu["used_gib"] > IDLE * gpu["total_gib"]]
    if report["lost"]:
        return (
            f"the driver can no longer reach a GPU: {report['lost'][0]}",
            "reset (`nvidia-smi -r`) or replace the GPU, or restart the node",
        )
    if broken:
        first = broken[0]
        return f"GPU {first['index']} has {first['ecc']:.0f} uncorrected ECC errors", "reset or replace the GPU"
    if report["xid"]:
        return (
            f"the kernel reports {report['xid'][-1].strip()}",
            "look up the Xid error (`dmesg | grep Xid`), and restart the node",
        )
    if held:
        first = held[0]
        took = f"{first['used_gib']:.1f} of {first['total_gib']:.1f} GiB"
        return f"other processes use {took} of GPU {first['index']}", "end the other processes (`nvidia-smi`), or wait"
    if found := gpu_state.slowed(gpus):
        return found
    if report["shm_free_gib"] < _LEAST_SHM_GIB:
        return (
            f"{report['shm_free_gib']:.2f} GiB free in /dev/shm",
            "free space in /dev/shm; for a container, raise --shm-size",
        )
    return None


def busy(node: dict[str, Any]) -> tuple[str, str] | None:
    """(description of the load by other processes, remedy) if this load would disturb measurements on a host; else
    None."""
    if node["load"] <= node["cores"] * (1 + _FOREIGN):
        return None
    what = f"{node['load']:.1f} processes compete for its {node['cores']} cores"
    return what, "end the other programs (`top` lists them), or wait: they would slow down the measurements"


def slow(links: dict[tuple[str, str], float]) -> dict[str, tuple[str, str]]:
    """Host → (fault, remedy), for hosts whose links are all slow. Empty for fewer than three links, because it is then
    unclear which end of a slow link is faulty."""
    if len(links) < 3:
        return {}
    usual = statistics.median(links.values())
    late = {pair for pair, speed in links.items() if speed < _SLOW * usual}
    hosts = {host for pair in late for host in pair}
    found = [host for host in hosts if all(pair in late for pair in links if host in pair)]
    return {
        host: (
            f"its links reach {max(links[pair] for pair in late if host in pair):.2f} GiB/s, but the median of all "
            f"links is {usual:.2f}",
            "check the host's cable, port and driver (`ethtool`, `ibstat`)",
        )
        for host in sorted(found)
    }


def excluded(job: Job, hosts: list[str]) -> str:
    """The list of hosts to exclude, in the format of the job's scheduler; "" if there are none."""
    names = sorted(hosts)
    if not names:
        return ""
    if job.cluster.hosts == "slurm":
        return f"#SBATCH --exclude={','.join(names)}\n"
    if job.cluster.hosts == "ray":
        return "".join(f"{name}\n" for name in names)
    return f"--exclude={'@'.join(names)}\n"  # DeepSpeed's launcher


def findings(job: Job, health: Health) -> list[Finding]:
    found = [
        Finding(subject=f"host {name}", ok=False, found=why, remedy=mend) for name, (why, mend) in health.sick.items()
    ]
    for name, what in health.healthy.items():
        remark, remedy = health.remarks.get(name, ("", ""))
        found.append(
            Finding(subject=f"host {name}", ok=not remark, found="; ".join(filter(None, (what, remark))), remedy=remedy)
        )
    if health.links:
        speeds = sorted(health.links.values())
        shown = f"{speeds[0]:.2f} to {speeds[-1]:.2f} GiB/s from host to host"
        found.append(Finding(subject="network", ok=True, found=shown))
    where = (
        "this folder is the same on all hosts"
        if health.shared
        else "the hosts share no folder, so AutoScout copies the files to each host"
    )
    return [*found, Finding(subject="working folder", ok=True, found=where)]


def _measured(job: Job, hosts: list[Host]) -> tuple[dict[tuple[str, str], float], dict[str, tuple[str, str]]]:
    """((host, next host) → GiB/s, host → (fault, remedy) for hosts that failed during the measurement)."""
    placement = Placement(tuple(msgspec.structs.replace(host, devices=host.devices[:1]) for host in hosts))
    names = [host.name for host in hosts]
    over = OverHosts(job, _LINKS, lambda ranks, avoided: placement, False, {"OMP_NUM_THREADS": "1"})
    with contextlib.closing(over), tempfile.TemporaryDirectory(prefix="autoscout-links-") as folder:
        experiment = Path(folder) / "experiment.json"
        experiment.write_text(json.dumps({"device": device_kind(job), "mib": _MIB, "times": _TIMES}))
        outcome = over.run(experiment, len(names), _LINKS_S, lambda: False)
        found = {}
        for number, name in enumerate(names):
            with contextlib.suppress(OSError):
                report = json.loads((Path(folder) / f"rank-{number}.json").read_text())
                found[name, names[(number + 1) % len(names)]] = report["gib_per_s"]
        if outcome.lost:
            host, why = outcome.lost.partition(": ")[::2]
            return found, {host: _what_and_remedy(why)}
        failed = sorted(rank for rank, code in outcome.codes.items() if code)
        if failed and not found:
            log = Path(folder) / f"rank-{failed[0]}.log"
            last = log.read_text(errors="replace").strip().rpartition("\n")[2][:200] if log.is_file() else ""
            return found, {
                names[failed[0]]: (
                    f"no network message from this host reached the other hosts ({last})",
                    "try `--format command`",
                )
            }
    return found, {}


def _shown(report: dict[str, Any]) -> str:
    links = gpu_state.joined(report["links"])
    gpus = f"{len(report['gpus'])} GPUs{f' ({links})' if links else ''}, " if report["gpus"] else ""
    return f"{gpus}{report['cores']} cores, {report['memory_free_gib']:.0f} GiB free"


def _what_and_remedy(sentence: str) -> tuple[str, str]:
    what, _, mend = sentence.partition("; ")
    return what.split(": ", 1)[-1], mend
