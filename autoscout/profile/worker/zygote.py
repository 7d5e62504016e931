"""The warm process: imports torch and Megatron (or vLLM) once, then forks the ranks of one experiment after another.

    zygote.py WORKER.py '{"OMP_NUM_THREADS": "1", …}'      with the environment that the imports need

The worker has load(device), which imports, and run_and_exit(experiment), which is a rank.

Protocol: one JSON object a line. It says {"ready": true} when it has imported everything. Then for each
request {"experiment": path, "ranks": n, "timeout_s": s} it answers
{"codes": [exit code of each rank, -n for signal n], "ended": [ranks that it ended itself],
"timed_out": bool, "stopped": bool}.
{"stop": true} ends the experiment that runs; so does closing stdin, which also ends the zygote.
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
from pathlib import Path
from types import ModuleType
from typing import Any

import leash

_GRACE_S = 2.0  # after the first failure, for the others to write their own errors
_TICK_S = 0.02


class Requests:
    """Lines from stdin, read without ever blocking an experiment."""

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


def main() -> None:
    os.environ.update(json.loads(sys.argv[2]))
    answers = os.dup(1)  # whatever Megatron prints must not get in between
    os.dup2(2, 1)
    script = Path(sys.argv[1])
    sys.path.insert(0, str(script.parent))
    worker = importlib.import_module(script.stem)
    worker.load("cpu")
    leash.outlive()  # experiments may come from other threads; from here on stdin tells when to end
    gc.freeze()  # the ranks share these pages
    _answer(answers, {"ready": True})
    requests = Requests()
    while not requests.closed:
        request = requests.next(None)
        if request is not None and "experiment" in request:
            _answer(answers, _run(worker, request, requests, answers))


def _answer(file: int, answer: dict[str, Any]) -> None:
    os.write(file, json.dumps(answer).encode() + b"\n")


def _run(worker: ModuleType, request: dict[str, Any], requests: Requests, answers: int) -> dict[str, Any]:
    port = _free_port()
    pids = [_fork(worker, request, rank, port, answers) for rank in range(request["ranks"])]
    codes: dict[int, int] = {}
    ended: list[int] = []
    deadline = time.monotonic() + request["timeout_s"]
    timed_out = stopped = failed = False
    while len(codes) < len(pids):
        command = requests.next(_TICK_S)
        for rank, pid in enumerate(pids):
            if rank not in codes:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    codes[rank] = os.waitstatus_to_exitcode(status)
        if not failed and any(codes.values()):
            failed = True
            deadline = min(deadline, time.monotonic() + _GRACE_S)
        stopped = stopped or requests.closed or (command is not None and "stop" in command)
        late = time.monotonic() > deadline
        if (stopped or late) and not ended:
            timed_out = late and not failed and not stopped
            ended = [rank for rank in range(len(pids)) if rank not in codes]
            for rank in ended:
                os.killpg(pids[rank], signal.SIGKILL)
    return {
        "codes": [codes[rank] for rank in range(len(pids))],
        "ended": ended,
        "timed_out": timed_out,
        "stopped": stopped,
    }


def _fork(worker: ModuleType, request: dict[str, Any], rank: int, port: int, answers: int) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        with contextlib.suppress(OSError):  # the child does it too: whoever comes first
            os.setpgid(pid, pid)
        return pid
    try:
        os.setpgid(0, 0)
        leash.die_with(parent)
        os.close(answers)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ.update(
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(request["ranks"]),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
        )
        worker.run_and_exit(Path(request["experiment"]))
    finally:
        os._exit(1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    main()
