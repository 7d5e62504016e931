"""The screens as a process of their own in a pseudo-terminal: what they send is counted byte by byte."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
_ASKED = b"\x1b[?2026$p"  # does the terminal draw a frame at once? It answers what terminals of today answer
_ANSWER = b"\x1b[?2026;2$y"


class PtyScreens:
    """`autoscout ARGUMENTS`, or another `program` of Python, in a terminal of so many columns and rows; as a terminal
    does, it answers questions."""

    def __init__(
        self,
        *arguments: str,
        size: tuple[int, int] = (120, 40),
        program: tuple[str, str] = ("-m", "tui.cli"),
        **environment: str,
    ) -> None:
        ours, theirs = pty.openpty()
        self._resize(theirs, *size)
        clean = {k: v for k, v in os.environ.items() if k not in ("LC_ALL", "LC_CTYPE", "NO_COLOR", "LINES", "COLUMNS")}
        given = {"PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "COLORTERM": "truecolor", "LANG": "C.UTF-8"}
        command = [sys.executable, *program, *arguments]
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env={**clean, **given, **environment}, cwd=ROOT,
            start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        self.ours = ours
        self.sent = bytearray()
        self.answers = True

    def read(self, seconds: float, most: int = 1 << 16) -> bytes:
        """What arrives within so many seconds, at most `most` bytes at once."""
        arrived, deadline = bytearray(), time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if not select.select([self.ours], [], [], left)[0]:
                break
            try:
                data = os.read(self.ours, most)
            except OSError:
                break
            if not data:
                break
            arrived += data
            if self.answers and (asked := data.count(_ASKED)):
                os.write(self.ours, _ANSWER * asked)
        self.sent += arrived
        return bytes(arrived)

    def settle(self, within_s: float = 120.0, some: bool = False) -> bytes:
        """What arrives until nothing does for a while, and the process does nothing either. `some`: it has to answer
        first, however long a busy machine leaves it waiting."""
        arrived, deadline = b"", time.monotonic() + within_s
        while time.monotonic() < deadline and self.process.poll() is None:
            busy = self.cpu_s()
            more = self.read(0.4)
            arrived += more
            if not more and self.cpu_s() - busy <= 0.011 and (arrived or not some):
                break
        return arrived

    def shows(self, text: str, within_s: float = 1800.0) -> None:
        """Waits until the bytes have it."""
        deadline = time.monotonic() + within_s
        while text.encode() not in self.sent:
            assert time.monotonic() < deadline, f"{text!r} did not appear in {bytes(self.sent[-2000:])!r}"
            self.read(0.1)

    def redrawn(self) -> bytes:
        """The whole screen: of what changes only the changed cells are sent."""
        self.press("\x0c")
        return self.settle()

    def press(self, keys: str) -> None:
        os.write(self.ours, keys.encode())

    def escape(self) -> None:
        """Alone: what follows at once would be another key."""
        self.press("\x1b")
        self.settle()

    def resize(self, columns: int, rows: int) -> None:
        self._resize(self.ours, columns, rows)
        os.killpg(self.process.pid, signal.SIGWINCH)

    def cpu_s(self) -> float:
        """CPU seconds of the process so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> int:
        """Closes them as a person does, whatever is open; the exit code."""
        for _ in range(12):
            if self.process.poll() is None:
                self.escape()
                self.press("q")  # which may get lost where the screens were stopped just before
                self._ends(10.0)
        if self.process.poll() is None:
            self.process.kill()
        code = self.process.wait()
        os.close(self.ours)
        return code

    def _ends(self, within_s: float) -> None:
        deadline = time.monotonic() + within_s
        while self.process.poll() is None and time.monotonic() < deadline:
            self.read(0.1)

    @staticmethod
    def _resize(terminal: int, columns: int, rows: int) -> None:
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
