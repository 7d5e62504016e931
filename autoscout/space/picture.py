"""Draws the graph of a space: layers of the stack as columns, knobs as boxes, activation as arrows.

The SVG is written directly, since a layout in columns needs no library. Kinds of knobs and edges differ by shape rather
than colour, so that they are distinguishable in print, and in light and dark themes."""

import itertools
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from autoscout.job.words import listed
from autoscout.space.graph import Space
from autoscout.space.knob import Knob

if TYPE_CHECKING:
    import networkx as nx

_HEIGHT = 44  # pixels: height of a box
_NARROWEST, _LETTER = 168, 8.3  # pixels: minimum width of a box; width of one character
_GAP, _ROW = 120, 66  # pixels: gap between columns; height of a row, which has one box per column
_LEFT, _TOP = 28, 104
_MOST_ARRANGED = 8  # with up to this many layers, all orders of columns are tried
_TEXT, _VALUE = 25, 11  # maximum number of characters of all values in a box; of one value

_STYLE = """
text { font-family: system-ui, sans-serif; font-size: 12px; fill: #1b1f24 }
.name { font-weight: 600; font-size: 13px }
.soft { fill: #57606a; font-size: 11px }
.title { font-size: 17px; font-weight: 600 }
.layer { font-size: 13px; font-weight: 600; letter-spacing: .04em }
.paper { fill: #ffffff }
.box { fill: #f6f8fa; stroke: #1b1f24; stroke-width: 1.4 }
.activates { stroke: #1b1f24; stroke-width: 1.8; fill: none }
.implies { stroke: #1b1f24; stroke-width: 1.6; fill: none; stroke-dasharray: 6 4 }
.narrows { stroke: #57606a; stroke-width: .7; fill: none; opacity: .5 }
.head { fill: #1b1f24 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .soft { fill: #9da7b3 }
  .paper { fill: #0d1117 }
  .box { fill: #161b22; stroke: #e6edf3 }
  .activates, .implies { stroke: #e6edf3 }
  .narrows { stroke: #9da7b3 }
  .head { fill: #e6edf3 }
}
"""


class Box(NamedTuple):
    x: float
    y: float
    width: float
    column: int


def svg(space: Space, title: str) -> str:
    """Returns an SVG with the knobs that are active in at least one configuration, and below it the names of all other
    knobs."""
    acts = space.active()
    shown = [knob for knob in space.knobs if acts[knob.name] is not False]
    columns = _columns(shown, space.graph)
    wide = max(_NARROWEST, *(_LETTER * len(knob.name) + 30 for knob in shown))
    boxes = {
        knob.name: Box(_LEFT + c * (wide + _GAP), _TOP + r * _ROW, wide, c)
        for c, column in enumerate(columns)
        for r, knob in enumerate(column)
    }
    bottom = _TOP + max(len(column) for column in columns) * _ROW
    width = round(max(2 * _LEFT + len(columns) * (wide + _GAP) - 60, 760))
    exact = "" if space.count_is_exact else "about "
    subtitle = f"{exact}{space.count:,} valid configurations · {len(shown)} knobs · {len(space.rules)} rules"
    parts = [
        f'<rect class="paper" width="{width}" height="{bottom + 74}"/>',
        f'<text class="title" x="{_LEFT}" y="34">{escape(title)}</text>',
        f'<text class="soft" x="{_LEFT}" y="54">{escape(subtitle)}</text>',
    ]
    for c, column in enumerate(columns):
        parts.append(f'<text class="layer" x="{_LEFT + c * (wide + _GAP):g}" y="88">{escape(column[0].layer)}</text>')
    for kind in ("narrows", "implies", "activates"):  # draws the more important edges last, on top
        for a, b, data in space.graph.edges(data=True):
            if data["kind"] == kind and a in boxes and b in boxes:
                parts.append(_edge(boxes[a], boxes[b], kind, f"{a} {kind} {b}: {data['rule']}"))
    parts += [_box(knob, boxes[knob.name]) for knob in shown]
    parts += _legend(bottom + 24)
    never = [knob.name for knob in space.knobs if knob not in shown]
    if never:
        text = f"without effect in this job: {', '.join(never)}"
        parts.append(f'<text class="soft" x="{_LEFT}" y="{bottom + 56}">{escape(text)}</text>')
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{bottom + 74}" '
            f'viewBox="0 0 {width} {bottom + 74}" role="img" aria-label="{escape(title, quote=True)}">',
            f"<style>{_STYLE}</style>",
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7.5" refY="4" markerWidth="8" markerHeight="8" '
            'markerUnits="userSpaceOnUse" orient="auto"><path class="head" d="M0 0 L8 4 L0 8 z"/></marker></defs>',
            *parts,
            "</svg>",
            "",
        ]
    )


def _columns(knobs: list[Knob], graph: "nx.DiGraph") -> list[list[Knob]]:
    """Returns the knobs of each column: one column per layer, with connected layers side by side. In a column, knobs
    are placed at about the height of their neighbours by a few sweeps of the barycentre heuristic."""
    columns = [[knob for knob in knobs if knob.layer == layer] for layer in _layers(knobs, graph)]
    for _ in range(6):
        height = {knob.name: float(r) for column in columns for r, knob in enumerate(column)}
        for column in columns:
            heights = {
                knob.name: _mean([height[n] for n in _connected(graph, knob.name) if n in height], height[knob.name])
                for knob in column
            }
            column.sort(key=lambda knob, h=heights: h[knob.name])
            height |= {knob.name: float(r) for r, knob in enumerate(column)}
    return columns


