"""Draws the lines of the home screen: sessions, jobs, machines, winners."""

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from tui.draw.look import glyph
from tui.hygiene import plain_line
from tui.session.headlines import shown
from tui.session.house import JobFile, Seen
from tui.text import number


def session_line(seen: Seen, width: int, ascii_only: bool) -> Text:
    mark = glyph("running", ascii_only) if seen.alive else ("#" if ascii_only else "■")
    text = Text(no_wrap=True, overflow="ellipsis")
    wide = max(16, min(40, width - 44))
    name = plain_line(seen.session)
    name = name if len(name) <= wide else f"{name[: wide - 5]}…{name[-4:]}"
    text.append(f"{mark} {name:<{wide}} ", style="bold" if seen.alive else "")
    text.append(f"{seen.experiments:>7} ")
    if seen.best:
        by = f"  {seen.gain} the default" if seen.gain else ""
        text.append(f"{seen.best}{by}   " if width >= 110 else f"{seen.gain or seen.best}  ")
    text.append(seen.state, style="" if seen.alive else "dim")
    return text


def job_line(job: JobFile, width: int) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(f"{plain_line(job.given):<{min(40, width // 2)}} ", style="" if job.ours else "bold")
    return text.append(plain_line(job.about), style="dim")


def known(rows: Sequence[dict[str, Any]] | str, width: int, height: int) -> Text:
    """One line per host: name, cluster, number of runs. `rows` may also be a message, which is shown instead."""
    if isinstance(rows, str):
        return Text(rows, style="dim")
    text = Text(no_wrap=True, overflow="ellipsis")
    for row in rows[:height]:
        wide = max(8, min(20, (width - 11) // 2))
        text.append(f"{row['host'] or 'unknown':<{wide}.{wide}} {row['cluster'] or '':<{wide}.{wide}} ")
        text.append(f"{row['measurements']:>4} runs\n")
    text.right_crop(1)
    return text


def winners(rows: Sequence[dict[str, Any]] | str, width: int, height: int) -> Text:
    if isinstance(rows, str):
        return Text(rows, style="dim")
    text = Text(no_wrap=True, overflow="ellipsis")
    for row in rows[:height]:
        value = number(row["value"]) if row["value"] is not None else ""
        text.append(f"{row['job']:<18.18} {shown(row['gain'], row['low']):>7} {value:>9} ")
        text.append(f"{row['best']}\n", style="dim")
    text.right_crop(1)
    return text
