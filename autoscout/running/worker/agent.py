"""Runs one node's processes of an experiment, sends their files to the controller, and leaves no process running.

The controller (node_agents.py) sends this script to a node and starts it there (by ssh, srun or Ray) with the ranks'
interpreter; it needs only the standard library. Protocol on stdin and stdout: one JSON object per line. The agent's
first line describes the node. Requests of the controller:

    {"look": {…}}     → {"looked": {…}}: free disk space, hashes of files, output of commands
    {"meet": true}    → {"meet": {…}}: addresses of this node, and a port that accepts connections for a while
    {"reach": {…}}    → {"reach": […]}: the given addresses that this node can connect to
    {"port": true}    → {"port": n}: a free port
    {"warm": […]}     → {"warm": bool}: whether a process has done the ranks' imports and can fork them (zygote.py)
    {"run": {…}}      → {"file": name, "data": base64} for every piece of the run's files, then {"ended": {…}}
    {"stop": grace}   ends the run: SIGTERM, and after `grace` seconds SIGKILL to everything it started

An empty line is a heartbeat, in both directions. When stdin closes, or the controller is silent for SILENT_S (a pulled
cable), this process ends with everything that it started.
"""

import base64
import contextlib
import fcntl
import hashlib
import json
import os
import platform
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import leash
import supervise

SILENT_S = 30.0  # seconds of silence after which the controller counts as dead
_BEAT_S = 2.0
_TICK_S = 0.05
_FILES_S = 0.2  # seconds between two checks for new output
_PIECE = 2**18
_GRACE_S = 2.0  # seconds that other ranks get after the first failure, to log their errors
_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
_SIOCGIFADDR = 0x8915


