"""Draws how often the intervals and the chances of `truth_by_source` hold, and lists the sources that miss a goal."""

import math
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from html import escape

from tests.tools.truth_by_source import CHANCES, HOWS, LEVELS, Found, Half, mean

Point = tuple[float, float, str]  # what is predicted, what happened, a label
FEWEST = 10  # rows of a panel, and rows from which a share inside of the interval counts
MANY = 29  # rows that all lie inside of correct 90 % intervals in less than 5 % of cases
WIDE = "too wide"
# Goals of errors by source and metric, of which the first that matches counts.
GOALS = {
    "mlperf_train: llama31_405b * | step_time_s": 0.08,
    "mlperf_train: * | step_time_s": 0.11,
    "automodel: * | step_time_s": 0.12,
    "vtrain*: * | step_time_s": 0.05,
    "si70: * | tpot_mean_ms": 0.11,
    "* | step_time_s": 0.09,
    "* | peak_memory_gib": 0.06,
    "* | ttft_mean_ms": 0.35,
    "* | *": 0.18,
}
# Causes that docs/lab/unsaid.md documents; `unknown` where it looked and found none.
CAUSES = {
    "automodel: *": "pipelines with tensor parallelism: the host dispatches DTensors from Python",
    "cloudrift: * RTX *": "the host's work for a sequence, measured on slower hosts",
    "llmtrainer: * | step_time_s": "a loop of its own: which attention, adapters without autocast, launches that wait",
    "llmtrainer: * | peak_memory_gib": "reserved, in 10^9 bytes; a loss of 16-bit logits",
    "mlenergy: * B200 *": "27 ms a step more with answers of 8,000 tokens, unknown",
    "mlperf_train: llama31_405b GB300 *": "no precision stated",
    "silicon*-trtllm H200 | ttft_mean_ms": "requests wait outside of the engine, unknown",
    "silicon*-trtllm H200 | tpot_mean_ms": "DeepSeek-R1 in 1.1 with few users, perhaps guessed tokens",
    "silicon: silicon-vllm H200 *": "rows of 0.12 faster than their prompts can be read; perhaps a column is missing",
    "train_end_to_end: megatron_bridge *": "releases of one recipe differ by up to twice; gpt-oss in bf16",
}
_SIDE, _GAP, _TOP, _COLUMNS = 130, 44, 64, 7  # side of a panel; distance between panels; room for titles; panels a row
_LETTERS = 28  # of a title that fit
_STYLE = """
text { font-family: system-ui, sans-serif; font-size: 11px; fill: #57606a }
.name { font-weight: 600; font-size: 10px; fill: #1b1f24 } .n { font-size: 9px }
.paper { fill: #ffffff } .frame { fill: none; stroke: #d0d7de } .right { stroke: #57606a; stroke-dasharray: 1 3 }
.said { stroke: #0072b2; fill: none } .unsaid { stroke: #d55e00; fill: none; stroke-dasharray: 5 3 }
circle.said { fill: #0072b2 } circle.unsaid { fill: #d55e00 }
@media (prefers-color-scheme: dark) {
  text { fill: #9da7b3 } .name { fill: #e6edf3 } .paper { fill: #0d1117 } .frame { stroke: #30363d }
}
"""


def picture(found: Found) -> str:
    """An SVG: a panel a table for chances to run out of memory, then one a source and metric for intervals."""
    panels = [*_chances(found), *_intervals(found)]
    width = _COLUMNS * (_SIDE + _GAP) + _GAP
    height = math.ceil(len(panels) / _COLUMNS) * (_SIDE + _TOP) + 60
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        f'<style>{_STYLE}</style><rect class="paper" width="{width}" height="{height}"/>',
        f'<text x="{_GAP}" y="20">across: percent predicted; up: percent observed; dotted: as many as predicted</text>',
    ]
    for x, how, words in ((_GAP + 480, "said", "all stated"), (_GAP + 600, "unsaid", "software unsaid")):
        drawn.append(f'<path class="{how}" d="M{x} 16h30"/><text x="{x + 38}" y="20">{words}</text>')
    for i, (names, lines) in enumerate(panels):
        x, y = _GAP + i % _COLUMNS * (_SIDE + _GAP), 30 + i // _COLUMNS * (_SIDE + _TOP)
        drawn += [f'<g transform="translate({x} {y})">', *_panel(names, lines), "</g>"]
    return "\n".join([*drawn, "</svg>", ""])


