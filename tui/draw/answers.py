"""Draws the result of a SQL query as a plot, or one of its rows as text."""

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from tui.draw.plot import bar, cloud
from tui.text import number


def of_answer(rows: Sequence[dict[str, Any]], width: int, height: int, ascii_only: bool) -> Text:
    """A scatter plot of the first two columns if all columns are numeric; else one bar per row for the first numeric
    column, labelled by the first other column."""
    if not rows:
        return Text("no answer to draw; ctrl+j runs the query", style="dim")
    numeric = [name for name in rows[0] if _numbers(rows, name)]
    names = [name for name in rows[0] if name not in numeric]
    if not numeric:
        return Text("no column contains numbers", style="dim")
    if len(numeric) > 1 and not names:
        x, y = numeric[:2]
        mark = "*" if ascii_only else "●"
        points = [(r[x], r[y], mark, "") for r in rows if r[x] is not None and r[y] is not None]
        return cloud(width, height, points, x, y, ascii_only)
    return _bars(rows, numeric[0], names[0] if names else "", width, ascii_only)


def _bars(rows: Sequence[dict[str, Any]], value: str, name: str, width: int, ascii_only: bool) -> Text:
    """One bar per row for the column `value`, labelled by the column `name`. Bars start at zero."""
    top = max((abs(r[value]) for r in rows if r[value] is not None), default=0.0) or 1.0
    labels = [" ".join(str(r[name]).split()) if name else str(i) for i, r in enumerate(rows, start=1)]
    wide = min(max(map(len, labels)), max(8, width // 2))
    size = max(4, width - wide - 14)
    text = Text(f"{value}{f' by {name}' if name else ''}\n", style="bold", no_wrap=True, overflow="ellipsis")
    for label, row in zip(labels, rows, strict=True):
        text.append(f"{label:<{wide}.{wide}} ")
        if row[value] is None:
            text.append("–\n", style="dim")
            continue
        share = abs(row[value]) / top
        drawn = bar(share, size, ascii_only).rstrip("." if ascii_only else "░")
        text.append(f"{'-' if row[value] < 0 else ''}{drawn} {number(abs(row[value]))}\n")
    text.right_crop(1)
    return text


def record(row: dict[str, Any]) -> Text:
    wide = max((len(name) for name in row), default=0)
    text = Text()
    for name, value in row.items():
        text.append(f"{name:<{wide}}  ", style="dim").append(f"{'–' if value is None else value}\n")
    text.right_crop(1)
    return text


def _numbers(rows: Sequence[dict[str, Any]], name: str) -> bool:
    values = [r[name] for r in rows if r[name] is not None]
    return bool(values) and all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
