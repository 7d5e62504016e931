"""Compares the arms of the search's bandit by effort and gain."""

from rich.text import Text

from tui.session.effort import Effort, Rate, rates
from tui.session.state import State
from tui.text import fit

_PER = 1000.0  # gains are shown per this number of device-seconds
_VALUE = 7  # width of a column with a value but no interval


def arms(state: State, width: int, height: int, ascii_only: bool) -> Text:
    """One line per arm: number of experiments and of wins (new best configurations), gain per 1,000 device-seconds in %
    of the previous best with its 90 % interval, and that interval on a common axis. Below, if there is room, the
    bandit's pulls and UCB index."""
    text = Text(no_wrap=True, overflow="ellipsis")
    names = [n for n in {**state.efforts, **state.arms} if n != "DEFAULT"]
    if not names:
        return Text("no arm has proposed anything yet", style="dim")
    found = rates(state.efforts)
    top = max((r.high for n, r in found.items() if n != "DEFAULT"), default=0.0)
    roomy = width >= 56
    name_size, size = (10, 6) if roomy else (7, 4)
    room = width - name_size - 2 * size - 3
    axis = min(40, room - 22) if room >= 30 else max(0, room - _VALUE - 1) if top else 0
    bar_width = max(0, room - axis - (1 if axis else 0))
    head = "exper.", "wins", "gain per 1,000 device s" if bar_width >= 23 else "% per 1k device s"
    if not roomy:
        head = "n", "won", head[2]
    end = f"{top * _PER:.{0 if top * _PER >= 10 else 1}%}" if top else ""
    scale = f" 0%{end:>{axis - 2}}" if axis and bar_width > _VALUE else ""
    text.append(
        f"  {'arm':<{name_size}}{head[0]:>{size}}{head[1]:>{size}} {head[2]:<{bar_width}}{scale}\n", style="dim"
    )
    for name in names:
        chosen = name == state.arm and state.phase == "search"
        pointer = (">" if ascii_only else "▸") if chosen else " "
        effort, rate = state.efforts.get(name, Effort()), found.get(name)
        line = f"{pointer} {fit(name, name_size):<{name_size}}{effort.experiments:>{size}}{effort.wins:>{size}} "
        text.append(f"{line}{_shown(rate, bar_width):<{bar_width}}", style="bold" if chosen else "")
        text.append(f" {span(rate, top, axis, ascii_only)}\n" if axis else "\n", style="dim")
    if [o.what for o in state.orders if o.what in ("hold", "hear") and not o.refused][-1:] == ["hold"]:
        text.append(fit("proposals from outside are on hold; the order `hear` ends that", width) + "\n", style="dim")
    if height > len(names) + 2 and state.arms:
        pulls = ", ".join(f"{n} {a.pulls:.1f}" for n, a in state.arms.items())
        index = ", ".join(f"{n} {a.ucb[-1]:.3f}" for n, a in state.arms.items() if a.ucb)
        notes = [f"pulls, discounted: {pulls}", f"index, decision {state.step}: {index}" if index else ""]
        text.append("\n" + "\n".join(fit(line, width) for line in notes) + "\n", style="dim")
    text.right_crop(1)
    return text


def span(rate: Rate | None, top: float, width: int, ascii_only: bool) -> str:
    """A rate's interval and mean, drawn on an axis from 0 to `top`."""
    if rate is None or not top:
        return " " * width
    low, at, high = (round(min(1.0, v / top) * (width - 1)) for v in (rate.low, rate.value, rate.high))
    line, point = ("-", "*") if ascii_only else ("─", "●")
    return "".join(point if i == at else line if low <= i <= high else " " for i in range(width))


def _shown(rate: Rate | None, width: int) -> str:
    narrow = width <= _VALUE
    if rate is None:
        return "–" if narrow else "nothing spent"
    if not rate.high:
        return "no arm has won yet"
    each = [v * _PER * 100 for v in (rate.value, rate.low, rate.high)]
    value, low, high = (f"{v:.0f}" if v >= 10 else f"{v:.2g}" for v in each)
    return f"{value}%" if narrow else f"{value}% [{low}, {high}]"
