"""Follows a session on another host: its events arrive over ssh and are appended to a local copy of its journal, which
the screens read.

The other host runs `autoscout watch SESSION --events`, which prints the lines of the journal. Additional lines that
begin with "#" contain information that is not in the journal (whether the process is running, the end of the running
experiment's log)."""

import re
import shlex
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec

from kb import dates, door
from kb.journal import AnyEvent
from kb.orders import Order
from kb.records import AutoscoutError
from tui.hygiene import plain
from tui.session.follow import Follower
from tui.session.remembered import state_folder
from tui.text import error_of

_PLACE = re.compile(r"(?P<host>(?:[\w.-]+@)?[A-Za-z0-9][\w.-]*):(?P<session>[A-Za-z0-9][\w.-]*)?", re.ASCII)
_OPTIONS = ("-C", "-T", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3", "-o", "ConnectTimeout=15")
_BEATS_S = 5.0  # heartbeat interval in seconds
_LOOKS_S = 0.25
_SILENT_S = 30.0  # seconds without a line after which the connection is lost (ssh itself may not notice)
_LINE = 1 << 26  # largest length of a line in bytes


class RemoteStatus(msgspec.Struct, frozen=True):
    """Information that is sent with events. `alive`: as in Follower.alive; `over`: whether no more events follow."""

    session: str
    size: int  # of the journal in bytes
    alive: bool | None = None
    tail: list[str] = []
    words: str = ""
    over: bool = False


def place(text: str) -> tuple[str, str] | None:
    """(user@host, session or "") if the text has the form `user@host:SESSION`, else None."""
    found = _PLACE.fullmatch(text)
    return (found["host"], found["session"] or "") if found and not Path(text).exists() else None


def lines(follower: Follower, session: str) -> Iterator[bytes]:
    """What `watch --events` prints: lines of the journal, and status lines with "#", until the session is over."""
    said, said_at, sent, running = None, 0.0, 0, ""
    while True:
        alive = follower.alive()
        with open(follower.path, "rb") as journal:
            journal.seek(sent)
            for line in journal:
                if not line.endswith(b"\n"):
                    break
                sent += len(line)
                running = _running(line, running)
                yield line
        over = not alive and follower.path.stat().st_size <= sent
        tail = follower.tail(running) if running else []
        now = RemoteStatus(
            session, follower.path.stat().st_size, alive, tail, follower.last_words() if over else "", over
        )
        if now != said or time.monotonic() - said_at > _BEATS_S:
            said, said_at = now, time.monotonic()
            yield b"#" + msgspec.json.encode(now) + b"\n"
        if over:
            return
        time.sleep(_LOOKS_S)


class Remote:
    """Like tui.session.follow.Follower, for a session on another host."""

    def __init__(self, host: str, session: str, there: str, silent_s: float = _SILENT_S) -> None:
        """Connects and waits for the first line. `there`: the autoscout command on the host; `silent_s`: seconds
        without a line after which the connection is lost (four times as long for the first line, since ssh may ask for
        a password). Errors: AutoscoutError with the message of ssh or of the host."""
        self.host, self._there, self._silent_s = host, there, silent_s
        self._silent, self._looked = 0.0, time.monotonic()
        words = f"{there} watch --events {shlex.quote(session) if session else ''}".strip()
        self._ssh = subprocess.Popen(
            ["ssh", *_OPTIONS, host, words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert self._ssh.stdout is not None
        first, given_up = b"", threading.Event()
        patience = threading.Timer(4 * silent_s, lambda: (given_up.set(), self._ssh.kill()))
        patience.daemon = True
        patience.start()
        while first := self._ssh.stdout.readline(_LINE):  # skips other output, such as a login message
            if first.startswith(b"#") or first.startswith(b"{"):
                break
        patience.cancel()
        if given_up.is_set():
            self._ssh.wait()
            raise AutoscoutError(
                f"{host}: the host was reached, but sent nothing for {4 * silent_s:.0f} s; is {there} installed on it?"
            )
        if not first:
            raise AutoscoutError(f"{host}: {self._complaint()}", 2 if self._ssh.returncode == 2 else 1)
        self.session = session
        self._status = RemoteStatus(session, 0, None)
        self._last_at = dates.now()
        self.gone = ""  # why the connection was lost before the session was over
        self.folder = state_folder() / "remote" / host / (door.name(session, "session") if session else "newest")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path = self.folder / "journal.jsonl"
        self._copy = Follower(self.path)
        self.path.write_bytes(b"")
        self._take(first)
        threading.Thread(target=self._read, args=[self._ssh.stdout], daemon=True).start()

    def more(self) -> list[AnyEvent]:
        """New events. Errors: AutoscoutError. A lost connection is only reported after all received events have been
        returned."""
        found = self._copy.more()
        self._listen()
        if not found and self.gone:
            raise AutoscoutError(self.gone)
        return found

    def over(self) -> bool:
        return bool(self.gone) or self._status.over

    def share(self) -> float:
        return min(1.0, self._copy.offset / self._status.size) if self._status.size else 1.0

    def alive(self) -> bool | None:
        return None if self.gone else self._status.alive

    def tail(self, folder: str, lines: int = 30) -> list[str]:
        return [plain(line) for line in self._status.tail[-lines:]] if folder else []

    def last_words(self) -> str:
        return plain(self._status.words)

    def everything(self) -> list[AnyEvent]:
        found: list[AnyEvent] = []
        while True:
            more = self.more()
            found += more
            if not more and self._status.over:
                return found
            time.sleep(0.0 if more else 0.05)

    def give(self, order: Order) -> None:
        """Gives the order by running `autoscout steer` on that host. Errors: AutoscoutError."""
        values = [f"{n}={str(v).lower() if isinstance(v, bool) else v}" for n, v in order.values.items()]
        words = shlex.join(["steer", self._status.session, order.what, *values])
        try:
            done = subprocess.run(
                ["ssh", *_OPTIONS, self.host, f"{self._there} {words}"], stdin=subprocess.DEVNULL, capture_output=True,
                timeout=20,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            problem = f"{self.host} does not answer, so the order {order.what} may not have arrived; give it again"
            raise AutoscoutError(problem) from error
        if done.returncode:
            raise AutoscoutError(f"{self.host}: {_sentence(done.stderr)}")

    def close(self) -> None:
        self._ssh.terminate()
        self._ssh.wait()

    def _read(self, stream: IO[bytes]) -> None:
        while line := stream.readline(_LINE):
            if self.gone:
                return
            self._take(line)
        if not self._status.over and not self.gone:
            self._lost(self._complaint())

    def _listen(self) -> None:
        """Ends a silent connection. Each call counts at most 1 s, since this process may have been suspended."""
        now = time.monotonic()
        self._silent += min(1.0, now - self._looked)
        self._looked = now
        if self._silent > self._silent_s and not self.over():
            self._lost(f"nothing arrived for {self._silent_s:.0f} s")
            self._ssh.kill()

    def _lost(self, why: str) -> None:
        at = time.strftime("%H:%M:%S", time.localtime(self._last_at))
        self.gone = (
            f"{self.host} has been unreachable since {at} ({why}); its session may continue. What arrived is kept: "
            f"autoscout watch {self.path}"
        )

    def _take(self, line: bytes) -> None:
        self._last_at, self._silent = dates.now(), 0.0
        if line.startswith(b"{"):
            with open(self.path, "ab") as copy:
                copy.write(line)
        elif line.startswith(b"#"):
            try:
                self._status = msgspec.json.decode(line[1:], type=RemoteStatus)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                return  # other output that happens to begin with #

    def _complaint(self) -> str:
        assert self._ssh.stderr is not None
        said = self._ssh.stderr.read()
        self._ssh.wait()
        return _sentence(said) or f"ssh ended with exit code {self._ssh.returncode}"


def _running(line: bytes, before: str) -> str:
    """The running experiment's folder after this line of the journal. `before`: its folder before this line."""
    if line.startswith(b'{"type":"experiment_ended"'):
        return ""
    if not line.startswith(b'{"type":"experiment_started"'):
        return before
    try:
        return str(msgspec.json.decode(line).get("folder", ""))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return before


def _sentence(output: bytes) -> str:
    return error_of(plain(output.decode(errors="replace").replace("\r\n", "\n")))
