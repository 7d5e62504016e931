"""Makes untrusted text safe for a terminal."""

import re
from typing import Any, TextIO

# Escape sequences, which may move the cursor, change the title or the clipboard, or hide text.
_SEQUENCES = re.compile(
    "(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]|(?:\x1b[\\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\\\|\x9c)?"
)
# Control characters, lone surrogates, and (from \u061c on) characters that change the direction of text.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def plain(text: str) -> str:
    """`text` safe for a terminal: its only control characters are line ends and tabs."""
    return _CONTROL.sub("?", _SEQUENCES.sub("", text))


def plain_line(text: str) -> str:
    """`text` safe for a terminal and on one line, for names."""
    return plain(text).replace("\n", "?").replace("\t", "?")


class PlainStream:
    """A text stream that removes everything unsafe from what is written; its `buffer` writes bytes unchanged."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(text if text.isascii() and text.isprintable() else plain(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
