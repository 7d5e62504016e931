"""Draws the verdict of a gate, which compares two versions of a job (sides A and B), and the metrics of both sides."""

from collections.abc import Sequence

from rich.text import Text

from kb.end_events import Gated
from kb.within_events import Part
from tui.session.headlines import gate_words, slower
from tui.text import clauses, number

MARKS = {"no worse": "✓", "worse": "✗", "undecided": "–"}
_PLAIN = {"no worse": "+", "worse": "x", "undecided": "-"}
_STYLES = {"no worse": "green", "worse": "red", "undecided": "yellow"}
PART_HEADER = ("", "A", "B", "B against A", "95 % interval")


def part_rows(parts: Sequence[Part]) -> list[list[str]]:
    return [[p.name, number(p.a), number(p.b), slower(p.ratio), _interval(p)] for p in parts]


def _interval(part: Part) -> str:
    return f"{slower(part.low)} to {slower(part.high)}" if part.low and part.high else ""


def verdict_of(found: Gated, ascii_only: bool) -> Text:
    mark = (_PLAIN if ascii_only else MARKS)[found.verdict]
    return Text(f"{mark} gate: {gate_words(found)}", style=f"bold {_STYLES[found.verdict]}")


def gated(found: Gated, ascii_only: bool) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis").append(verdict_of(found, ascii_only)).append("\n")
    for part in clauses(found.sentence):
        text.append(f"{part}\n")
    text.append(f"A is {found.a} ({found.a_session}); B is {found.b}\n", style="dim")
    return text.append(parts_of(found))


def parts_of(found: Gated) -> Text:
    """One line per metric, with its values on side A and side B."""
    text = Text(no_wrap=True, overflow="ellipsis")
    rows = [["", "A", "B", "B is at", "95 % interval"], *part_rows(found.parts)]
    wide = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for at, row in enumerate(rows if found.parts else []):
        line = f"{row[0]:<{wide[0]}}" + "".join(f"  {cell:>{w}}" for cell, w in zip(row[1:], wide[1:], strict=True))
        text.append(f"{line}\n", style="bold" if not at else "")
    return text
