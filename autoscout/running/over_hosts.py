"""Runs an experiment on several hosts: an agent on each host starts the host's ranks, whose rendezvous is an address of
the first host. A host that does not share the experiment's folder receives the ranks' input files and sends back their
output files.
"""

import base64
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from autoscout.running import interpreter, processes, results
from autoscout.running.cluster.choosing import Choose, way_to
from autoscout.running.cluster.devices import SEPARATOR, device_kind
from autoscout.running.cluster.placement import Host, Placement
from autoscout.running.meeting import allowed, met
from autoscout.running.node_agents import NodeAgent, heard, packed, sent, started, wait_for
from autoscout.running.outcome import RunOutcome
from autoscout.running.roster import Roster
from kb.records import AutoscoutError, Job, Node

_START_LIMIT_S = 300.0  # time limit in seconds of the ranks' imports, which are slow on a busy machine
_LOOK_S = 60.0
_OTHERS_S = 1.0  # seconds that the other hosts get after the first failure, to report their errors
_ENDING_S = 20.0
_SKEW_S = 30.0  # largest tolerated clock difference between hosts, in seconds
_ROOM_GIB = 0.5
_ADDED = ("gpus", "gpu_memory_gib")  # environment keys whose values for all hosts are concatenated
_MAY_DIFFER = ("device", "devices", *_ADDED, "capability")