class Agent:
    """Handles requests of the controller. `home`: the folder with the scripts that the controller sent."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._heard = self._beat = time.monotonic()
        self._buffer = b""
        self._answers = os.dup(1)  # only answers go to the original stdout, other output to stderr
        os.dup2(2, 1)
        self._zygote: subprocess.Popen[bytes] | None = None
        self._run: NodeRun | None = None
        self._open: socket.socket | None = None

    def main(self) -> None:
        self.say({"hello": {"host": platform.node(), "python": platform.python_version(), "time": time.time()}})  # noqa: TID251 - a date
        while True:
            wanted = [0, *([self._zygote.stdout] if self._zygote and self._run and self._run.warm else [])]
            ready = select.select(wanted, [], [], _TICK_S if self._run else 1.0)[0]
            if 0 in ready:
                data = os.read(0, 2**16)
                if not data:
                    return
                self._heard = time.monotonic()
                self._buffer += data
                while b"\n" in self._buffer:
                    line, self._buffer = self._buffer.split(b"\n", 1)
                    if line.strip():
                        self._obey(json.loads(line))
            now = time.monotonic()
            if now > self._heard + SILENT_S:
                return
            if now > self._beat + _BEAT_S:
                self._beat = now
                bury([*([self._zygote] if self._zygote else []), *(self._run.processes.values() if self._run else [])])
                os.write(self._answers, b"\n")
            if self._run is not None and self._run.step():
                self.say({"ended": self._run.ended()})
                self._run = None

    def say(self, answer: dict[str, Any]) -> None:
        data = json.dumps(answer).encode() + b"\n"
        while data:
            data = data[os.write(self._answers, data) :]

    def end(self) -> None:
        kill_all(0.0)

    def _obey(self, asked: dict[str, Any]) -> None:
        if "look" in asked:
            self.say({"looked": look(asked["look"], self._filled)})
        elif "meet" in asked:
            self._open = socket.create_server(("", 0), backlog=64)
            self.say({"meet": {"port": self._open.getsockname()[1], "addresses": addresses()}})
        elif "reach" in asked:
            self.say({"reach": [a for a in asked["reach"]["addresses"] if answers(a, asked["reach"]["port"])]})
        elif "port" in asked:
            self.say({"port": free_port()})
        elif "warm" in asked:
            self.say({"warm": self._warmed([self._filled(word) for word in asked["warm"]], asked["environment"])})
        elif "run" in asked:
            if self._open is not None:
                self._open.close()
            self._run = NodeRun(asked["run"], self._filled, self._zygote, self.say)
        elif "stop" in asked and self._run is not None:
            self._run.stop(asked["stop"])

    def _filled(self, word: str) -> str:
        return word.replace("{agent}", str(self.home)).replace("{python}", sys.executable)

    def _warmed(self, command: list[str], variables: dict[str, str]) -> bool:
        """Starts the zygote, whose imports take a while; returns whether it can fork ranks."""
        if self._zygote is not None and self._zygote.poll() is None:
            return True
        with open(self.home / "zygote.log", "wb") as errors:
            self._zygote = subprocess.Popen(
                tied(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **variables},
                start_new_session=True,
            )
        assert self._zygote.stdout is not None
        while not select.select([self._zygote.stdout], [], [], _BEAT_S)[0]:
            os.write(self._answers, b"\n")
        answer = self._zygote.stdout.readline()
        self._heard = time.monotonic()
        ready = bool(answer) and json.loads(answer)["ready"]
        if not ready:
            self._zygote.kill()
            self._zygote.wait()
            self._zygote = None
        return ready


class NodeRun:
    """One experiment's processes on this node.

    asked: {"folder", "files": {name: text}, "shared", "environment", "meet": address of the rendezvous, "processes":
    [{"name", "command", "environment"}] or "warm": a request to the zygote}. Files that the processes write into
    `folder` are sent to the controller, unless it shares this folder. "{folder}" in a command or file is replaced by
    the folder's path on this node.
    """

    def __init__(self, asked: dict[str, Any], filled: Any, zygote: "subprocess.Popen[bytes] | None", say: Any) -> None:
        self._say, self._zygote, self.warm = say, zygote, "warm" in asked
        self._shared = asked["shared"]
        self._codes: dict[str, int] = {}
        self._sent: dict[str, int] = {}  # bytes of each file already sent
        self._first = asked["warm"]["first"] if self.warm else 0
        self._folder = Path(asked["folder"]) if asked["shared"] else Path(filled("{agent}")) / "run"
        self._ending = float("inf")
        self._looked = 0.0
        self._kills = _oom_kills()
        self._problem = ""
        self._stopped: list[str] = []  # names of processes that this agent ended
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        try:
            self._begin(asked, filled)
        except OSError as error:
            self._problem = f"{error.filename or self._folder}: {error.strerror}"
            self.stop(0.0)

    def _begin(self, asked: dict[str, Any], filled: Any) -> None:
        if not self._shared:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True, exist_ok=True)

        def here(text: str) -> str:
            return filled(text).replace("{folder}", str(self._folder))

        for name, text in asked["files"].items():
            path = Path(here(name)) if name.startswith("/") or "{folder}" in name else self._folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(here(text))
            self._sent[path.name] = path.stat().st_size
        path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
        ours = {**os.environ, "PATH": path, **towards(asked["meet"]), **asked["environment"]}
        if self.warm:
            assert self._zygote is not None
            assert self._zygote.stdin is not None
            request = {**asked["warm"], "experiment": here(asked["warm"]["experiment"])}
            request["environment"] = {k: v for k, v in ours.items() if k in _INTERFACES or k in asked["environment"]}
            os.write(self._zygote.stdin.fileno(), json.dumps(request).encode() + b"\n")
            return
        for one in asked["processes"]:
            with open(self._folder / one["log"], "ab") as log:
                self.processes[one["name"]] = subprocess.Popen(
                    tied([here(word) for word in one["command"]]),
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=one.get("cwd") or None,
                    env={**ours, **{name: here(value) for name, value in one["environment"].items()}},
                    start_new_session=True,
                )

    def step(self) -> bool:
        """Sends new output and notices processes that have ended; never blocks. Returns whether the run is over."""
        over = self._warm_step() if self.warm else self._fresh_step()
        now = time.monotonic()
        if not self._shared and (over or now > self._looked + _FILES_S):
            self._looked = now
            self._bring()
        return over

    def ended(self) -> dict[str, Any]:
        kills = _oom_kills() - self._kills
        return {"codes": self._codes, "stopped": self._stopped, "problem": self._problem, "oom_kills": kills}

    def stop(self, grace_s: float) -> None:
        """Sends SIGTERM now, and SIGKILL after `grace_s`."""
        self._ending = min(self._ending, time.monotonic() + grace_s)
        if self.warm:
            assert self._zygote is not None
            assert self._zygote.stdin is not None
            with contextlib.suppress(OSError):
                os.write(self._zygote.stdin.fileno(), b'{"stop": true}\n')
        for name, process in self.processes.items():
            if process.poll() is None:
                self._stopped.append(name)
                process.terminate()

    def _warm_step(self) -> bool:
        assert self._zygote is not None
        assert self._zygote.stdout is not None
        if select.select([self._zygote.stdout], [], [], 0)[0]:
            line = self._zygote.stdout.readline()
            if not line:
                self._problem = f"AutoScout's process that forks the ranks has died ({self._zygote.wait()})"
                kill_all(0.0)
                return True
            answer = json.loads(line)
            first = self._first
            self._codes = {str(first + i): c for i, c in enumerate(answer["codes"]) if i not in answer["ended"]}
            self._stopped = [str(first + i) for i in answer["ended"]]
            return True
        if time.monotonic() > self._ending + 5.0:  # SIGTERM had no effect
            self._zygote.kill()
        return False

    def _fresh_step(self) -> bool:
        for name, process in self.processes.items():
            code = process.poll()
            if code is not None and name not in self._codes:
                self._codes[name] = code
                if code and self._ending == float("inf"):
                    self._ending = time.monotonic() + _GRACE_S
        if len(self._codes) < len(self.processes) and time.monotonic() < self._ending:
            return False
        late = [name for name in self.processes if name not in self._codes]
        self._stopped += [name for name in late if name not in self._stopped]
        kill_all(0.0, sparing=self._zygote)
        bury([*([self._zygote] if self._zygote else []), *self.processes.values()])
        for process in self.processes.values():
            process.wait()
            if process.stdin is not None:
                process.stdin.close()
        self._codes = {name: code for name, code in self._codes.items() if name not in self._stopped}
        return True

    def _bring(self) -> None:
        for path in sorted(self._folder.iterdir()):
            with contextlib.suppress(OSError):
                if path.name.endswith(".part") or not path.is_file():
                    continue
                at = self._sent.get(path.name, 0)
                with open(path, "rb") as file:
                    file.seek(at)
                    while piece := file.read(_PIECE):
                        at += len(piece)
                        self._say({"file": path.name, "data": base64.b64encode(piece).decode()})
                self._sent[path.name] = at


def look(asked: dict[str, Any], filled: Any) -> dict[str, Any]:
    """Examines the node. asked: {"folder", "token", "files": paths, "commands": {name: words}, "limit_s"}. Returns
    `free_gib` of the disk for experiments, `shared` (whether the folder contains the controller's file `token`), hashes
    of `files` (null: missing), and the last line that each command prints."""
    folder = Path(asked["folder"])
    try:
        shared = (folder / asked["token"]).is_file()
    except OSError:
        shared = False
    found: dict[str, Any] = {"shared": shared, "files": {name: _hash(Path(name)) for name in asked["files"]}}
    with contextlib.suppress(OSError):
        found["free_gib"] = shutil.disk_usage(folder if shared else filled("{agent}")).free / 2**30
    found["printed"] = {
        name: _printed([filled(w) for w in words], asked["limit_s"]) for name, words in asked["commands"].items()
    }
    found["time"] = time.time()  # noqa: TID251 - a date
    return found


def addresses() -> list[str]:
    """This node's addresses: first the one to which ssh connected, last the loopback address."""
    called = os.environ.get("SSH_CONNECTION", "").split()
    found = [called[2]] if len(called) == 4 else []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                found.append(_address_of(probe, name))
    return sorted(dict.fromkeys(found), key=lambda address: address.startswith("127."))


def answers(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=3.0).close()
    except OSError:
        return False
    return True


def towards(address: str) -> dict[str, str]:
    """Variables that make gloo and NCCL use the interface that routes to `address`; {} if unknown."""
    if not address:
        return {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))
        except OSError:
            return {}
        own = probe.getsockname()[0]
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                if _address_of(probe, name) == own:
                    return dict.fromkeys(_INTERFACES, name)
    return {}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def tied(command: list[str]) -> list[str]:
    """The command, tied to this process: the kernel kills the command when this process ends, for whatever reason."""
    return [sys.executable, leash.__file__, str(os.getpid()), *command]


