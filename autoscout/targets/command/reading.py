"""Reads the metrics of a run from its output or files by regular expressions, while the run continues.

For speed, lines are prefiltered by the longest literal that every match of a pattern contains. This reads hundreds of
MB/s, with one chunk of the log in memory."""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autoscout.line import nested
from kb import door
from kb.records import MetricSource

MOST = 100_000  # maximum number of values per metric
_LONGEST = 2**16  # maximum number of bytes of a line that are searched
_PIECE = 2**20
_COLOURS = re.compile(rb"\x1b\[[0-9;]*[A-Za-z]")
_ENDS = re.compile(rb"[\r\n]")
# A step in an unknown log: "step 12", "iteration: 12", or a progress bar's count ("12/90 [" by tqdm). The rate in a
# progress bar cannot be used, because tqdm switches from it/s to s/it.
GUESSED_STEP = r"^.*?\s(\d+)/\d+ \[|(?:^|[^A-Za-z])(?i:step|iter(?:ation)?)s?[\s:=#\[]{0,3}(\d+)"


class MetricReader:
    """Collects the values of one metric. The time of a step is the difference between the arrival times of two lines.
    Several steps share it equally if their lines arrive together (buffered, or on a busy machine) or are skipped."""

    def __init__(self, source: MetricSource) -> None:
        pattern = source.pattern or source.between or source.counter
        self._pattern = re.compile(pattern.encode())
        self._literal = literal(pattern).encode()
        self._times, self._counts = bool(source.between), bool(source.counter)
        self._last: float | None = None
        self._counted = 0.0
        self._step: bytes | None = None
        self._number: int | None = None  # number of the last step, if the log has step numbers
        self._together = 0  # number of steps since the time `_last` whose duration is not known yet
        self.values: list[float] = []

    def read(self, text: bytes, at: float) -> None:
        """Reads whole lines that arrived at the time `at` (seconds)."""
        for line in self._lines(text):
            if found := self._pattern.search(line):
                self._note(found, at)
        if self._times and self._together:
            self._share(at)

    def glance(self, redraw: bytes, at: float) -> None:
        """Reads an unfinished line of a progress bar. Each redraw begins with \\r, so a line is complete only at the
        next redraw. The line's step number is used as soon as a character follows the number. Reading the whole line
        later adds no step."""
        found = self._pattern.search(redraw) if self._times and self._pattern.groups else None
        if found and found.lastindex and found[found.lastindex].isdigit() and found.end() < len(redraw):
            self._note(found, at)
            if self._together:
                self._share(at)

    def _share(self, at: float) -> None:
        if self._last is None:
            self._last, self._together = at, 0
        elif at > self._last:
            for _ in range(min(self._together, MOST)):
                self._keep((at - self._last) / self._together)
            self._last, self._together = at, 0

    def _note(self, found: re.Match[bytes], at: float) -> None:
        if self._times:
            self._together += self._steps(found[found.lastindex] if found.lastindex else None)
            return
        number = number_of(found[found.lastindex or 0] or b"")
        if number is not None and self._counts:
            if self._last is not None and at > self._last:
                self._keep((number - self._counted) / (at - self._last))
            self._last, self._counted = at, number
        elif number is not None:
            self._keep(number)

    def _steps(self, step: bytes | None) -> int:
        """Returns the number of steps since the previous line, as logs may skip steps. A number slightly below the
        previous one comes from a slower rank. A number of at most half the previous one means that counting
        restarted."""
        if step is None:
            return 1
        if not step.isdigit():
            self._step, before = step, self._step
            return int(step != before)
        number, before = int(step), self._number
        if before is not None and before / 2 <= number < before:
            return 0
        self._number = number
        if before is None:
            return 1
        return number - before if number >= before else number

    def _keep(self, value: float) -> None:
        if len(self.values) < MOST:
            self.values.append(value)

    def _lines(self, text: bytes) -> Iterator[bytes]:
        if not self._literal:
            yield from (line[:_LONGEST] for line in _ENDS.split(text))
            return
        place = text.find(self._literal)
        while place >= 0:
            start = max(text.rfind(b"\n", 0, place), text.rfind(b"\r", 0, place)) + 1
            ends = [end for end in (text.find(b"\n", place), text.find(b"\r", place)) if end >= 0]
            end = min(ends, default=len(text))
            yield text[start : min(end, start + _LONGEST)]
            place = text.find(self._literal, end)