class OverHosts:
    """A launcher (interfaces.Launcher) for one experiment at a time. All methods may raise AutoscoutError, for example
    if too few hosts are left. `warm`: on each host, ranks are forked from a process that has done their imports.
    """

    unfit = False

    def __init__(self, job: Job, worker: Path, choose: Choose, warm: bool, variables: Mapping[str, str]) -> None:
        """`worker`: the script that each rank runs; `variables`: the environment of its imports."""
        self._job, self._worker, self._warm = job, worker, warm
        self._roster = Roster(choose)
        self._variables = {name: value for name, value in variables.items() if name != "GLOO_SOCKET_IFNAME"}
        self._python = interpreter.target_python(job)
        self._archive = packed([worker.parent])
        self._agents: dict[str, NodeAgent] = {}
        self._ready: set[str] = set()
        self._meeting: dict[tuple[str, ...], str] = {}
        self._token = f".autoscout-{os.getpid()}-{time.time_ns()}"
        self._found: dict[str, dict[str, str]] = {}  # host → its interpreter's versions and devices

    # ---- hosts and versions ---------------------------------------------------------------------------------------

    def probe(self, script: Path, files: list[Path]) -> dict[str, str]:
        """Versions and devices of all hosts together, from a probe of the interpreter (environment.describe). `files`:
        the job's files, which must be the same on all hosts.

        Errors: AutoscoutError (exit 2) for a host that cannot be used or differs from the first.
        """
        hosts = self._roster.chosen(self._job.devices).hosts
        agents = self._begun(hosts, lambda: False)
        if lost := next((agent.lost for agent in agents if agent.lost), ""):
            raise AutoscoutError(lost, 2)
        command = ["{python}", sent(script), device_kind(self._job)]
        looked = self._looked(agents, Path("/"), {"probe": command}, files)
        if lost := next((agent.lost for agent in agents if agent.lost), ""):
            raise AutoscoutError(lost, 2)
        for agent in agents:
            self._found[agent.host] = _parsed(agent.host, looked[agent.host]["printed"]["probe"])
        first = hosts[0].name
        for agent in agents:
            if other := _other_file(looked[first]["files"], looked[agent.host]["files"]):
                raise AutoscoutError(
                    f"{agent.host}: {other} is missing or differs from the file on {first}; copy it to this host, "
                    "or keep it in a folder that all hosts share",
                    2,
                )
            if problem := unfit_for(agent, looked[agent.host]):
                raise AutoscoutError(problem, 2)
        for host, versions in self._found.items():
            if differs := _differs(self._found[first], versions):
                name, here, there = differs
                raise AutoscoutError(
                    f"{host}: has {name} {there or '(not installed)'}, but {first} has {here or 'none'}; all "
                    "ranks of an experiment need the same version: install it on that host, or set launch.python "
                    "to an interpreter that is the same on all hosts",
                    2,
                )
        return _together([(len(host.devices), self._found[host.name]) for host in hosts])

    def on(self, placement: Placement) -> None:
        """Sets the placement of the next runs; by default the first hosts that have not failed."""
        self._roster.placement = placement

    def only(self, nodes: Sequence[Node]) -> None:
        """Sets the job's nodes that the next run uses."""
        self._roster.nodes = nodes

    def start(self, stopping: Callable[[], bool]) -> None:
        """Starts agents on the hosts that would be used now, and the ranks' imports there."""
        agents = self._begun(self._roster.chosen(self._job.devices).hosts, stopping)
        if self._warm:
            self._warmed([agent for agent in agents if not agent.lost], stopping)

    def close(self) -> None:
        for agent in self._agents.values():
            agent.end()
        self._agents.clear()
        self._ready.clear()

    # ---- an experiment --------------------------------------------------------------------------------------------

    def run(self, experiment: Path, ranks: int, timeout_s: float, stopping: Callable[[], bool]) -> RunOutcome:
        placement = self._roster.chosen(ranks)
        agents = self._begun(placement.hosts, stopping)
        if self._warm:
            self._warmed(agents, stopping)
        if stopping():
            return RunOutcome(stopped=True)
        token = experiment.with_name(self._token)
        with results.writing(token):
            token.touch()
        looked = self._looked(agents, experiment.parent, {})
        token.unlink(missing_ok=True)
        address, port = met(agents, self._meeting, stopping)
        if lost := self._lost(agents):
            return RunOutcome(lost=lost)
        for agent in agents:
            if problem := unfit_for(agent, looked[agent.host]):
                return RunOutcome(lost=self._roster.note(agent.host, problem))
        for node, agent in enumerate(agents):
            shared = looked[agent.host]["shared"]
            agent.say({"run": self._request(experiment, placement, node, address, port, timeout_s, shared)})
        return self._watched(agents, placement, experiment.parent, timeout_s, stopping)

    def _request(
        self,
        experiment: Path,
        placement: Placement,
        node: int,
        address: str,
        port: int,
        timeout_s: float,
        shared: bool,
    ) -> dict[str, Any]:
        folder, devices = str(experiment.parent.resolve()), placement.hosts[node].devices
        start, world, own = placement.first_rank(node), placement.ranks, len(devices)
        visible = {"CUDA_VISIBLE_DEVICES": ",".join(device.index for device in devices)}
        visible = {} if device_kind(self._job) == "cpu" else visible
        common = {**allowed(), **self._variables, **visible, "LOCAL_WORLD_SIZE": str(own)}
        asked: dict[str, Any] = {
            "folder": folder,
            "shared": shared,
            "files": {} if shared else {experiment.name: experiment.read_text()},
            "environment": common,
            "meet": address,
        }
        path = f"{{folder}}/{experiment.name}"
        if self._warm:
            meeting = {"first": start, "world": world, "address": address, "port": port}
            asked["warm"] = {"experiment": path, "ranks": own, "timeout_s": timeout_s, **meeting}
            return asked
        asked["processes"] = [
            {
                "name": str(start + local),
                "log": f"rank-{start + local}.log",
                "command": ["{python}", sent(self._worker), path, "--leash"],
                "environment": {
                    "RANK": str(start + local),
                    "LOCAL_RANK": str(local),
                    "WORLD_SIZE": str(world),
                    "MASTER_ADDR": address,
                    "MASTER_PORT": str(port),
                },
            }
            for local in range(own)
        ]
        return asked

    def _watched(
        self,
        agents: list[NodeAgent],
        placement: Placement,
        folder: Path,
        timeout_s: float,
        stopping: Callable[[], bool],
    ) -> RunOutcome:
        ended: dict[str, dict[str, Any]] = {}
        began, failed_at, ended_at, timed_out = time.monotonic(), math.inf, math.inf, False

        def over() -> bool:
            """Whether to stop waiting. Ends the ranks on the remaining hosts once a host has failed or time is up."""
            nonlocal failed_at, ended_at, timed_out
            now = time.monotonic()
            if any(agent.lost for agent in agents) or any(map(_failed, ended.values())):
                failed_at = min(failed_at, now)
            late = now > began + timeout_s
            if ended_at == math.inf and (now > failed_at + _OTHERS_S or late or stopping()):
                timed_out = late and failed_at == math.inf and not stopping()
                ended_at = now
                for agent in agents:
                    if agent.host not in ended and not agent.lost:
                        agent.say({"stop": 0.0})
            return now > ended_at + _ENDING_S

        waiting = list(agents)
        while waiting and not over():
            ended |= heard(waiting, "ended", 0.0, lambda: False, lambda message: _kept(folder, message))
            waiting = [agent for agent in waiting if agent.host not in ended and not agent.lost]
        for agent in waiting:
            agent.lost = agent.lost or f"{agent.host}: the ranks on this host did not end when AutoScout stopped them"
        stopped = stopping() and any(one["stopped"] for one in ended.values())
        lost = "" if stopped else self._lost(agents)
        codes = {int(rank): code for one in ended.values() for rank, code in one["codes"].items()}
        names = [host.name for host in placement.hosts for _ in host.devices]
        problem = next((f"{host}: {one['problem']}" for host, one in ended.items() if one["problem"]), "")
        return RunOutcome(
            codes=codes,
            timed_out=timed_out,
            stopped=stopped,
            launcher_code=0,
            lost=lost or (self._roster.note(problem.partition(":")[0], problem) if problem and not stopped else ""),
            hosts=dict(enumerate(names)),
            oom_kills=sum(one["oom_kills"] for one in ended.values()),
        )

    # ---- hosts ----------------------------------------------------------------------------------------------------

    def _begun(self, hosts: Sequence[Host], stopping: Callable[[], bool]) -> list[NodeAgent]:
        """The hosts' agents; lost agents are restarted."""
        for name in (host.name for host in hosts):
            agent = self._agents.get(name)
            if agent is not None:
                agent.heard()
            if agent is None or agent.lost:
                if agent is not None:
                    agent.end()
                self._ready.discard(name)
                way = way_to(self._job.cluster.hosts, name)
                self._agents[name] = NodeAgent(way, name, self._python, self._archive)
        found = [self._agents[host.name] for host in hosts]
        started(found, stopping)
        return found

    def _warmed(self, agents: list[NodeAgent], stopping: Callable[[], bool]) -> None:
        cold = [agent for agent in agents if agent.host not in self._ready and not agent.lost]
        zygote = ["{python}", sent(processes.WORKER / "zygote.py"), sent(self._worker), json.dumps(self._variables)]
        for agent in cold:
            agent.say({"warm": [*zygote, device_kind(self._job)], "environment": {**allowed(), **self._variables}})
        for host, ready in wait_for(cold, "warm", _START_LIMIT_S, stopping).items():
            if ready:
                self._ready.add(host)
            else:
                self._agents[host].lost = f"{host}: the target's packages cannot be imported on this host"

    def _looked(
        self, agents: list[NodeAgent], folder: Path, commands: dict[str, list[str]], files: Sequence[Path] = ()
    ) -> dict[str, Any]:
        """For each host: its disk space, file hashes, the commands' output, and whether it shares the folder."""
        asked = {"folder": str(folder.resolve()), "token": self._token, "files": [str(path) for path in files]}
        for agent in agents:
            agent.say({"look": {**asked, "commands": commands, "limit_s": _LOOK_S}})
        return wait_for(agents, "looked", _LOOK_S, lambda: False)

    def _lost(self, agents: list[NodeAgent]) -> str:
        """Counts the failures of lost hosts in the roster; returns a sentence about them, "" if none was lost."""
        return "; ".join(self._roster.note(agent.host, agent.lost) for agent in agents if agent.lost)


