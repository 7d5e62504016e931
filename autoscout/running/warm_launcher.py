"""The warm launcher: a process (the zygote, worker/zygote.py) imports the target's packages once and then forks the
ranks of every experiment, which saves the time of the imports."""

import contextlib
import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autoscout.running import interpreter, processes, results
from autoscout.running.cluster.devices import device_kind
from autoscout.running.outcome import RunOutcome
from kb.records import Job

_TICK_S = 0.05
_START_LIMIT_S = 300.0  # time limit in seconds of the imports, which are slow on a busy machine
_STOP_LIMIT_S = 5.0
_ANSWER_MARGIN_S = 30.0  # seconds added to the experiment's own time limit, which the zygote enforces


class WarmRunner:
    """Runs one experiment at a time. The zygote is started when it is first needed, and restarted if it died. It ends,
    together with its ranks, when its stdin closes, which also happens if this process is killed.
    """

    def __init__(self, job: Job, worker: Path, variables: dict[str, str]) -> None:
        """`worker`: the script that each rank runs; `variables`: the environment of its imports."""
        zygote = str(processes.WORKER / "zygote.py")
        self._command = [*interpreter.target_python(job), zygote, str(worker), json.dumps(variables), device_kind(job)]
        self._process: subprocess.Popen[bytes] | None = None
        with results.writing("temporary files"):
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the launcher exists
        self._ready = False
        self.unfit = False
        self._buffer = b""

    def start(self, stopping: Callable[[], bool]) -> None:
        """Starts the zygote if needed, so that its imports are not part of an experiment's cost."""
        alive = self._process is not None and self._process.poll() is None
        if stopping() or self.unfit or (alive and self._ready):
            return
        self.close()
        self._errors.seek(0)
        self._errors.truncate()
        self._process = subprocess.Popen(
            processes.leashed(self._command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
        )
        answer = self._answer(self._process, _START_LIMIT_S, stopping)
        self._ready = answer is not None
        self.unfit = answer is not None and not answer["ready"]

    def close(self) -> None:
        if self._process is not None:
            processes.end(self._process, 0.0)
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()
        self._process = None
        self._buffer = b""

    def run(
        self, experiment: Path, ranks: int, timeout_s: float, stopping: Callable[[], bool], keep: str = ""
    ) -> RunOutcome:
        """Runs the experiment to its end, or until `stopping()`; start() must have been called. `keep`: a key for a
        process that is reused: the experiment runs in the process of the last experiment with the same key, if any."""
        assert self._process is not None
        answer = None
        if self._ready:
            request: dict[str, Any] = {"experiment": str(experiment.resolve()), "ranks": ranks, "timeout_s": timeout_s}
            request |= {"keep": keep} if keep else {}
            self._send(self._process, request)
            answer = self._answer(self._process, timeout_s + _ANSWER_MARGIN_S, stopping)
        if answer is None:  # the zygote did not start, died, hangs or did not stop in time
            code = self._process.poll()
            self.close()
            hangs = code is None and not stopping()
            return RunOutcome(stopped=stopping(), timed_out=hangs, launcher_code=code, output=self._output())
        return RunOutcome(
            codes={rank: code for rank, code in enumerate(answer["codes"]) if rank not in answer["ended"]},
            timed_out=answer["timed_out"],
            stopped=answer["stopped"],
            launcher_code=0,
        )

    def _send(self, process: subprocess.Popen[bytes], request: dict[str, Any]) -> None:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the zygote died, which `_answer` notices
            os.write(process.stdin.fileno(), json.dumps(request).encode() + b"\n")

    def _answer(
        self, process: subprocess.Popen[bytes], limit_s: float, stopping: Callable[[], bool]
    ) -> dict[str, Any] | None:
        """The zygote's next line; None if it died or did not answer in time. Any exception ends the zygote."""
        assert process.stdout is not None
        asked_to_stop = False
        deadline = time.monotonic() + limit_s
        try:
            while b"\n" not in self._buffer:
                if stopping() and not asked_to_stop:
                    asked_to_stop = True
                    self._send(process, {"stop": True})
                    deadline = min(deadline, time.monotonic() + _STOP_LIMIT_S)
                if time.monotonic() > deadline:
                    return None
                if select.select([process.stdout], [], [], _TICK_S)[0]:
                    content = os.read(process.stdout.fileno(), 65536)
                    if not content:
                        processes.exited(process, 1.0)
                        return None
                    self._buffer += content
            line, self._buffer = self._buffer.split(b"\n", 1)
            return json.loads(line)
        except BaseException:
            self.close()
            raise

    def _output(self) -> str:
        file = self._errors.fileno()
        start = max(0, os.fstat(file).st_size - 1000)
        return os.pread(file, 1000, start).decode(errors="replace").strip()