def _layers(knobs: list[Knob], graph: "nx.DiGraph") -> list[str]:
    """Returns the order of layers with the shortest arrows; of several such orders, the one nearest to the declared
    order."""
    layer = {knob.name: knob.layer for knob in knobs}
    declared = list(dict.fromkeys(layer.values()))
    arrows = [
        (layer[a], layer[b])
        for a, b, kind in graph.edges(data="kind")
        if kind != "narrows" and a in layer and b in layer and layer[a] != layer[b]
    ]
    if len(declared) > _MOST_ARRANGED:
        return declared

    def length(order: tuple[str, ...]) -> int:
        place = {name: i for i, name in enumerate(order)}
        return sum((place[a] - place[b]) ** 2 for a, b in arrows)

    return list(min(((declared[0], *rest) for rest in itertools.permutations(declared[1:])), key=length))


def _connected(graph: "nx.DiGraph", name: str) -> list[str]:
    """Returns the knobs connected by activation or implication."""
    return [
        a if b == name else b
        for a, b, kind in [*graph.in_edges(name, data="kind"), *graph.out_edges(name, data="kind")]
        if kind != "narrows"
    ]


def _mean(values: list[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _edge(a: Box, b: Box, kind: str, title: str) -> str:
    """Returns the SVG of an edge between the facing sides of two boxes. Boxes in the same column are connected by an
    arc on their right side."""
    y1, y2 = a.y + _HEIGHT / 2, b.y + _HEIGHT / 2
    if kind != "narrows":  # separates arrowheads from arrow tails vertically
        y1, y2 = y1 + (4 if y2 > y1 else -4), y2 - (4 if y2 > y1 else -4)
    if a.column == b.column:
        x1 = x2 = a.x + a.width
        bow = 22 + 0.16 * abs(y2 - y1)
        path = f"M{x1:g} {y1:g} C{x1 + bow:g} {y1:g} {x2 + bow:g} {y2:g} {x2:g} {y2:g}"
    else:
        right = b.column > a.column
        x1, x2 = (a.x + a.width, b.x) if right else (a.x, b.x + b.width)
        pull = (0.5 if right else -0.5) * min(abs(x2 - x1), 2 * _GAP)
        path = f"M{x1:g} {y1:g} C{x1 + pull:g} {y1:g} {x2 - pull:g} {y2:g} {x2:g} {y2:g}"
    head = "" if kind == "narrows" else ' marker-end="url(#head)"'
    return f'<path class="{kind}" d="{path}"{head}><title>{escape(title)}</title></path>'


def _box(knob: Knob, box: Box) -> str:
    """Returns the SVG of a knob's box: a rectangle for a sparse (categorical) knob, rounded ends for a dense one."""
    radius = 2 if knob.kind == "sparse" else _HEIGHT / 2
    values = _values(knob)
    middle = box.x + box.width / 2
    return (
        f"<g><title>{escape(f'{knob.name} ({knob.kind}): {knob.meaning}; {listed(knob.values)} {knob.unit}')}</title>"
        f'<rect class="box" x="{box.x:g}" y="{box.y:g}" width="{box.width:g}" height="{_HEIGHT}" rx="{radius:g}"/>'
        f'<text class="name" x="{middle:g}" y="{box.y + 18:g}" text-anchor="middle">{escape(knob.name)}</text>'
        f'<text class="soft" x="{middle:g}" y="{box.y + 34:g}" text-anchor="middle">{escape(values)}</text></g>'
    )


def _values(knob: Knob) -> str:
    """Returns as many values of the domain as fit into a box, for example 1 2 4 … 128."""
    texts = ["on" if v is True else "off" if v is False else str(v) for v in knob.values]
    shown = (
        texts if len(" ".join(texts)) <= _TEXT else [t if len(t) <= _VALUE else t[: _VALUE - 1] + "…" for t in texts]
    )
    if len(" ".join(shown)) <= _TEXT:
        return " ".join(shown)
    kept = 1
    while len(" ".join([*shown[: kept + 1], "…", shown[-1]])) <= _TEXT:
        kept += 1
    return " ".join([*shown[:kept], "…", shown[-1]])


def _legend(y: float) -> list[str]:
    x = _LEFT
    parts = []
    for kind, text in (("sparse", "sparse knob"), ("dense", "dense knob")):
        radius = 2 if kind == "sparse" else 8
        parts.append(f'<rect class="box" x="{x}" y="{y - 12:g}" width="30" height="16" rx="{radius}"/>')
        parts.append(f'<text class="soft" x="{x + 38}" y="{y:g}">{text}</text>')
        x += 130
    for kind, text in (("activates", "activates"), ("implies", "implies its value"), ("narrows", "narrows by a rule")):
        head = "" if kind == "narrows" else ' marker-end="url(#head)"'
        parts.append(f'<path class="{kind}" d="M{x} {y - 4:g} h34"{head}/>')
        parts.append(f'<text class="soft" x="{x + 42}" y="{y:g}">{text}</text>')
        x += 158
    return parts