def unfit_for(agent: NodeAgent, looked: dict[str, Any]) -> str:
    """The reason why a host is unfit for an experiment; "" if it is fit."""
    skew = agent.hello["time"] - agent.hello["heard"]
    if abs(skew) > _SKEW_S:
        how = "ahead of" if skew > 0 else "behind"
        return (
            f"{agent.host}: the host's clock is {abs(skew):,.0f} s {how} this machine's, so times and files "
            "cannot be compared; set the host's clock (`chronyc makestep`)"
        )
    if looked.get("free_gib", math.inf) < _ROOM_GIB:
        return f"{agent.host}: {looked['free_gib']:.2f} GiB are free on the host's disk; free some space"
    return ""


def _failed(ended: dict[str, Any]) -> bool:
    return any(ended["codes"].values()) or bool(ended["problem"] or ended["stopped"])


def _kept(folder: Path, message: dict[str, Any]) -> None:
    """Appends a piece of an output file that a host has sent."""
    if "file" in message:
        path = folder / Path(message["file"]).name
        with results.writing(path), open(path, "ab") as file:
            file.write(base64.b64decode(message["data"]))


def _other_file(first: dict[str, str | None], other: dict[str, str | None]) -> str:
    return next((name for name, content in first.items() if other[name] != content), "")


def _parsed(host: str, output: str) -> dict[str, str]:
    try:
        found = json.loads(output)
        assert isinstance(found, dict)
    except (ValueError, AssertionError):
        raise AutoscoutError(
            f"{host}: the interpreter did not print its packages on this host, but: {output[-200:]!r}", 2
        ) from None
    return {str(name): str(value) for name, value in found.items()}


def _differs(first: dict[str, str], other: dict[str, str]) -> tuple[str, str, str] | None:
    """The first version that differs: (name, version on the first host, version on the other host)."""
    for name in dict.fromkeys([*first, *other]):
        if name not in _MAY_DIFFER and first.get(name) != other.get(name):
            return name, first.get(name, ""), other.get(name, "")
    return None


def _together(environments: list[tuple[int, dict[str, str]]]) -> dict[str, str]:
    """One environment for all hosts: the first host's versions, all devices, and the number of ranks on each host."""
    found = dict(environments[0][1])
    for name in _ADDED:
        if name in found:
            found[name] = SEPARATOR.join(one[name] for _, one in environments if one.get(name))
    found["device"] = " + ".join(sorted({one["device"] for _, one in environments}))
    found["devices"] = str(sum(int(one["devices"]) for _, one in environments))
    found["hosts"] = " + ".join(str(devices) for devices, _ in environments)
    return found