def kill_all(grace_s: float, sparing: "subprocess.Popen[bytes] | None" = None) -> None:
    """Kills all descendants of this process, including daemons, which a subreaper such as this process adopts."""
    until = time.monotonic() + grace_s + 10.0
    while time.monotonic() < until:
        kept = {*supervise.descendants(sparing.pid), sparing.pid} if sparing else set()
        rest = {*supervise.descendants(os.getpid())} - kept
        if not rest:
            return
        for pid in rest:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _address_of(probe: socket.socket, interface: str) -> str:
    packed = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
    return socket.inet_ntoa(packed[20:24])


def _oom_kills() -> int:
    """Number of processes killed for lack of memory on this node so far."""
    for line in Path("/proc/vmstat").read_text().splitlines():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return 0


def bury(owned: "list[subprocess.Popen[bytes]]") -> None:
    """Reaps adopted children that have ended; `owned` processes are reaped by their Popen."""
    for process in owned:
        process.poll()
    living = {process.pid for process in owned}
    with contextlib.suppress(ChildProcessError):
        while found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if found.si_pid in living:
                return
            os.waitpid(found.si_pid, 0)


def _hash(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError:
        return None


def _printed(argv: list[str], limit_s: float) -> str:
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit_s)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"! {error}"
    lines = (done.stdout.strip() or done.stderr.strip()).splitlines()
    return lines[-1] if lines else ""


def main(home: str) -> None:
    supervise.become_subreaper()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, frame: sys.exit(1))
    agent = Agent(Path(home))
    try:
        with contextlib.suppress(BrokenPipeError, ConnectionError):
            agent.main()
    finally:
        agent.end()
        shutil.rmtree(home, ignore_errors=True)