def _intervals(found: Found) -> Iterator[tuple[list[str], dict[str, list[Point]]]]:
    for key, of in sorted(found.items()):
        if (rows := _rows(of.get("said", {}))) >= FEWEST:
            lines = {
                how: [(level / 100, mean(of[how], f"inside {level}"), "") for level in LEVELS]
                for how in HOWS[:2]
                if how in of
            }
            source, _, metric = key.partition(" | ")
            yield [*source.split(": "), f"{metric}, {rows:.0f} rows"], lines


def _chances(found: Found) -> Iterator[tuple[list[str], dict[str, list[Point]]]]:
    died = {key: of for key, of in found.items() if any(how.startswith("died") for how in of)}
    for table in sorted({key.partition(":")[0] for key in died}):
        lines: dict[str, list[Point]] = {}
        for how in HOWS[:2]:
            halves = [
                half for key, of in died.items() if key.startswith(f"{table}:") for half in of[f"died, {how}"].values()
            ]
            for i in range(len(CHANCES)):
                n, chance, dead = (sum(half[f"{name} {i}"] for half in halves) for name in ("runs", "chance", "died"))
                if n:
                    lines.setdefault(how, []).append((chance / n, dead / n, f"{n:.0f}"))
        runs = sum(int(label) for _, _, label in lines.get("said", []))
        if runs >= FEWEST:
            yield [table, "out of memory", f"{runs} runs, n at each point"], lines


def _panel(names: list[str], lines: dict[str, list[Point]]) -> Iterator[str]:
    for i, name in enumerate(names):
        short = name if len(name) <= _LETTERS else f"{name[: _LETTERS - 1]}…"
        yield f'<text class="{"n" if i else "name"}" y="{12 + 12 * i}">{escape(short)}</text>'
    yield f"<title>{escape(': '.join(names))}</title>"
    yield f'<g transform="translate(0 {_TOP - 20})"><rect class="frame" width="{_SIDE}" height="{_SIDE}"/>'
    yield f'<path class="right" d="M0 {_SIDE}L{_SIDE} 0"/>'
    for how, points in lines.items():
        at = [(_SIDE * x, _SIDE * (1 - y), label) for x, y, label in points]
        yield f'<path class="{how}" d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y, _ in at)}"/>'
        for x, y, label in at:
            yield f'<circle class="{how}" cx="{x:.1f}" cy="{y:.1f}" r="2"/>'
            if label:
                yield f'<text class="n" x="{x + 4:.1f}" y="{y + (10 if how == "said" else -3):.1f}">{label}</text>'
    yield "</g>"


def wrong(found: Found) -> Iterator[str]:
    """Markdown, a row a source and metric whose error exceeds its goal, or whose 90 % interval holds too few or too
    many of its rows, with all that the rows state."""
    yield "| source | metric | rows | error, goal | bias | inside 90 % | wrong | documented cause |"
    yield "|---|---|---|---|---|---|---|---|"
    for key, of in sorted(found.items()):
        if "said" not in of:
            continue
        halves = of["said"]
        rows, error, cover = _rows(halves), mean(halves, "error"), round(mean(halves, "cover"), 2)
        goal = next(goal for pattern, goal in GOALS.items() if fnmatch(key, pattern))
        if faults := ", ".join(_faults(rows, error > goal, cover)):
            cause = next((cause for pattern, cause in CAUSES.items() if fnmatch(key, pattern)), "")
            figures = (
                f"{100 * error:.1f}, {100 * goal:.0f} % | {100 * mean(halves, 'bias'):+.0f} % | {100 * cover:.0f} %"
            )
            yield f"| {key} | {rows:.0f} | {figures} | {faults} | {cause if faults != WIDE else ''} |"


def _faults(rows: float, far: bool, cover: float) -> Iterable[str]:
    if far:
        yield "error"
    if rows >= FEWEST and cover < 0.85:
        yield "too narrow"
    if rows >= MANY and cover > 0.95:
        yield WIDE


def _rows(halves: dict[str, Half]) -> float:
    return sum(half["rows"] for half in halves.values())
