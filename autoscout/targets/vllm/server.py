"""The launcher "serve": starts a new `vllm serve` for each experiment and sends the load over HTTP."""

import http.client
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autoscout.running import interpreter, processes, results
from autoscout.running.cluster import devices, gpus
from autoscout.running.outcome import RunOutcome
from autoscout.targets.vllm import arguments, fleet_servers
from autoscout.targets.vllm.failures import cause_in_log
from kb.records import Job

SERVER_LOG = "launcher.log"
_WORKER = Path(__file__).parent / "worker"
_KEEPER = Path(__file__).parent / "keeper.py"
_TICK_S = 0.1
_ASK_S = 5.0  # timeout of a health check in seconds
_END_LIMIT_S = 30.0
_NOTICE_LIMIT_S = 5.0
_TAKEN = "address already in use"


class Server:
    """Runs one experiment at a time in its own process trees, and ends all of their processes."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def start(self, stopping: Callable[[], bool]) -> None:
        """Does nothing, since each experiment starts its own server."""

    def close(self) -> None:
        """Does nothing, since no server outlives its experiment."""

    def run(self, experiment: Path, ranks: int, timeout_s: float, stopping: Callable[[], bool]) -> RunOutcome:
        """Starts the server, runs the load once the server is ready, and ends the server. Returns how the run ended.
        Errors: AutoscoutError if a write fails."""
        began = time.monotonic()
        while True:
            outcome = self._run(experiment.resolve(), began, began + timeout_s, stopping)
            if _TAKEN not in outcome.output or stopping() or time.monotonic() > began + timeout_s:
                return outcome  # otherwise a different program has taken the port: try again

    def _run(self, experiment: Path, began: float, deadline: float, stopping: Callable[[], bool]) -> RunOutcome:
        given = json.loads(experiment.read_bytes())
        log = experiment.with_name(SERVER_LOG)
        with results.writing(experiment.parent):
            output = open(log, "wb")  # noqa: SIM115 - `writing` must only cover the opening
        before = gpus.look() if devices.device_kind(self._job) == "cuda" else None
        trees = _Trees(lambda: time.monotonic() > deadline or stopping())
        client, phase = None, "build"
        try:
            with output:
                ports, front = self._started(given, output, trees)
            if front and not trees.over():
                phase = "load"
                client = self._client(experiment, front, ports[0], time.monotonic() - began)
                while client.poll() is None and not trees.over():
                    time.sleep(_TICK_S)
                _note_memory(experiment, trees.keepers, before)
                for keeper, port in zip(trees.keepers, ports, strict=False):
                    if not healthy(port):  # the supervisor notices the server's end a moment later
                        processes.exited(keeper, _NOTICE_LIMIT_S)
            code, answered = trees.code(), None if client is None else client.poll()
        finally:
            end(client)
            trees.end()
        late = time.monotonic() > deadline and code is None and answered is None
        if code is not None or late:
            _leave_cause(experiment, phase, log, late)
        return RunOutcome(
            codes={} if answered is None else {0: answered},
            timed_out=late,
            stopped=stopping() and answered is None,
            launcher_code=code,
            output=log.read_text(errors="replace")[-20000:],
        )

    def _started(self, given: dict[str, Any], output: Any, trees: "_Trees") -> tuple[list[int], int]:
        """Returns (ports of the servers, port for clients). The latter is 0 if a process ended before all processes
        were ready."""
        ports = [processes.free_port() for _ in given["servers"]]
        for one, port in zip(given["servers"], ports, strict=True):
            command = arguments.serve_command(self._job, given["model"], one["arguments"], port)
            side = {fleet_servers.SIDE: str(processes.free_port())} if given["router"] else {}
            trees.start(command, output, {**given["environment"], **one["environment"], **side})
        if not all(trees.ready(number, port) for number, port in enumerate(ports)):
            return ports, 0
        if not given["router"]:
            return ports, ports[0]
        front, urls = processes.free_port(), [f"http://127.0.0.1:{port}" for port in ports]
        router = fleet_servers.addressed(given["router"], "127.0.0.1", front, urls)
        trees.start([*router, "--prometheus-port", str(processes.free_port())], output, given["environment"])
        return ports, front if trees.ready(len(ports), front) else 0

    def _client(self, experiment: Path, front: int, server: int, took_s: float) -> subprocess.Popen[bytes]:
        """Starts the load generator and returns its process. `front`: the port for requests; `server`: the first
        server's port, which reports the configuration."""
        urls = [f"http://127.0.0.1:{port}" for port in (front, server)]
        script = str(_WORKER / "client.py")
        command = [*interpreter.target_python(self._job), script, str(experiment), urls[0], str(took_s), urls[1]]
        with results.writing(experiment.parent):
            output = open(experiment.with_name("rank-0.log"), "wb")  # noqa: SIM115
        with output:
            return started([sys.executable, str(_KEEPER), *command], output, None)


