"""Prints lines of progress and, on a terminal, a status below them, which is rewritten in place."""

import os
import shutil
from typing import Any

from tui.options import note
from tui.text import fit

_CLEAR = "\r\x1b[K"


def discard(stream: Any) -> None:
    """Drops what a stream still holds, and what is written to it later, since nobody reads it any more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class StatusLine:
    """Writes to `stream`. If writing fails (a closed pipe, a lost terminal), the session continues without output."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._shown = False
        self.can = stream.isatty() and (os.environ.get("TERM") or "dumb") != "dumb"

    def write(self, line: str) -> None:
        self.clear()
        try:
            print(line, file=self._stream, flush=True)
        except OSError as error:
            note(f"the progress lines can no longer be written ({error.strerror}); the session continues")
            discard(self._stream)

    def show(self, text: str) -> None:
        self._raw(f"{_CLEAR}{fit(text, shutil.get_terminal_size().columns - 1)}")
        self._shown = True

    def clear(self) -> None:
        if self._shown:
            self._raw(_CLEAR)
            self._shown = False

    def _raw(self, text: str) -> None:
        """Writes to the underlying terminal, because the stream removes escape sequences."""
        try:
            os.write(self._stream.fileno(), text.encode())
        except OSError:
            self.can = False
