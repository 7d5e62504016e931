"""Starts a user's own Python script without repeating its imports: an interpreter imports the script's packages once
and forks a process for every run (worker/warm_script.py). That process runs the user's script, or torchrun's own code,
unchanged."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from autoscout.line.launch_line import Line
from autoscout.running import processes
from kb.records import AutoscoutError

_SCRIPT = processes.WORKER / "warm_script.py"
_TICK_S = 0.05
_IMPORTS_S = 600.0  # time limit in seconds of the imports, which are slow on a busy machine or from a shared disk


def startable(line: Line) -> str:
    """The reason why a command cannot be forked from an interpreter that has done its imports; "" if it can."""
    if line.first == "torchrun" and line.words[1:]:
        return ""
    rest = "".join([word for word in line.words[1:2] if word != "-u"] or line.words[2:3])
    if line.first.startswith("python") and rest and (rest == "-m" or not rest.startswith("-")):
        return ""
    return f"only `python script.py …`, `python -m module …` and `torchrun …` can be started warm, not {line.words[0]}"


class WarmScript:
    """Keeps one interpreter with imported packages. A run with other environment variables needs a new interpreter,
    because libraries read them on import."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._key: object = None
        self._connection: socket.socket | None = None
        self._buffer = b""

    def get_ready(
        self, python: str, line: Line, environment: Mapping[str, str], cwd: Path, stopping: Callable[[], bool]
    ) -> None:
        """Does the imports unless done already. Errors: AutoscoutError if the interpreter fails before it is ready."""
        key = (python, line.words[:1], dict(environment), cwd)
        if self._process is not None and self._process.poll() is None and self._key == key:
            return
        self.close()
        ours, theirs = socket.socketpair()
        with theirs, tempfile.TemporaryFile() as errors:
            self._process = subprocess.Popen(
                [python, str(_SCRIPT), *line.words],
                stdin=theirs.fileno(),
                stdout=errors,
                stderr=errors,
                env=dict(environment),
                cwd=cwd,
                start_new_session=True,
            )
            theirs.close()
            self._connection, self._key = ours, key
            if self._answer(_IMPORTS_S, stopping) is None and not stopping():
                errors.seek(0)
                reason = errors.read().decode(errors="replace").strip().rpartition("\n")[2]
                self.close()
                raise AutoscoutError(
                    f'launch.launcher = "warm": {python} does not start ({reason}); remove launch.launcher'
                )

    def begin(
        self, command: list[str], environment: Mapping[str, str], cwd: Path, status: Path, grace_s: float, pipe: int
    ) -> "_Forked":
        """Starts one run, after get_ready() (supervised.Begin). Errors: OSError if the interpreter has died."""
        assert self._connection is not None
        asked: dict[str, Any] = {"words": command, "environment": dict(environment), "cwd": str(cwd.resolve())}
        asked |= {"status": str(status), "grace_s": grace_s}
        request = json.dumps(asked).encode() + b"\n"
        sent = socket.send_fds(self._connection, [request], [pipe])
        self._connection.sendall(request[sent:])
        answer = self._answer(_IMPORTS_S, lambda: False)
        if answer is None:
            self.close()
            raise OSError(0, 'the interpreter that launch.launcher = "warm" started has ended')
        return _Forked(answer["pid"])

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            processes.end(self._process, 0.0)
        self._process = self._connection = self._key = None
        self._buffer = b""

    def _answer(self, limit_s: float, stopping: Callable[[], bool]) -> dict[str, Any] | None:
        assert self._connection is not None
        until = time.monotonic() + limit_s
        while b"\n" not in self._buffer:
            if stopping() or time.monotonic() > until:
                return None
            if select.select([self._connection], [], [], _TICK_S)[0]:
                try:
                    content = self._connection.recv(65536)
                except ConnectionError:
                    content = b""
                if not content:
                    return None
                self._buffer += content
        line, self._buffer = self._buffer.split(b"\n", 1)
        return json.loads(line)


class _Forked:
    """The supervisor of a run (processes.Owned): a child of the warm interpreter, not of this process."""

    def __init__(self, pid: int) -> None:
        self.pid, self.returncode = pid, None
        self._gone = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """0 if the supervisor has ended, else None. The real exit code is in the status file."""
        return 0 if select.select([self._gone], [], [], 0)[0] else None

    def terminate(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._gone, signal.SIGTERM)

    def __del__(self) -> None:
        os.close(self._gone)
