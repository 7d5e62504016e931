"""Formats values for people: plain and aligned, without colour."""

import math
import re
import shlex
import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kb.records import Job, Measurement

_UNITS = {
    "step_time_s": "s/iter",
    "step_time_min_s": "s/iter",
    "tokens_per_s": "tokens/s",
    "peak_memory_gib": "GiB",
    "cpu_s": "CPU s/iter",
}
TRY = "try: "  # begins the line after an error message that has a command to try
_TAKE_JOBS = ("tune", "profile", "predict", "explain", "space", "check")


def program() -> str:
    """The program's name for printed commands, so that they can be pasted: `autoscout` if it is on the PATH, else the
    path with which this process was started."""
    called = sys.argv[0]
    return "autoscout" if shutil.which("autoscout") or Path(called).name != "autoscout" else shlex.quote(called)


def error_of(output: str) -> str:
    """The error message in a subcommand's stderr, without the command to try that may follow it; "" if it is empty."""
    lines = [line for line in output.strip().splitlines() if not line.startswith(TRY)]
    return lines[-1].removeprefix("autoscout: ") if lines else ""


def with_job(sentence: str, job: str, source: str = "") -> str:
    """Returns the sentence with its commands rewritten so that they can be pasted: they start the program as this
    process was started, and name the job's file. `source`: added to commands `autoscout init --…`."""
    whole = re.sub(rf"`autoscout ({'|'.join(_TAKE_JOBS)})`", r"`autoscout \1 JOB.toml`", sentence)
    named = re.sub(r"`autoscout ([^`]*)JOB\.toml", lambda found: f"`autoscout {found[1]}{shlex.quote(job)}", whole)
    if source:
        named = re.sub(r"`autoscout init( --[^`]*)`", lambda found: f"`autoscout init{found[1]} {source}`", named)
    return pastable(named)


def pastable(sentence: str) -> str:
    """Returns the sentence with its commands rewritten so that they can be pasted, even outside the Python environment:
    they start the program as this process was started."""
    return re.sub(r"(?<![\w./-])autoscout(?= [a-z])", lambda _: program(), sentence)


def number(value: float) -> str:
    """Four significant digits, without an exponent."""
    if value == 0 or not math.isfinite(value):
        return str(value)
    digits = max(0, 3 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(digits, 6)}f}"


def knob_value(value: object) -> str:
    """A knob's value; "–" if the knob is not active."""
    if value is None:
        return "–"
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def changes(before: dict[str, Any], after: dict[str, Any], often: Mapping[tuple[str, Any], int] = {}) -> str:
    """How a configuration differs from the reference, such as "mbs 8, −overlap_grad", or "the reference" if it does
    not. `often`: (knob, value) → number of configurations with it; the rarest setting comes first. Knobs that are
    inactive in `after`, or off in `after` and inactive in `before`, are left out."""
    words = []
    for name, value in sorted(after.items(), key=lambda each: often.get(each, 0)):
        if before.get(name, False) != value:
            words.append(f"{'+' if value else '−'}{name}" if isinstance(value, bool) else f"{name} {value}")
    return ", ".join(words) or "the reference"


def metric(job: "Job", value: float) -> str:
    return f"{number(value)} {unit(job.objective.metric)}"


def unit(metric: str) -> str:
    return _UNITS.get(metric, metric)


def when_and_where(m: "Measurement") -> str:
    """Date and host of a measurement as a suffix, such as ", 2026-11-22 on host-1a2b3c4d", as far as recorded."""
    from kb.door import LATEST

    host = m.rank_devices[0].partition(":")[0] if m.rank_devices else ""
    day = time.strftime(", %Y-%m-%d", time.gmtime(m.at)) if 0 < m.at < LATEST else ""
    return f"{day}{f' on {host}' if host else ''}"


def fit(text: str, width: int, knobs: Iterable[str] = ()) -> str:
    """`text`, truncated at the end of a word with "…" if it is too long. With `knobs`, a configuration's name is
    truncated only between knobs: distopt… for distopt_overlap_grad, not distopt_overlap…"""
    if len(text) <= width:
        return text
    if width < 1:
        return ""
    kept = text[: width - 1]
    name = "|".join(map(re.escape, knobs))
    end = rf"[ ,;:]|_(?=(?:no-)?(?:{name})(?:[-_\d]|x\d|$))" if name else "[ _,;:]"
    ends = [found.start() for found in re.finditer(end, text) if 0 < found.start() < width]
    return f"{kept[: ends[-1]].rstrip(' ,;:') if ends else kept}…"


def fit_lines(text: str, width: int, height: int) -> list[str]:
    """`text` wrapped into at most `height` lines, truncated at the end of a clause if one fits, else of a word."""
    text = re.sub(r"(\d) %", "\\1\u00a0%", text)  # no line break between a number and %
    lines = textwrap.wrap(text, max(8, width), break_long_words=False, break_on_hyphens=False)
    while len(lines) > height > 0 and (shorter := re.sub(r"(; |, |\. )[^;,]*?$", "", text)) != text:
        text = shorter
        lines = textwrap.wrap(text, max(8, width), break_long_words=False, break_on_hyphens=False)
    return [fit(line, width) for line in lines[: max(0, height - 1)]] + [
        fit(" ".join(lines[height - 1 :]), width) for _ in lines[height - 1 : height]
    ]


def label_width(names: Iterable[str]) -> int:
    """Width of a column that contains these names, including a blank after the longest."""
    return max(18, min(26, 1 + max(map(len, names), default=0)))


def label(name: str, width: int) -> str:
    """A name padded or truncated to the width of its column."""
    return f"{fit(name, width - 1):<{width}}"


def clauses(sentence: str) -> list[str]:
    """The parts of a sentence between semicolons, except those in brackets."""
    parts: list[str] = []
    for part in sentence.split("; ") if sentence else ():
        if parts and parts[-1].count("(") > parts[-1].count(")"):
            parts[-1] += f"; {part}"
        else:
            parts.append(part)
    return parts


def clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes:02d}:{rest:02d}"


def table(rows: Sequence[Sequence[Any]], header: Sequence[str]) -> str:
    """An aligned table; numeric columns are right-aligned."""
    cells = [[("" if c is None else str(c)) for c in row] for row in rows]
    widths = [max(len(r[i]) for r in [list(header), *cells]) for i in range(len(header))]
    right = [all(_is_number(r[i]) for r in cells) and bool(cells) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        return "  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True)).rstrip()

    return "\n".join([line(list(header)), "  ".join("─" * w for w in widths), *(line(r) for r in cells)])


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", "") or "0")
    except ValueError:
        return False
    return True


def mark(ok: bool | None, ascii_only: bool = False) -> str:
    """✓ for true, ✗ for false, – if not known yet."""
    if ok is None:
        return "-" if ascii_only else "–"
    return ("+" if ascii_only else "✓") if ok else ("x" if ascii_only else "✗")
