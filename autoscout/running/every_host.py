"""Starts a user's own command on every host of an experiment and prints the first host's output.

    python -m autoscout.running.every_host SPEC.json

If the command fails on another host first, that host's log is printed at the end, because the errors of the remaining
hosts only follow from that failure. The experiment's folder gets a file `failed` with the host that failed first
("HOST<tab>number of OOM kills by its kernel"), and a file `lost` with a host to which the connection was lost
("HOST<tab>reason"). If signal n ended the command, the exit code is 128 + n, as in a shell. When this process ends, all
processes that it started on the hosts end.
"""

import base64
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from autoscout.running.cluster.choosing import way_to
from autoscout.running.cluster.placement import Placement
from autoscout.running.meeting import allowed, met
from autoscout.running.node_agents import NodeAgent, heard, packed, started, wait_for

NODE, HEAD, PORT, RANKS = "@node@", "@head@", "@port@", "@ranks@"  # placeholders, replaced once the hosts answer
LOST, FAILED = "lost", "failed"
_ASK_S = 60.0
_OTHERS_S = 2.0  # seconds that the other hosts get after the first failure, to log their errors
_ENDING_S = 20.0
_GRACE_S = 5.0  # how long the command may take to end after SIGTERM
_TAIL = 2**16


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """The experiment to run. `python`: command that starts an interpreter on each host; `hosts`: as in a job's cluster;
    `variables`: environment variables of the command, in addition to those of the host; `visible`: whether to set
    CUDA_VISIBLE_DEVICES."""

    hosts: str
    placement: Placement
    python: list[str]
    command: list[str]
    variables: dict[str, str]
    cwd: str
    folder: str
    files: dict[str, str]
    visible: bool
    # kind of device → {text: replacement}, for the command and the variables on hosts with this kind
    by_kind: dict[str, dict[str, str]] = {}


def main(path: Path) -> int:
    spec = msgspec.json.decode(path.read_bytes(), type=Spec)
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, frame: asked.append(number))
    archive = packed([])
    agents = [
        NodeAgent(way_to(spec.hosts, host.name), host.name, spec.python, archive) for host in spec.placement.hosts
    ]
    try:
        return _Run(spec, agents).to_its_end(asked)
    finally:
        for agent in agents:
            agent.end()


class _Run:
    def __init__(self, spec: Spec, agents: list[NodeAgent]) -> None:
        self._spec, self._agents, self._folder = spec, agents, Path(spec.folder)
        self._tails = {agent.host: b"" for agent in agents}
        self._first = agents[0].host
        self._worst = ""  # the host that failed first

    def to_its_end(self, asked: list[int]) -> int:
        started(self._agents, lambda: bool(asked))
        token = f".autoscout-{os.getpid()}-{time.time_ns()}"
        (self._folder / token).touch()
        for agent in self._agents:
            look = {"folder": self._spec.folder, "token": token, "files": [], "commands": {}, "limit_s": _ASK_S}
            agent.say({"look": look})
        looked = wait_for(self._agents, "looked", _ASK_S, lambda: bool(asked))
        (self._folder / token).unlink()
        address, port = met(self._agents, {}, lambda: bool(asked))
        if asked or self._any_lost():
            return 1
        for node, agent in enumerate(self._agents):
            agent.say({"run": self._request(node, looked[agent.host]["shared"], address, port)})
        ended = self._watched(asked)
        if self._any_lost():
            return 1
        worst = ended.get(self._worst, {})
        if self._worst:
            (self._folder / FAILED).write_text(f"{self._worst}\t{worst['oom_kills']}")
        if self._worst != self._first and self._tails.get(self._worst):
            _out(f"\n{self._worst} failed first; its output:\n".encode() + self._tails[self._worst])
        codes = [code for one in (worst, *ended.values()) for code in one.get("codes", {}).values()]
        code = next((code for code in codes if code), 0)
        return code if code >= 0 else 128 - code

    def _request(self, node: int, shared: bool, address: str, port: int) -> dict[str, Any]:
        spec, host = self._spec, self._spec.placement.hosts[node]
        own = {NODE: str(node), HEAD: address, PORT: str(port), RANKS: str(len(host.devices))}
        own |= spec.by_kind.get(host.devices[0].kind, {})
        if not shared:
            own[spec.folder] = "{folder}"

        def here(text: str) -> str:
            for name, value in own.items():
                text = text.replace(name, value)
            return text

        visible = {"CUDA_VISIBLE_DEVICES": ",".join(d.index for d in host.devices)} if spec.visible else {}
        variables = {**allowed(), **visible, **{name: here(value) for name, value in spec.variables.items()}}
        files = {} if shared else {here(name): here(content) for name, content in spec.files.items()}
        command = {
            "name": host.name,
            "log": f"node-{node}.log",
            "command": [here(word) for word in spec.command],
            "environment": {},
            "cwd": spec.cwd,
        }
        return {
            "folder": spec.folder,
            "shared": False,  # makes the agent send the output, even if the host shares our folder
            "files": files,
            "environment": variables,
            "meet": address,
            "processes": [command],
        }

    def _watched(self, asked: list[int]) -> dict[str, dict[str, Any]]:
        ended: dict[str, dict[str, Any]] = {}
        waiting, ending = list(self._agents), False
        until = failed_at = float("inf")
        while waiting and time.monotonic() < until:
            for agent in waiting:
                ended |= heard([agent], "ended", 0.0, lambda: False, lambda m, host=agent.host: self._kept(host, m))
                report = ended.get(agent.host, {})
                if problem := report.get("problem"):  # nothing was started on that host
                    gone = self._spec.cwd and problem.startswith(self._spec.cwd)
                    mend = "; copy it to that host, or keep it in a folder that all hosts share" if gone else ""
                    agent.lost = f"{agent.host}: {problem}{mend}"
                bad = agent.lost or any(report.get("codes", {}).values())
                if bad and not self._worst:
                    self._worst, failed_at = agent.host, time.monotonic()
            waiting = [agent for agent in waiting if agent.host not in ended and not agent.lost]
            if not ending and (asked or time.monotonic() > failed_at + _OTHERS_S):
                ending, until = True, time.monotonic() + _ENDING_S + _GRACE_S
                for agent in waiting:
                    agent.say({"stop": _GRACE_S if asked else 0.0})
        return ended

    def _kept(self, host: str, message: dict[str, Any]) -> None:
        data, name = base64.b64decode(message.get("data", "")), Path(message.get("file", "")).name
        if not name:
            return
        if name.startswith("node-"):
            self._tails[host] = (self._tails[host] + data)[-_TAIL:]
            if host == self._first and self._worst in ("", host):
                _out(data)
                return
        with open(self._folder / name, "ab") as file:
            file.write(data)

    def _any_lost(self) -> bool:
        lost = [agent for agent in self._agents if agent.lost]
        if lost:
            (self._folder / LOST).write_text(f"{lost[0].host}\t{lost[0].lost}")
            _out(f"\na host failed: {lost[0].lost}\n".encode())
        return bool(lost)


def _out(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
