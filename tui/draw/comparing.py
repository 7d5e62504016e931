"""Panels that compare configurations, sessions or jobs, and show sources of the gain and Pareto fronts."""

import math
import statistics
import textwrap
from collections.abc import Iterable
from typing import Any

from rich.text import Text

from autoscout.job.objective import cost
from tui.draw.iteration_bars import of_iteration, reference_and_best
from tui.draw.plot import bar, cloud
from tui.session.fronts import Front
from tui.session.state import Run, State
from tui.text import knob_value, label, label_width, number

_MOST = 6


def side_by_side(state: State, marked: list[str], width: int) -> Text:
    """The default next to the marked configurations (or to the winner and the best ones): knobs that differ, and
    metrics, with the 95 % interval of the mean if they were measured several times."""
    groups = measured(state)
    if state.job is None or not groups:
        return Text(f"nothing {state.seen} yet", style="dim")
    default = state.default.id if state.default else ""
    costs = median_costs(state, groups)
    ranked = sorted(costs, key=lambda key: costs[key])
    winner = state.confirmed.winner.id if state.confirmed is not None else ""
    # The winner comes first even if single runs of other configurations were faster than its mean.
    first = [winner] if winner in groups else []
    chosen = [key for key in marked if key in groups] or list(dict.fromkeys([*first, *ranked]))
    wide = label_width(name for rows in groups.values() for name in _named(rows[0]))
    fits = max(1, min(_MOST, (width - wide) // 14))
    always = [default] if default in groups else []
    shown = list(dict.fromkeys([key for key in chosen if key != default][: fits - len(always)] + always))
    knobs = {key: groups[key][0].configuration.knobs for key in shown}
    places = {key: f"rank {place}" for place, key in enumerate(ranked, start=1)}
    names = {key: places.get(key, "failed") for key in shown} | {winner: "best", default: "default"}
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(f"{'':<{wide}}" + "".join(f"{names[key]:>14}" for key in shown) + "\n", style="bold")
    for name in dict.fromkeys(n for k in knobs.values() for n in k):
        values = [knob_value(knobs[key].get(name)) for key in shown]
        if len(set(values)) > 1:
            text.append(f"{label(name, wide)}" + "".join(f"{v:>14.13}" for v in values) + "\n")
    text.append("\n")
    for metric in dict.fromkeys(
        m for key in shown for r in groups[key] if r.measurement for m in r.measurement.metrics
    ):
        cells = [interval([v for r in groups[key] if (v := _metric(r, metric)) is not None]) for key in shown]
        style = "bold" if metric == state.job.objective.metric else ""
        line = f"{label(metric, wide)}" + "".join(f"{c:>14}" for c in cells)
        text.append(f"{line}\n", style=style)
    counts = "".join(f"{len(groups[key]):>14}" for key in shown)
    text.append(f"{f'{state.seen} times':<{wide}}{counts}\n", style="dim")
    return text


def iteration(state: State, ascii_only: bool) -> Text:
    """The phases of an RL iteration of the reference and of the best configuration."""
    rows = [run.measurement for run in state.runs if run.measurement is not None]
    winner = state.confirmed.winner if state.confirmed is not None else None
    found = {}
    if state.job is not None and state.default is not None:
        found = reference_and_best(state.job.objective, rows, state.default, winner)
    return of_iteration(found, ascii_only) if found else Text("no run has timed its phases yet", style="dim")


def _named(run: Run) -> Iterable[str]:
    return [*run.configuration.knobs, *(run.measurement.metrics if run.measurement else ())]


def interval(values: list[float]) -> str:
    """The mean with its 95 % interval as text; for a single value, only this value."""
    if not values:
        return "–"
    mean = statistics.mean(values)
    if len(values) == 1 or not mean:
        return number(mean)
    from autoscout.tuning.evidence import half_width  # imports scipy, which takes long

    half = half_width(values) / abs(mean)
    return f"{number(mean)} ±{half:.0%}" if half < 10 else f"{number(mean)} ±?"


def of_rows(rows: list[dict[str, Any]], width: int) -> Text:
    """A table with a column per row, headed by its first attribute. Attributes equal in all rows are left out."""
    if not rows:
        return Text("this knowledge base has nothing to compare", style="dim")
    fits = max(1, (width - 18) // 21)
    shown = rows[-fits:]
    text = Text(no_wrap=True, overflow="ellipsis")
    for i, name in enumerate(rows[0]):
        values = [str(row.get(name, "–")) for row in shown]
        if i == 0 or len(shown) == 1 or len(set(values)) > 1:
            line = f"{name if i else '':<18.17}" + "".join(f"{_end(v):>21}" for v in values)
            text.append(line + "\n", style="" if i else "bold")
    if len(rows) > fits:
        text.append(f"the newest {fits} of {len(rows)}; a wider terminal shows more\n", style="dim")
    return text


def _end(value: str) -> str:
    """The last characters of a long name, since names usually differ there."""
    return value if len(value) <= 20 else f"…{value[-19:]}"


def effects(state: State, width: int, height: int, ascii_only: bool) -> Text:
    """For each knob, the median relative difference in cost of two measured configurations that differ only in it."""
    groups = measured(state)
    median = median_costs(state, groups)
    items = [(groups[key][0].configuration.knobs, c) for key, c in median.items()][:400]
    found: dict[str, list[float]] = {}
    for i, (a, ca) in enumerate(items):
        for b, cb in items[i + 1 :]:
            differing = [n for n in {**a, **b} if a.get(n) != b.get(n)]
            if len(differing) == 1:
                found.setdefault(differing[0], []).append(max(ca, cb) / min(ca, cb) - 1)
    if not found:
        return Text(f"no two {state.seen} configurations differ in only one knob yet", style="dim")
    ranked = sorted(found.items(), key=lambda kv: -statistics.median(kv[1]))
    top = statistics.median(ranked[0][1]) or 1.0
    text = Text(f"what one knob alone changed, {state.seen}\n", style="dim", no_wrap=True, overflow="ellipsis")
    for name, gains in ranked[: max(1, height - 1)]:
        middle = statistics.median(gains)
        pairs = f"{len(gains)} pair{'s' if len(gains) > 1 else ''}"
        text.append(f"{name:<16.15}{bar(middle / top, 8, ascii_only)} {middle:>6.1%}  {pairs}\n")
    return text


def ablation(found: dict[str, Any], width: int, ascii_only: bool, seen: str = "measured") -> Text:
    """The steps from the default to the best configuration, with one knob (or a set that must change together) per
    line. `found`: the JSON document of `autoscout why`."""
    steps = found["steps"]
    if not steps:
        return Text("nothing ran correctly yet", style="dim")
    if len(steps) == 1:
        return Text(f"the reference, {number(steps[0]['value'])}, is the fastest so far", style="dim")
    top = max([abs(math.log(s["gain"])) for s in steps if s["gain"]], default=0.0) or 1.0
    arrow, room = "->" if ascii_only else "→", max(width - 44, 12)
    text = Text(no_wrap=True, overflow="ellipsis")
    for step in steps:
        kind = seen if step["measured"] else f"predicted ±{found['error']:.0%}"
        value = f"{'' if step['measured'] else '~'}{number(step['value'])}" if step["value"] is not None else "–"
        if not step["knobs"]:
            outcome = kind if step["value"] is not None else "it did not run"
            text.append(f"{'the reference':<{room + 1}}{'':>16}{value:>10} {outcome}\n", style="dim")
            continue
        moves = zip(step["knobs"], step["before"], step["after"], strict=True)
        what = ", ".join(f"{n}\xa0{knob_value(b)}\xa0{arrow}\xa0{knob_value(a)}" for n, b, a in moves)
        first, *more = (line.replace("\xa0", " ") for line in textwrap.wrap(what, room))
        gain = step["gain"]
        style = "bold" if gain and gain > 1.01 else ""
        by = f"{bar(math.log(gain) / top, 6, ascii_only)} {round(gain - 1, 3) + 0.0:>+7.1%}" if gain else f"{'':>14}"
        text.append(f"{first:<{room + 1}}", style=style)
        text.append(f" {by} {value:>10} ")
        text.append(f"{kind}\n", style="dim")
        for line in more:
            text.append(f"  {line}\n", style=style)
    return text


def effects_of(found: dict[str, Any], width: int, height: int, ascii_only: bool) -> Text:
    """Each knob's share of the variance of the predicted cost over the whole space."""
    effects = found["effects"]
    if not effects:
        return Text("no simulator predicts this job", style="dim")
    text = Text(no_wrap=True, overflow="ellipsis")
    for name, share in list(effects.items())[: max(1, height)]:
        text.append(f"{name:<16.15}{bar(share, 12, ascii_only)} {share:>5.0%} predicted\n")
    return text


def front(state: State, found: Front | None, width: int, height: int, ascii_only: bool) -> Text:
    """The Pareto front of two objectives as a plot and a list, with the knee (the best compromise) marked."""
    if found is None or not found.points:
        return Text("no run has values of both metrics yet", style="dim")
    marks = {"front": ("●", "*", "bold"), "knee": ("◆", "#", "bold magenta"), "beaten": ("·", ".", "dim")}
    points = [
        (p.x, p.y, marks[p.kind][1 if ascii_only else 0], marks[p.kind][2])
        for p in sorted(found.points, key=lambda p: ("beaten", "front", "knee").index(p.kind))
    ]
    best = [p for p in found.points if p.kind != "beaten"]
    listed = best[: max(2, height // 3)]
    text = cloud(width, max(4, height - len(listed) - 2), points, found.x_name, found.y_name, ascii_only)
    text.append(f"\n{len(best)} of {len(found.points)} are Pareto-optimal", style="dim")
    text.append("" if found.wanted else f"; {found.y_name} is not an objective of this job", style="dim")
    for p in listed:
        mark = marks[p.kind][1 if ascii_only else 0]
        knee = "  <- knee" if p.kind == "knee" else ""
        text.append(f"\n{mark} {number(p.x):>9} {number(p.y):>9}  {p.name}{knee}", style=marks[p.kind][2])
    return text


def measured(state: State) -> dict[str, list[Run]]:
    groups: dict[str, list[Run]] = {}
    for run in state.runs:
        if run.measurement is not None:
            groups.setdefault(run.configuration.id, []).append(run)
    return groups


def median_costs(state: State, groups: dict[str, list[Run]]) -> dict[str, float]:
    if state.job is None:
        return {}
    found = {}
    for key, runs in groups.items():
        costs = [c for r in runs if r.measurement and (c := cost(state.job.objective, r.measurement))]
        if costs:
            found[key] = statistics.median(costs)
    return found


def _metric(run: Run, name: str) -> float | None:
    return run.measurement.metrics.get(name) if run.measurement else None
