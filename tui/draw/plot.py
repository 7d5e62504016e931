"""Plots made of characters (lines of braille dots, marks, bars, sparklines), as functions from numbers to text."""

import math
from collections.abc import Sequence

import msgspec
from rich.text import Text

from tui.text import number

_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # braille bits by column and row of a cell
_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII_BLOCKS = "_.-=+*%#"


class Marks(msgspec.Struct, frozen=True):
    """(x, y) points, each drawn as the character `mark`. Failures have y = None and are drawn at the bottom edge."""

    points: Sequence[tuple[float, float | None]]
    mark: str
    style: str = ""


def plot(
    width: int,
    height: int,
    steps: Sequence[tuple[float, float]],
    marks: Sequence[Marks],
    level: float | None = None,
    level_name: str = "",
    last_x: float = 1.0,
    ascii_only: bool = False,
) -> Text:
    """A staircase through `steps`, with `marks`, a dashed line at `level`, and a scale on the left. The scale includes
    the staircase, the level and nine tenths of the marks; other marks are drawn at the edge.
    """
    ys = [y for _, y in steps] + ([level] if level is not None else [])
    spread = sorted(y for m in marks for _, y in m.points if y is not None)
    if spread:
        ys += [spread[len(spread) // 20], spread[(len(spread) - 1) * 9 // 10]]
    if not ys or height < 2:
        return Text("no measurement yet", style="dim")
    low, high = min(ys), max(ys)
    pad = (high - low or abs(high) or 1.0) * 0.04
    low, high = low - pad, high + pad
    labels = {0: number(high), height - 1: number(low)}
    if level is not None:
        labels[_row(level, low, high, height)] = number(level)
    if steps:  # if `level` is in the same row, the label shows the latest step, and `level` is written after its name
        labels[_row(steps[-1][1], low, high, height)] = number(steps[-1][1])
    margin = max(len(label) for label in labels.values())
    columns = max(4, width - margin - 1)

    cells = [[" "] * columns for _ in range(height)]
    styles = [[""] * columns for _ in range(height)]

    def column(x: float) -> int:
        return min(columns - 1, max(0, round((x - 1) / max(1.0, last_x - 1) * (columns - 1))))

    if level is not None:
        row = _row(level, low, high, height)
        cells[row], styles[row] = list(("- " * columns)[:columns]), ["dim"] * columns
    for group in marks:
        for x, y in group.points:
            row = height - 1 if y is None else _row(y, low, high, height)
            cells[row][column(x)], styles[row][column(x)] = group.mark, group.style
    for row, line in enumerate(_staircase(steps, low, high, columns, height, last_x, ascii_only)):
        for c, character in enumerate(line):
            if character != " " and cells[row][c] in " -":
                cells[row][c], styles[row][c] = character, "bold"
    if level is not None:
        row = _row(level, low, high, height)
        said = level_name if labels[row] == number(level) else f"{level_name} {number(level)}"
        _write(cells[row], styles[row], f" {said} " if said else "")
    text = Text()
    for row in range(height):
        text.append(labels.get(row, "").rjust(margin), style="dim")
        text.append("|" if ascii_only else "┤" if row in labels else "│", style="dim")
        for character, style in zip(cells[row], styles[row], strict=True):
            text.append(character, style=style)
        if row < height - 1:
            text.append("\n")
    return text


def sparkline(values: Sequence[float], width: int, ascii_only: bool = False) -> str:
    """The last `width` values as blocks, scaled from minimum to maximum."""
    shown = [v for v in values if math.isfinite(v)][-width:]
    if not shown:
        return ""
    blocks = _ASCII_BLOCKS if ascii_only else _BLOCKS
    low, high = min(shown), max(shown)
    return "".join(blocks[int((v - low) / (high - low or 1.0) * (len(blocks) - 1))] for v in shown)


def bar(share: float, width: int, ascii_only: bool = False) -> str:
    """A share in [0, 1] as a bar of `width` characters."""
    full = round(max(0.0, min(1.0, share)) * width)
    return ("#" if ascii_only else "█") * full + ("." if ascii_only else "░") * (width - full)


def scatter(
    width: int,
    height: int,
    points: Sequence[tuple[float, float, str, str]],
    ascii_only: bool = False,
    seen: str = "measured",
) -> Text:
    """Predicted against measured values on equal logarithmic scales, with the diagonal. `points`: x, y, mark, style."""
    values = [v for x, y, _, _ in points for v in (x, y) if v > 0]
    if not values:
        return Text("no check yet", style="dim")
    low, high = math.log(min(values)) - 0.02, math.log(max(values)) + 0.02
    margin = max(len(number(math.exp(low))), len(number(math.exp(high))))
    columns = max(4, width - margin - 1)
    rows = max(2, height - 1)
    cells = [[(" ", "")] * columns for _ in range(rows)]

    def at(v: float, size: int) -> int:
        return min(size - 1, max(0, round((math.log(v) - low) / (high - low) * (size - 1))))

    for c in range(columns):
        r = rows - 1 - round(c / (columns - 1) * (rows - 1))
        cells[r][c] = ("." if ascii_only else "·", "dim")
    for x, y, mark, style in points:
        if x > 0 and y > 0:
            cells[rows - 1 - at(y, rows)][at(x, columns)] = (mark, style)
    text = Text()
    for r, line in enumerate(cells):
        label = number(math.exp(high)) if r == 0 else number(math.exp(low)) if r == rows - 1 else ""
        text.append(label.rjust(margin) + ("|" if ascii_only else "│"), style="dim")
        for character, style in line:
            text.append(character, style=style)
        text.append("\n")
    text.append(" " * (margin + 1) + f"{seen} ↑  predicted →"[:columns], style="dim")
    return text


def _row(y: float, low: float, high: float, height: int) -> int:
    return _dot(y, low, high, height) // 4


def _dot(y: float, low: float, high: float, height: int) -> int:
    """The row of a value, counted in braille dots (four per text row)."""
    share = (y - low) / (high - low) if high > low else 0.5
    return min(height * 4 - 1, max(0, round((1 - share) * (height * 4 - 1))))


def _write(cells: list[str], styles: list[str], text: str) -> None:
    """Writes text into a row of a plot, as far right as possible without hiding anything. If there is no room, the text
    may hide the staircase, but never a mark."""
    for over in ("", "bold"):
        for start in range(len(cells) - len(text), -1, -1):
            end = start + len(text)
            if all(c in " -" or (over and s == over) for c, s in zip(cells[start:end], styles[start:end], strict=True)):
                cells[start:end], styles[start:end] = list(text), ["dim"] * len(text)
                return


def _staircase(
    steps: Sequence[tuple[float, float]],
    low: float,
    high: float,
    columns: int,
    height: int,
    last_x: float,
    ascii_only: bool,
) -> list[str]:
    dots = [[0] * columns for _ in range(height)]

    def put(dx: int, dy: int) -> None:
        dots[dy // 4][dx // 2] |= _DOTS[dx % 2][dy % 4]

    def across(x: float) -> int:
        return min(columns * 2 - 1, max(0, round((x - 1) / max(1.0, last_x - 1) * (columns * 2 - 1))))

    def down(y: float) -> int:
        return _dot(y, low, high, height)

    for i, (x, y) in enumerate(steps):
        end = across(steps[i + 1][0]) if i + 1 < len(steps) else across(last_x)
        for dx in range(across(x), end + 1):
            put(dx, down(y))
        if i + 1 < len(steps):
            a, b = sorted((down(y), down(steps[i + 1][1])))
            for dy in range(a, b + 1):
                put(end, dy)
    if ascii_only:
        return ["".join("_" if d else " " for d in row) for row in dots]
    return ["".join(chr(0x2800 + d) if d else " " for d in row) for row in dots]


def cloud(
    width: int,
    height: int,
    points: Sequence[tuple[float, float, str, str]],
    x_name: str,
    y_name: str,
    ascii_only: bool = False,
) -> Text:
    """A scatter plot with independent scales and named axes. `points`: x, y, mark, style; later points hide
    earlier ones."""
    xs, ys = [p[0] for p in points], [p[1] for p in points]
    (x0, x1), (y0, y1) = (min(xs), max(xs)), (min(ys), max(ys))
    margin = max(len(number(y0)), len(number(y1)))
    columns, rows = max(8, width - margin - 1), max(2, height - 2)
    cells = [[(" ", "")] * columns for _ in range(rows)]
    for x, y, mark, style in points:
        c = round((x - x0) / ((x1 - x0) or 1.0) * (columns - 1))
        r = rows - 1 - round((y - y0) / ((y1 - y0) or 1.0) * (rows - 1))
        cells[r][c] = (mark, style)
    text = Text(f"{y_name}\n", style="dim", no_wrap=True, overflow="ellipsis")
    for r, line in enumerate(cells):
        label = number(y1) if r == 0 else number(y0) if r == rows - 1 else ""
        text.append(label.rjust(margin) + ("|" if ascii_only else "│"), style="dim")
        for mark, style in line:
            text.append(mark, style=style)
        text.append("\n")
    ends = f"{number(x0)}{x_name:^{max(1, columns - len(number(x0)) - len(number(x1)))}}{number(x1)}"
    text.append(f"{'':<{margin + 1}}{ends}", style="dim")
    return text
