"""The warm process: imports torch and Megatron (or vLLM) once, then forks the ranks of one experiment after another.

    zygote.py WORKER.py '{"OMP_NUM_THREADS": "1", …}' cpu|cuda      with the environment that the imports need

The module WORKER has load(device), which does the imports, and run_and_exit(experiment), which runs a rank.

Protocol: one JSON object per line. The zygote writes {"ready": true} after the imports, or false if a forked process
cannot use the GPUs. It answers each request {"experiment": path, "ranks": n, "timeout_s": s} with {"codes": [exit code
of each rank, -n for signal n], "ended": [ranks that the zygote ended], "timed_out": bool, "stopped": bool}. For an
experiment over several hosts a request also has {"first": global rank of the first rank on this host, "world": number
of all ranks, "address" and "port" of the rendezvous, "environment"}. {"stop": true} ends the running experiment.
Closing stdin ends the zygote, too.

A request with "keep": KEY has one rank, whose process stays alive after the experiment and runs the next one with the
same KEY. The rank's process calls the worker's stay(connection), which reads one path per line and answers each with a
line that contains the exit code.
"""

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import leash

_GRACE_S = 2.0  # seconds that other ranks get after the first failure, to log their errors
_TICK_S = 0.02


class ZygoteRequests:
    """Requests from stdin, read without blocking an experiment."""

    def __init__(self) -> None:
        self._buffer = b""
        self.closed = False

    def next(self, timeout: float | None) -> dict[str, Any] | None:
        """The next request; None when stdin was closed or nothing came within `timeout` seconds."""
        while b"\n" not in self._buffer:
            if self.closed or not select.select([0], [], [], timeout)[0]:
                return None
            content = os.read(0, 65536)
            self.closed = not content
            self._buffer += content
        line, self._buffer = self._buffer.split(b"\n", 1)
        return json.loads(line)


class ZygoteRank:
    """A forked process that runs one experiment."""

    def __init__(self, body: Callable[[], None], answers: int) -> None:
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid:
            with contextlib.suppress(OSError):  # also done by the child, since either process may run first
                os.setpgid(self.pid, self.pid)
            return
        try:
            os.setpgid(0, 0)
            leash.die_with(parent)
            os.close(answers)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            body()
        finally:
            os._exit(1)

    def code(self) -> int | None:
        """The process's exit code; None while it runs."""
        done, status = os.waitpid(self.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if done else None

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


class Kept(ZygoteRank):
    """A forked process that runs successive experiments with the same key."""

    def __init__(self, worker: ModuleType, key: str, answers: int) -> None:
        self.key, self.gone = key, False
        ours, theirs = socket.socketpair()
        self._connection = ours

        def body() -> None:
            ours.close()
            worker.stay(theirs.detach())

        super().__init__(body, answers)
        theirs.close()

    def give(self, experiment: str) -> None:
        with contextlib.suppress(OSError):  # the process may have died, which code() reports
            self._connection.sendall(experiment.encode() + b"\n")

    def code(self) -> int | None:
        if select.select([self._connection], [], [], 0)[0] and (code_sent := self._connection.recv(64)):
            return int(code_sent)
        code = super().code()
        self.gone = code is not None
        return code

    def end(self) -> None:
        if not self.gone:
            self.kill()
            os.waitpid(self.pid, 0)
        self._connection.close()


def main() -> None:
    os.environ.update(json.loads(sys.argv[2]))
    answers = os.dup(1)  # only answers go to the original stdout, Megatron's output to stderr
    os.dup2(2, 1)
    script = Path(sys.argv[1])
    sys.path.insert(0, str(script.parent))
    worker = importlib.import_module(script.stem)
    ready = _load(worker, sys.argv[3])
    leash.outlive()  # the thread that started this process may end; this process ends when stdin closes
    gc.freeze()  # keeps memory pages shared with the forked ranks (copy on write)
    _answer(answers, {"ready": ready})
    requests = ZygoteRequests()
    kept: Kept | None = None
    while not requests.closed:
        request = requests.next(None)
        if request is None or "experiment" not in request:
            continue
        if "keep" in request:
            kept = _kept(worker, request, kept, answers)
            ranks: list[ZygoteRank] = [kept]
        else:
            port = _free_port()
            ranks = [_forked(worker, request, rank, port, answers) for rank in range(request["ranks"])]
        _answer(answers, _run(ranks, request["timeout_s"], requests))


def _load(worker: ModuleType, device: str) -> bool:
    """Does the imports; returns whether a forked process can use the device."""
    if device == "cpu":
        worker.load(device)
        return True
    import forkable

    with forkable.imports():
        worker.load(device)
    return forkable.usable()


def _kept(worker: ModuleType, request: dict[str, Any], kept: Kept | None, answers: int) -> Kept:
    if kept is not None and (kept.gone or kept.key != request["keep"]):
        kept.end()
        kept = None
    kept = kept or Kept(worker, request["keep"], answers)
    kept.give(request["experiment"])
    return kept


def _forked(worker: ModuleType, request: dict[str, Any], rank: int, port: int, answers: int) -> ZygoteRank:
    def body() -> None:
        os.environ.update(
            RANK=str(request.get("first", 0) + rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(request.get("world", request["ranks"])),
            MASTER_ADDR=request.get("address", "127.0.0.1"),
            MASTER_PORT=str(request.get("port", port)),
            **request.get("environment", {}),
        )
        worker.run_and_exit(Path(request["experiment"]))

    return ZygoteRank(body, answers)


def _answer(file: int, answer: dict[str, Any]) -> None:
    os.write(file, json.dumps(answer).encode() + b"\n")


def _run(ranks: list[ZygoteRank], timeout_s: float, requests: ZygoteRequests) -> dict[str, Any]:
    codes: dict[int, int] = {}
    ended: list[int] = []
    deadline = time.monotonic() + timeout_s
    timed_out = stopped = failed = False
    while len(codes) < len(ranks):
        command = requests.next(_TICK_S)
        for number, rank in enumerate(ranks):
            if number not in codes and (code := rank.code()) is not None:
                codes[number] = code
        if not failed and any(codes.values()):
            failed = True
            deadline = min(deadline, time.monotonic() + _GRACE_S)
        stopped = stopped or requests.closed or (command is not None and "stop" in command)
        late = time.monotonic() > deadline
        if (stopped or late) and not ended:
            timed_out = late and not failed and not stopped
            ended = [number for number in range(len(ranks)) if number not in codes]
            for number in ended:
                ranks[number].kill()
    return {
        "codes": [codes[number] for number in range(len(ranks))],
        "ended": ended,
        "timed_out": timed_out,
        "stopped": stopped,
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    main()