class Stream:
    """Joins chunks of a log to whole lines, for several metrics."""

    def __init__(self, numbers: list[MetricReader]) -> None:
        self._numbers = numbers
        self._rest = b""

    def feed(self, piece: bytes, at: float) -> None:
        cut = max(piece.rfind(b"\n"), piece.rfind(b"\r")) + 1
        if not cut:
            self._rest = (self._rest + piece)[-_LONGEST:]
            return
        text = self._rest + piece[:cut]
        if b"\x1b" in text:
            text = _COLOURS.sub(b"", text)
        self._rest = piece[cut:][-_LONGEST:]
        for numbers in self._numbers:
            numbers.read(text, at)
            if piece[cut - 1 : cut] == b"\r" and self._rest:
                numbers.glance(_COLOURS.sub(b"", self._rest), at)

    def close(self, at: float) -> None:
        """Reads the last line, which may lack a line end."""
        if self._rest:
            self.feed(b"\n", at)


class Tail:
    """A growing file. Each read passes the content added since the previous read to the stream."""

    def __init__(self, path: Path, stream: Stream) -> None:
        self._path, self._stream, self._place = path, stream, 0

    def read(self) -> None:
        try:
            with open(self._path, "rb") as file:
                file.seek(self._place)
                while piece := file.read(_PIECE):
                    self._place += len(piece)
                    self._stream.feed(piece, time.monotonic())
        except OSError:  # the file does not exist yet
            return

    def close(self) -> None:
        self.read()
        self._stream.close(time.monotonic())


class ResultFile:
    """The file $AUTOSCOUT_RESULT: a JSON object of metrics by name, or one such object per line and iteration."""

    def __init__(self, path: Path) -> None:
        self._path, self._place, self._rest = path, 0, b""
        self.values: dict[str, list[float]] = {}
        self.problem = ""

    def read(self) -> None:
        """Reads new whole lines."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._place)
                new = file.read()
        except OSError:
            return
        self._place += len(new)
        *lines, self._rest = (self._rest + new).split(b"\n")
        for line in lines:
            self._take(line)

    def close(self) -> None:
        """Reads the remaining lines of the file; if its lines are not JSON objects, parses the whole file as one
        document."""
        self.read()
        if self._rest.strip():
            self._take(self._rest)
        if self.values:
            return
        try:
            text = self._path.read_bytes()
        except OSError:
            return
        if not text.strip():
            return
        try:
            self._keep(door.parsed_json(text))
        except ValueError as error:
            self.problem = f"$AUTOSCOUT_RESULT holds incomplete JSON, or none ({error})"

    def at(self, path: str) -> float | None:
        """Returns the number at a path in the whole document; None if there is none."""
        return number_at(self._path, path)

    def _take(self, line: bytes) -> None:
        try:
            found = door.parsed_json(line)
        except ValueError:
            return
        self._keep(found)

    def _keep(self, found: Any) -> None:
        for name, value in found.items() if isinstance(found, dict) else ():
            some = value if isinstance(value, list) else [value]
            numbers = [float(x) for x in some if isinstance(x, int | float) and not isinstance(x, bool)]
            kept = self.values.setdefault(name, [])
            kept += numbers[: MOST - len(kept)]


def number_at(path: Path, inside: str) -> float | None:
    """Returns the number at a path such as results.0.step in a JSON file; None if there is none."""
    try:
        found = nested.at(door.parsed_json(path.read_bytes()), inside)
    except (OSError, ValueError):
        return None
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None


def number_of(text: bytes) -> float | None:
    """Parses a number such as "1,234.5", "1.2e-3" or "nan"; None if the text is not a number."""
    try:
        return float(text.replace(b",", b"").strip().rstrip(b".%"))
    except ValueError:
        return None


def literal(pattern: str) -> str:
    """Returns the longest literal that every match of a pattern contains; "" if there is none."""
    try:
        parsed = re._parser.parse(pattern)  # type: ignore[attr-defined]
    except re.error:
        return ""
    if parsed.state.flags & re.IGNORECASE:
        return ""
    runs = [""]
    for operation, argument in parsed:
        name = str(operation)
        if name == "LITERAL" and chr(argument) not in "\r\n":
            runs[-1] += chr(argument)
        else:
            runs.append("")
            if name == "SUBPATTERN" and not (argument[1] or argument[2]):
                runs += [literal_of_parsed(argument[3]), ""]
    return max(runs, key=len)


def literal_of_parsed(parsed: Any) -> str:
    """Returns the literal with which a parsed pattern begins; "" if it begins with anything else."""
    text = ""
    for operation, argument in parsed:
        if str(operation) != "LITERAL":
            return text
        text += chr(argument)
    return text
