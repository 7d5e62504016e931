"""The controller's side of the agents on an experiment's hosts (worker/agent.py).

A host needs no AutoScout, only the interpreter of the ranks, because the agent's scripts are sent to it. When this
process ends, for whatever reason, the agents' stdin closes, and they end, too.
"""

import contextlib
import fcntl
import io
import json
import os
import select
import subprocess
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from autoscout.running import processes, results
from autoscout.running.cluster.reach import Way, on_host, refusal
from kb import dates

_ROOT = processes.WORKER.parents[2]  # root of the scripts sent to hosts, which import each other relative to it
_BEAT_S = 2.0
_START_S = 120.0
_LOST_S = 30.0  # seconds of silence after which a node counts as lost
_TICK_S = 0.05
_PIECE = 2**18
_UNPACK = """import io, json, os, sys, tempfile, zipfile
def take(n):
    b = b""
    while len(b) < n:
        p = os.read(0, n - len(b))
        if not p: sys.exit(1)
        b += p
    return b
try:
    home = tempfile.mkdtemp(prefix="autoscout-")
    zipfile.ZipFile(io.BytesIO(take(int(take(10))))).extractall(home)
except OSError as e:
    print(json.dumps({"problem": f"{tempfile.gettempdir()}: {e.strerror}"}), flush=True)
    sys.exit(1)
sys.path.insert(0, home + "/autoscout/running/worker")
import agent
agent.main(home)
"""


def packed(folders: Iterable[Path]) -> bytes:
    """The scripts in these folders as an archive, which is sent to the hosts."""
    into = io.BytesIO()
    with zipfile.ZipFile(into, "w", zipfile.ZIP_DEFLATED) as archive:
        for folder in dict.fromkeys([processes.WORKER, *folders]):
            for path in sorted(folder.rglob("*.py")):
                archive.write(path, _place(path))
    content = into.getvalue()
    return f"{len(content):010d}".encode() + content


def sent(path: Path) -> str:
    """The path of a script on a host; the agent replaces {agent} by the folder of the unpacked archive."""
    return f"{{agent}}/{_place(path)}"


def _place(path: Path) -> Path:
    """A script's path in the archive; scripts of a target from another package go under "other"."""
    return path.relative_to(_ROOT) if path.is_relative_to(_ROOT) else Path("other", path.parent.name, path.name)


class NodeAgent:
    """Our connection to the agent on one host. `lost`: why the connection was given up, "" if it is open."""

    def __init__(self, way: Way, host: str, python: list[str], archive: bytes) -> None:
        self.host, self.lost = host, ""
        self.hello: dict[str, Any] = {}
        self._buffer = b""
        self._heard = time.monotonic()
        with results.writing("temporary files"):
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in end()
        self._process = subprocess.Popen(
            processes.leashed(on_host(way, host, [*python, "-u", "-c", _UNPACK])),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self.out = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self.out, False)
        os.set_blocking(self._in, False)
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._in, fcntl.F_SETPIPE_SZ, 2**20)
        self._unsent = bytearray(archive)
        self._writing = threading.Lock()
        self._closed = threading.Event()
        threading.Thread(target=self._live, daemon=True).start()

    def say(self, message: dict[str, Any]) -> None:
        with self._writing:
            self._unsent += json.dumps(message).encode() + b"\n"
        self._flush()

    def heard(self) -> list[dict[str, Any]]:
        """The agent's messages since the last call; never blocks."""
        try:
            while data := os.read(self.out, _PIECE):
                self._buffer += data
                self._heard = time.monotonic()
            self._gone()
        except BlockingIOError:
            if self.hello and time.monotonic() > self._heard + _LOST_S and not self.lost:
                self.lost = f"{self.host}: no message for {_LOST_S:.0f} s; the host or its network is down"
        *lines, self._buffer = self._buffer.split(b"\n")
        found = []
        for line in filter(None, lines):
            try:
                found.append(json.loads(line))
            except ValueError:  # a line that the host's login shell printed
                continue
        for message in found:
            if "hello" in message:
                self.hello = {**message["hello"], "heard": dates.now()}
            elif "problem" in message:
                self.lost = self.lost or (
                    f"{self.host}: AutoScout cannot write temporary files on this host "
                    f"({message['problem']}); free some space, or set TMPDIR on the host"
                )
        return found

    def end(self) -> None:
        """Ends the agent and all processes that it started."""
        self._closed.set()
        with self._writing:
            if self._process.stdin is not None and not self._process.stdin.closed:
                self._process.stdin.close()
        processes.exited(self._process, 5.0)
        processes.end(self._process, 0.0)
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()

    def _live(self) -> None:
        """Sends heartbeats, even while there are no requests."""
        while not self._closed.wait(_BEAT_S if not self._unsent else _TICK_S):
            with self._writing:
                if not self._unsent:
                    self._unsent += b"\n"
            self._flush()

    def _flush(self) -> None:
        with self._writing, contextlib.suppress(BlockingIOError, BrokenPipeError, ValueError, OSError):
            while self._unsent and not self._closed.is_set():
                del self._unsent[: os.write(self._in, self._unsent[:_PIECE])]

    def _gone(self) -> None:
        if self.lost:
            return
        processes.exited(self._process, 2.0)
        code = self._process.poll()
        self._errors.seek(0)
        errors = self._errors.read().decode(errors="replace").strip()
        last = errors.splitlines()[-1][:200] if errors else ""
        if not self.hello:
            why = refusal(self.host, errors) or "the interpreter does not start on this host; check launch.python there"
            self.lost = f"{self.host}: {why}{f' ({last})' if last else ''}"
            return
        why = [
            f"AutoScout's agent on this host ended too early (exit code {code})",
            refusal(self.host, errors),
            last and f"its last line: {last}",
        ]
        self.lost = f"{self.host}: {'; '.join(filter(None, why))}"


def heard(
    agents: Iterable[NodeAgent],
    word: str,
    within_s: float,
    stopping: Callable[[], bool],
    also: Callable[[dict[str, Any]], None] = lambda message: None,
) -> dict[str, Any]:
    """Waits for a message with the key `word` from each agent. Returns host → value of the key, without hosts whose
    agent was lost or did not answer in time. `also` is called with all other messages."""
    waiting = [agent for agent in agents if not agent.lost]
    found: dict[str, Any] = {}
    until = time.monotonic() + within_s
    while waiting:
        select.select([agent.out for agent in waiting], [], [], _TICK_S)
        for agent in waiting:
            for message in agent.heard():
                if word in message:
                    found[agent.host] = message[word]
                else:
                    also(message)
        waiting = [agent for agent in waiting if agent.host not in found and not agent.lost]
        if stopping() or time.monotonic() > until:
            break
    return found


def wait_for(agents: Iterable[NodeAgent], word: str, limit_s: float, stopping: Callable[[], bool]) -> dict[str, Any]:
    """Like `heard`, and also marks agents that do not answer in time as lost."""
    asked = list(agents)
    found = heard(asked, word, limit_s, stopping)
    for agent in asked:
        if agent.host not in found and not agent.lost and not stopping():
            agent.lost = f"{agent.host}: the host did not answer within {limit_s:.0f} s"
    return found


def started(agents: Iterable[NodeAgent], stopping: Callable[[], bool]) -> None:
    """Waits until each agent has sent its first message or is lost."""
    wait_for([agent for agent in agents if not agent.hello and not agent.lost], "hello", _START_S, stopping)
