"""Compare: configurations side by side, only the knobs that differ, with what was measured and how much it varied."""

import statistics

from rich.text import Text
from textual.app import ComposeResult

from autoscout.objective import cost
from tui.draw.plot import bar
from tui.screens.pane import Pane
from tui.state import Run, State
from tui.text import number
from tui.widgets.panel import Panel

_MOST = 6


class ComparePane(Pane):
    help = "the best configurations and the default; m on the experiments screen marks others to compare"

    def compose(self) -> ComposeResult:
        yield Panel("side by side", lambda w, h: side_by_side(self.state, self.session.marked, w), "side-by-side")
        yield Panel("where the gain comes from", lambda w, h: effects(self.state, w, h, self.ascii), "effects")


def side_by_side(state: State, marked: list[str], width: int) -> Text:
    """Marked configurations, or the best ones, beside the default: differing knobs and measured metrics."""
    groups = _groups(state)
    if state.job is None or not groups:
        return Text("nothing measured yet", style="dim")
    default = state.default.id if state.default else ""
    objective = state.job.objective
    costs = {
        key: [c for r in runs if r.measurement and (c := cost(objective, r.measurement))]
        for key, runs in groups.items()
    }
    ranked = sorted((key for key in groups if costs[key]), key=lambda key: statistics.median(costs[key]))
    chosen = [key for key in marked if key in groups] or ranked
    fits = max(1, min(_MOST, (width - 20) // 13))
    beside = [default] if default in groups else []
    shown = list(dict.fromkeys(chosen[: fits - len(beside)] + beside))
    knobs = {key: groups[key][0].configuration.knobs for key in shown}
    text = Text(no_wrap=True, overflow="ellipsis")
    heads = [
        "default" if key == default else f"#{ranked.index(key) + 1}" if key in ranked else "failed" for key in shown
    ]
    text.append(f"{'':<18}" + "".join(f"{h:>13}" for h in heads) + "\n", style="bold")
    for name in dict.fromkeys(n for k in knobs.values() for n in k):
        values = [_shown(knobs[key].get(name)) for key in shown]
        if len(set(values)) > 1:
            text.append(f"{name:<18}" + "".join(f"{v:>13}" for v in values) + "\n")
    text.append("\n")
    for metric in dict.fromkeys(
        m for key in shown for r in groups[key] if r.measurement for m in r.measurement.metrics
    ):
        cells = []
        for key in shown:
            found = [
                r.measurement.metrics[metric] for r in groups[key] if r.measurement and metric in r.measurement.metrics
            ]
            spread = (
                f"±{statistics.stdev(found) / abs(statistics.mean(found)):.0%}"
                if len(found) > 1 and statistics.mean(found)
                else ""
            )
            cells.append(f"{number(statistics.median(found))}{spread}" if found else "–")
        style = "bold" if metric == objective.metric else ""
        text.append(f"{metric:<18}" + "".join(f"{c:>13}" for c in cells) + "\n", style=style)
    counts = "".join(f"{len(groups[key]):>13}" for key in shown)
    text.append(f"{'measured times':<18}{counts}\n", style="dim")
    return text


def effects(state: State, width: int, height: int, ascii_only: bool) -> Text:
    """For each knob in which the best differs from the default: the median gain of pairs that differ in it alone,
    of those that were measured."""
    groups = _groups(state)
    if state.job is None or not groups:
        return Text("nothing measured yet", style="dim")
    median = {}
    for key, runs in groups.items():
        costs = [c for r in runs if r.measurement and (c := cost(state.job.objective, r.measurement))]
        if costs:
            median[key] = (runs[0].configuration.knobs, statistics.median(costs))
    found: dict[str, list[float]] = {}
    items = list(median.values())[:400]
    for i, (a, ca) in enumerate(items):
        for b, cb in items[i + 1 :]:
            differing = [n for n in {**a, **b} if a.get(n) != b.get(n)]
            if len(differing) == 1:
                found.setdefault(differing[0], []).append(max(ca, cb) / min(ca, cb) - 1)
    if not found:
        return Text("no two measured configurations differ in one knob alone yet", style="dim")
    ranked = sorted(found.items(), key=lambda kv: -statistics.median(kv[1]))
    top = statistics.median(ranked[0][1]) or 1.0
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append("what one knob alone changed, median over measured pairs\n", style="dim")
    for name, gains in ranked[: max(1, height - 1)]:
        middle = statistics.median(gains)
        text.append(f"{name:<18}{bar(middle / top, 16, ascii_only)} {middle:>7.1%}  {len(gains)} pairs\n")
    return text


def _groups(state: State) -> dict[str, list[Run]]:
    groups: dict[str, list[Run]] = {}
    for run in state.runs:
        if run.measurement is not None:
            groups.setdefault(run.configuration.id, []).append(run)
    return groups


def _shown(value: object) -> str:
    if value is None:
        return "–"
    return ("on" if value else "off") if isinstance(value, bool) else str(value)
