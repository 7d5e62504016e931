"""Panels on the optimizer of dense knobs and on the bandit's 2×2 grids of costs, which combine a base and a proposed
structure (sparse knobs, such as parallelism) with a base and a proposed point (dense knobs, such as micro batch)."""

from rich.text import Text

from autoscout.job.objective import to_metric
from tui.draw.plot import bar
from tui.session.state import Grid, State
from tui.text import fit_lines, number


def grid(state: State, width: int, ascii_only: bool) -> Text:
    """The last grid, in the objective's metric: rows are base and candidate structure, columns are base and candidate
    point, and predictions have a ~. Below: the effect of each change, and the difference of differences."""
    g = state.grid
    if g is None or len(g.costs) != 4 or state.job is None:
        return Text("no 2×2 grid yet", style="dim")
    cells = [_cell(state, g, i, width > 46) for i in range(4)]
    column = max(10, (width - 12) // 2)
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(f"{'':<12}{'base point':>{column}}{'new point':>{column}}\n", style="dim")
    for row, name in enumerate(("base struct.", "new struct.")):
        text.append(f"{name:<12}", style="dim")
        text.append(f"{cells[2 * row]:>{column}}{cells[2 * row + 1]:>{column}}\n")
    delta = "d " if ascii_only else "Δ "
    difference = difference_of_differences(g)
    both = "" if difference is None else f"{difference:+.1%}"
    if width <= 50:
        small = delta.strip()
        text.append(f"{small}s {g.delta_sparse:+.1%}  {small}p {g.delta_dense:+.1%}")
        text.append(f"  {small}{small} {both}" if both else "")
        return text
    text.append(f"{delta}structure {g.delta_sparse:+.1%}  {delta}point {g.delta_dense:+.1%}")
    if both:
        text.append(f"  {delta}of the {delta}{both}")
        legend = "what the structure saves at the base point, less what it saves at the new one"
        text.append("\n" + "\n".join(fit_lines(legend, width, 2)), style="dim")
    return text


def difference_of_differences(g: Grid) -> float | None:
    """The interaction of structure and point, as a share of the base cost: by how much less (> 0) or more (< 0) the new
    structure saves at the new point than at the base point. None if one of the four runs failed."""
    bb, bc, cb, cc = g.costs
    if bb is None or bc is None or cb is None or cc is None:
        return None
    return ((bb - cb) - (bc - cc)) / bb


def _cell(state: State, g: Grid, i: int, with_error: bool) -> str:
    assert state.job is not None
    c = g.costs[i]
    if c is None:
        return "failed"
    error = g.errors[i] if len(g.errors) == 4 else 0.0
    spread = f"±{error:.0%}" if with_error and error else ""
    return f"{'~' if error else ''}{number(to_metric(state.job.objective, c))}{spread}"


def coordinates(state: State, width: int, ascii_only: bool) -> Text:
    """For each dense knob its best value so far, and the next step's direction and length (number of values)."""
    if not state.coordinates:
        return Text(
            "\n".join(fit_lines("no direction yet: the largest expected gain is tried next", width, 3)), style="dim"
        )
    best = state.best.configuration.knobs if state.best else {}
    most = max(step for _, step in state.coordinates.values())
    text = Text(no_wrap=True, overflow="ellipsis")
    for i, (name, (direction, step)) in enumerate(state.coordinates.items()):
        up = ("up" if direction > 0 else "down") if ascii_only else ("↑" if direction > 0 else "↓")
        pointer = (">" if ascii_only else "▸") if i == 0 else " "
        text.append(f"{pointer} {name:<16.16}{best.get(name, '–')!s:>6} {up} ", style="bold" if i == 0 else "")
        text.append(f"{bar(step / most, 6, ascii_only)} {step} value{'s' if step > 1 else ''} at a time\n")
    return text