def variables(wanted: dict[str, str]) -> dict[str, str]:
    """Returns a server's environment variables. vLLM's development mode makes the server report its configuration, and
    Python's faulthandler prints tracebacks of crashes."""
    inherited = {**os.environ, "PYTHONFAULTHANDLER": "1", **wanted, "VLLM_SERVER_DEV_MODE": "1"}
    inherited.pop("VLLM_CPU_KVCACHE_SPACE", None)  # this variable would silently override kv_cache_memory_bytes
    return inherited


def started(command: list[str], output: Any, environ: dict[str, str] | None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,  # the supervisor ends when this pipe closes, even if this process is killed
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env=environ,
    )


class _Trees:
    """The process trees of an experiment: those of the servers, then the router's. If one tree ends, or if `stopping`
    returns true, all are ended."""

    def __init__(self, stopping: Callable[[], bool]) -> None:
        self.keepers: list[subprocess.Popen[bytes]] = []
        self._members: list[dict[int, str]] = []
        self._stopping = stopping

    def start(self, command: list[str], output: Any, environment: dict[str, str]) -> None:
        output.write((shlex.join(command) + "\n").encode())
        output.flush()
        self.keepers.append(started([sys.executable, str(_KEEPER), *command], output, variables(environment)))
        self._members.append({})

    def over(self) -> bool:
        return self.code() is not None or self._stopping()

    def code(self) -> int | None:
        """Returns the exit code of the first tree that ended; None if none has ended."""
        return next((code for keeper in self.keepers if (code := keeper.poll()) is not None), None)

    def ready(self, number: int, port: int) -> bool:
        return ready_before(self.keepers[number], port, self.over, self._members[number])

    def end(self) -> None:
        for keeper in self.keepers:
            if keeper.stdin is not None:
                keeper.stdin.close()  # makes all supervisors end at the same time
        for keeper, seen in zip(self.keepers, self._members, strict=True):
            end(keeper, seen=seen)


def healthy(port: int) -> bool:
    """Whether a server on this machine responds as ready."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_ASK_S)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def ready_before(keeper: subprocess.Popen[bytes], port: int, over: Callable[[], bool], members: dict[int, str]) -> bool:
    """Waits until a server is ready; returns False if `over` returns True first. `members` collects the server's
    processes for `end`. Without these, engines could not be found after supervisor and server were killed together."""
    while not over():
        if healthy(port):
            return True
        members |= processes.family(keeper.pid)
        time.sleep(_TICK_S)
    return False


def end(
    keeper: subprocess.Popen[bytes] | None, limit_s: float = _END_LIMIT_S, seen: dict[int, str] | None = None
) -> None:
    """Ends the supervisor and its server, then any remaining process. `seen`: earlier members of its process tree."""
    if keeper is None:
        return
    if keeper.stdin is not None:
        keeper.stdin.close()
    processes.exited(keeper, limit_s)
    processes.end(keeper, 0.0, seen)


def _note_memory(experiment: Path, servers: list[subprocess.Popen[bytes]], before: list[gpus.Gpu] | None) -> None:
    """Records the servers' peak memory. On GPUs, it is the servers' usage of the fullest GPU according to the driver.
    If the driver does not report usage by process, it is the increase of this GPU's used memory since `before`; if that
    is unknown, too, nothing is recorded. On CPUs, it is the sum of the processes' peaks."""
    family = {pid: name for server in servers for pid, name in processes.family(server.pid).items()}
    if before is None:
        gib = sum(_high_water_kib(pid) for pid in family) / 2**20
    else:
        gib = gpus.of_processes(set(family)) or gpus.more_than(before)
    with results.writing(experiment.parent):
        experiment.with_name("server.json").write_text(json.dumps({"peak_memory_gib": gib} if gib else {}))


def _high_water_kib(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def _leave_cause(experiment: Path, phase: str, log: Path, late: bool) -> None:
    """Records the server's own error as the experiment's cause of failure, because failed requests are only
    consequences of this error."""
    cause = cause_in_log(log.read_text(errors="replace"))
    if cause is None or late:
        return
    kind, message = cause
    content = {
        "type": kind,
        "message": message,
        "traceback": "",
        "in_megatron": False,
        "phase": phase,
        "steps": 0,
        "time": 0.0,  # sorts this error before the client's
    }
    experiment.with_name("rank-0.json").unlink(missing_ok=True)
    experiment.with_name("rank-0.error.json").write_text(json.dumps(content))
