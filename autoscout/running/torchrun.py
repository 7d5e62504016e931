"""The fresh launcher: torchrun starts new processes for every experiment, as a user's own job would."""

import re
import shlex
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from autoscout.running import interpreter, processes, results
from autoscout.running.outcome import RunOutcome
from kb.records import Job

MEETING_PORT = 29500  # rendezvous port on the first node
_TICK_S = 0.05
_LOOK_S = 1.0
_GRACE_S = 5.0
# torchrun's report of the first failure; the exit codes of the other ranks mean nothing, since torchrun ended them.
_ROOT_CAUSE = re.compile(r"Root Cause.*?rank\s*:\s*(\d+).*?exitcode\s*:\s*(-?\d+)", re.DOTALL)


def torchrun_command(python: list[str], worker: Path, experiment: Path, ranks: int) -> list[str]:
    """The command that starts an experiment's ranks, each of which runs `worker`. Users can run it, too."""
    return [
        *python,
        *("-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--max-restarts", "0"),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"),
        *(str(worker), str(experiment)),
    ]


def on_nodes(python: list[str], worker: Path, experiment: Path, ranks: list[int]) -> list[str]:
    """The commands that a user runs on several nodes; `ranks`: number of ranks on each node. If all nodes have the same
    number, this is one command, to be run with NODE set to 0, 1, … on the nodes; otherwise one command per node. HEAD
    is the address of the first node."""
    alike = len(set(ranks)) == 1
    places = [('"$NODE"', ranks[0])] if alike else [(str(node), own) for node, own in enumerate(ranks)]
    head = shlex.join([*python, "-m", "torch.distributed.run"])
    meeting = f'--master-addr "$HEAD" --master-port {MEETING_PORT} --max-restarts 0'
    rest = shlex.join([str(worker), str(experiment)])
    return [
        f"{head} --nproc-per-node {own} --nnodes {len(ranks)} --node-rank {node} {meeting} {rest}"
        for node, own in places
    ]


class Torchrun:
    """Runs one experiment at a time in its own process tree and leaves no process running. If this process is killed,
    the kernel kills torchrun and then the ranks; in containers, which this signal does not reach, the ranks end when
    their stdin, a pipe from this process, closes.
    """

    unfit = False

    def __init__(self, job: Job, worker: Path) -> None:
        """`worker`: the script that each rank runs."""
        self._python, self._worker = interpreter.target_python(job), worker

    def start(self, stopping: Callable[[], bool]) -> None:
        """Does nothing, because every experiment starts new processes."""

    def close(self) -> None:
        """Does nothing, because no process is kept between experiments."""

    def run(self, experiment: Path, ranks: int, timeout_s: float, stopping: Callable[[], bool]) -> RunOutcome:
        """Runs the experiment to its end, or until `stopping()`. Errors: AutoscoutError if the experiment's files
        cannot be written."""
        command = [*torchrun_command(self._python, self._worker, experiment.resolve(), ranks), "--leash"]
        log = experiment.with_name("launcher.log")
        with results.writing(experiment.parent):
            output = open(log, "wb")  # noqa: SIM115 - `writing` is only for errors of opening it
        with output:
            process = subprocess.Popen(
                processes.leashed(command),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        seen: dict[int, str] = {}
        try:
            timed_out = self._wait(process, timeout_s, stopping, seen)
            code = process.poll()
        finally:
            processes.end(process, _GRACE_S, seen)
            if process.stdin is not None:
                process.stdin.close()
        text = log.read_text(errors="replace")
        cause = _ROOT_CAUSE.search(text)
        stopped = stopping() and code is None
        return RunOutcome(
            codes={int(cause[1]): int(cause[2])} if cause and code else {},
            timed_out=timed_out,
            stopped=stopped,
            launcher_code=code,
            output=text.strip()[-1000:],
        )

    def _wait(
        self,
        process: subprocess.Popen[bytes],
        timeout_s: float,
        stopping: Callable[[], bool],
        seen: dict[int, str],
    ) -> bool:
        """Waits for the process's end, the time limit or `stopping()`; returns whether the limit was reached. Records
        the process family in `seen`, because every rank leads its own session, so that ranks cannot be found once
        torchrun has ended."""
        start = looked = time.monotonic()
        while process.poll() is None and not stopping():
            now = time.monotonic()
            if now > start + timeout_s:
                return True
            if now > looked + _LOOK_S:
                looked = now
                seen |= processes.family(process.pid)
            time.sleep(_TICK_S)
        return False
