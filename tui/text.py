"""How values are written for people: plain, aligned, no colour by itself."""

import math
import time
from collections.abc import Sequence
from typing import Any

from kb.door import LATEST
from kb.records import Job, Measurement

_UNITS = {
    "step_time_s": "s/iter",
    "step_time_min_s": "s/iter",
    "tokens_per_s": "tokens/s",
    "peak_memory_gib": "GiB",
    "cpu_s": "CPU s/iter",
}


def number(value: float) -> str:
    """Four significant digits, no exponent in the usual range."""
    if value == 0 or not math.isfinite(value):
        return str(value)
    digits = max(0, 3 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(digits, 6)}f}"


def metric(job: Job, value: float) -> str:
    name = job.objective.metric
    return f"{number(value)} {_UNITS.get(name, name)}"


def when_and_where(m: Measurement) -> str:
    """Of a measurement that was known: ", 2026-11-22 on host-1a2b3c4d", as far as it says."""
    host = m.rank_devices[0].partition(":")[0] if m.rank_devices else ""
    day = time.strftime(", %Y-%m-%d", time.gmtime(m.at)) if 0 < m.at < LATEST else ""
    return f"{day}{f' on {host}' if host else ''}"


def clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes:02d}:{rest:02d}"


def table(rows: Sequence[Sequence[Any]], header: Sequence[str]) -> str:
    """Columns as wide as they need to be; numbers to the right."""
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
