"""Anytime curves: median regret of each strategy after n evaluations, as SVG and for the terminal."""

from collections.abc import Sequence
from xml.sax.saxutils import escape

import numpy as np

from autoscout.studies.bench.run import BenchRun
from autoscout.studies.bench.summary import ALL

_COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999"),
    *("#882255", "#117733", "#AA4499", "#44AA99", "#DDCC77", "#6699CC", "#661100"),
)
_FLOOR, _CEILING = 1e-3, 10.0  # regrets outside are clipped
_WIDTH, _HEIGHT, _LEFT, _TOP = 340, 200, 60, 26
_LABELS = {1e-3: "≤0.1 %", 1e-2: "1 %", 0.1: "10 %", 1.0: "100 %", 10.0: "≥1000 %"}
_COLUMNS = 3
_MOST_PANELS = 9

Curves = dict[str, np.ndarray]  # strategy → (3, budget) quartiles of regret after each evaluation; NaN: nothing ran


def curves(runs: Sequence[BenchRun], budget: int) -> Curves:
    result = {}
    for strategy in dict.fromkeys(r.strategy for r in runs):
        table = np.array([_regrets(r, budget) for r in runs if r.strategy == strategy])
        quartiles = np.percentile(table, [25, 50, 75], axis=0, method="nearest")
        result[strategy] = np.where(np.isinf(quartiles), np.nan, quartiles)
    return result


def _regrets(run: BenchRun, budget: int) -> np.ndarray:
    """(budget,) after each evaluation; infinite before anything ran."""
    regrets = np.full(budget, np.inf)
    for at, value in run.curve:
        regrets[int(at) - 1 :] = abs(value - run.optimum) / run.optimum
    return regrets


def panels(runs: Sequence[BenchRun], budget: int) -> dict[str, Curves]:
    """Curves by landscape; for many landscapes, of all runs together."""
    landscapes = list(dict.fromkeys(r.landscape for r in runs))
    if len(landscapes) > _MOST_PANELS:
        return {f"{ALL} {len(landscapes)} landscapes": curves(runs, budget)}
    return {name: curves([r for r in runs if r.landscape == name], budget) for name in landscapes}


def svg(runs: Sequence[BenchRun], budget: int) -> str:
    """One panel per landscape: median regret (log) over evaluations (log), and the quartiles of the first strategy."""
    shown = panels(runs, budget)
    strategies = list(dict.fromkeys(r.strategy for r in runs))
    columns = min(_COLUMNS, len(shown))
    rows = -(-len(shown) // columns)
    width, step = columns * (_WIDTH + _LEFT + 16), _HEIGHT + 62
    legend_columns = max(1, width // 150)
    height = rows * step + 20 + 18 * -(-len(strategies) // legend_columns)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for i, (name, drawn) in enumerate(shown.items()):
        x, y = (i % columns) * (_WIDTH + _LEFT + 16) + _LEFT, (i // columns) * step + _TOP
        parts.append(f'<g transform="translate({x},{y})">{_panel(name, drawn, budget, strategies)}</g>')
    for i, strategy in enumerate(strategies):
        x, y = _LEFT + (i % legend_columns) * 150, rows * step + 14 + 18 * (i // legend_columns)
        parts.append(f'<path d="M{x},{y - 4}h22" stroke="{_colour(i)}" stroke-width="2"/>')
        parts.append(f'<text x="{x + 27}" y="{y}">{escape(strategy)}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _panel(name: str, drawn: Curves, budget: int, strategies: list[str]) -> str:
    parts = [f'<text x="0" y="-8" font-weight="bold">{escape(name)}</text>']
    for n in _ticks(budget):
        x = _x(n, budget)
        parts.append(f'<path d="M{x:.1f},0V{_HEIGHT}" stroke="#e5e5e5"/>')
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT + 14}" text-anchor="middle">{n}</text>')
    for regret, label in _LABELS.items():
        y = _y(regret)
        parts.append(f'<path d="M0,{y:.1f}H{_WIDTH}" stroke="{"#999" if regret == 1e-2 else "#e5e5e5"}"/>')
        parts.append(f'<text x="-5" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    parts.append(f'<text x="{_WIDTH / 2}" y="{_HEIGHT + 28}" text-anchor="middle">evaluations</text>')
    for i in reversed(range(len(strategies))):
        if strategies[i] not in drawn:
            continue
        q1, median, q3 = drawn[strategies[i]]
        ok = np.flatnonzero(np.isfinite(median))
        if i == 0 and len(band := np.flatnonzero(np.isfinite(q3))):
            outline = _points(q3, band, budget) + _points(q1, band, budget)[::-1]
            parts.append(f'<polygon points="{" ".join(outline)}" fill="{_colour(i)}" opacity="0.15"/>')
        line = " ".join(_points(median, ok, budget))
        width = 2.4 if i == 0 else 1.4
        parts.append(f'<polyline points="{line}" fill="none" stroke="{_colour(i)}" stroke-width="{width}"/>')
    return "".join(parts)


def _points(values: np.ndarray, at: np.ndarray, budget: int) -> list[str]:
    """The corners of a step function."""
    points, last = [], None
    for n in at:
        y = f"{_y(float(values[n])):.1f}"
        if y != last:
            if last is not None:
                points.append(f"{_x(n + 1, budget):.1f},{last}")
            points.append(f"{_x(n + 1, budget):.1f},{y}")
            last = y
    if last is not None:
        points.append(f"{_x(int(at[-1]) + 1, budget):.1f},{last}")
    return points


def _x(n: int, budget: int) -> float:
    return float(_WIDTH * np.log(n) / max(np.log(budget), 1e-9))


def _y(regret: float) -> float:
    return _HEIGHT * (1 - np.log(min(max(regret, _FLOOR), _CEILING) / _FLOOR) / np.log(_CEILING / _FLOOR))


def _ticks(budget: int) -> list[int]:
    return [n for n in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if n <= budget]


def _colour(i: int) -> str:
    return _COLOURS[i % len(_COLOURS)]


def text(drawn: Curves, budget: int, width: int = 64, height: int = 12) -> str:
    """The curves as text, for a terminal: one letter per strategy, the first one on top."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    places = np.unique(np.geomspace(1, budget, width).round().astype(int))
    grid = [[" "] * len(places) for _ in range(height)]
    for i, (_, (_, median, _)) in reversed(list(enumerate(drawn.items()))):
        for column, n in enumerate(places):
            if np.isfinite(median[n - 1]):
                row = round((height - 1) * _y(median[n - 1]) / _HEIGHT)
                grid[row][column] = letters[i % len(letters)]
    labels = {round((height - 1) * _y(regret) / _HEIGHT): label for regret, label in _LABELS.items()}
    lines = [f"{labels.get(i, ''):>8} │{''.join(row).rstrip()}" for i, row in enumerate(grid)]
    axis = [" "] * (len(places) + 4)
    for n in _ticks(budget):
        column = int(np.searchsorted(places, n))
        if axis[max(column - 1, 0)] == " ":
            axis[column : column + len(str(n))] = str(n)
    legend = "  ".join(f"{letters[i % len(letters)]} {name}" for i, name in enumerate(drawn))
    return "\n".join(
        [*lines, f"{'':>8} └{'─' * len(places)}", f"{'':>10}{''.join(axis).rstrip()}", f"{'':>10}{legend}"]
    )
