"""Panels on the search's reasons: beliefs about knobs, gains of bandit arms, and the expected gain of continuing."""

import math
import statistics

from rich.text import Text

from kb.within_events import ValueBelief
from tui.draw.look import fidelity_mark
from tui.draw.plot import bar, sparkline
from tui.session.rationale import Promise
from tui.session.state import State
from tui.text import knob_value

_LIKELY = 0.5  # a knob value with a lower probability to run is shown as failing
_FARTHEST = 3.0  # largest upper end of the axis, as a multiple of the best measured cost
_FAR = 10.0  # upper ends of intervals above this multiple of the best cost are all printed as >10
_RUNGS = ("measured", "short", "one-device", "shadow", "predicted")
_NOT = "not recorded"
_EVERY = 5  # number of experiments between two reports of the search's beliefs


def belief(state: State, width: int, height: int, ascii_only: bool) -> Text:
    """For each value of each knob, the cost that the search expects of the best configuration with that value, as a
    multiple of the best measured cost, on a common axis; the most important knobs come first."""
    believed = state.reasons.believed
    if believed is None:
        return Text(_why_not(state), style="dim")
    knobs = sorted(believed.knobs.items(), key=lambda kv: -max(math.log(max(v.cost, 1e-9)) for v in kv[1]))
    name = min(26, max(len(n) for n, _ in knobs))
    value = min(12, max(len(knob_value(v.value)) for _, values in knobs for v in values))
    axis = max(6, width - name - value - 34)
    low = min(0.97, *(v.low for _, values in knobs for v in values))
    high = min(_FARTHEST, max(1.1, *(v.high for _, values in knobs for v in values)))
    text = Text(no_wrap=True, overflow="ellipsis")
    heading = f"{'':<{name + value + 2}}{f'{low:.2f}×':<{axis // 2}}{f'{high:.2f}×':>{axis - axis // 2}}"
    text.append(f"{heading}  {'cost':>5} {'95 % interval':<13} {'runs':>4}\n", style="dim")
    shown, lines = 0, 1
    for knob, values in knobs:
        if lines + len(values) > height - (shown + 1 < len(knobs)) and shown:
            break
        shown += 1
        for i, v in enumerate(values):
            lines += 1
            text.append(f"{knob if i == 0 else '':<{name}.{name}} {knob_value(v.value):<{value}.{value}} ")
            fails = v.runs < _LIKELY
            text.append(_interval(v, low, high, axis, ascii_only), style="red" if fails else "")
            high_end = f"{v.high:.2f}" if v.high < _FAR else f">{_FAR:.0f}"
            interval = f"fails {1 - v.runs:.0%}" if fails else f"{v.low:.2f} to {high_end}"
            text.append(
                f"  {v.cost:>5.2f} {interval:<13} {v.measured or '–':>4}\n", style="bold" if v.cost < 1.005 else ""
            )
    if shown < len(knobs):
        text.append(f"{len(knobs) - shown} less important knobs; press enter to see all\n", style="dim")
    text.right_crop(1)
    return text


def _interval(v: ValueBelief, low: float, high: float, axis: int, ascii_only: bool) -> str:
    """The interval as a line, with its mean marked, on a logarithmic axis, clipped at the ends of the axis."""

    def at(x: float) -> int:
        share = (math.log(max(x, low)) - math.log(low)) / (math.log(high) - math.log(low))
        return max(0, min(axis - 1, round(share * (axis - 1))))

    a, b, middle = at(v.low), at(v.high), at(v.cost)
    line = [("-" if ascii_only else "─") if a <= i <= b else " " for i in range(axis)]
    line[middle] = "*" if ascii_only else "●"
    return "".join(line)


def _why_not(state: State) -> str:
    if state.job is None:
        return ""
    if state.reasons.promises and not state.ended:
        return f"the search reports its beliefs every {_EVERY} experiments; none yet"
    if state.strategy != "autoscout":
        return f"{_NOT}: strategy {state.strategy} has no belief to show"
    if 0 < state.searched < _EVERY:
        return f"the session ended before its first report, after {_EVERY} experiments"
    return f"{_NOT} in this journal"


def left(state: State, width: int, height: int, ascii_only: bool) -> Text:
    """The probability that a better configuration exists, and the expected gain of more experiments."""
    outlooks = state.reasons.outlooks
    if not outlooks:
        return Text(_why_not(state), style="dim")
    last = outlooks[-1]
    text = Text()
    text.append(f"{last.chance:.0%}", style="bold")
    text.append(" chance that one at least 1 % better is left\n" if width >= 44 else ": chance of one 1 % better\n")
    text.append(f"{last.gain:.2%}", style="bold")
    text.append(
        f" is the expected gain of {last.ahead} more runs\n"
        if width >= 44
        else f": expected gain of {last.ahead} more\n"
    )
    size = max(4, width - 8)
    if height > 2:
        text.append(f"{'chance':<7}{sparkline([o.chance for o in outlooks], size, ascii_only)}\n", style="dim")
    if height > 3:
        text.append(f"{'gain':<7}{sparkline([o.gain for o in outlooks], size, ascii_only)}\n", style="dim")
    if height > 4:
        text.append(f"as of experiment {last.step + 1}; {len(outlooks)} estimates so far", style="dim")
    return text


def promises(state: State, width: int, height: int, ascii_only: bool) -> Text:
    """The expected and the achieved gain of each bandit arm's experiments."""
    # Imported here, because it loads scipy, and the first frame must not wait for that.
    from autoscout.tuning.evidence import half_width

    made = state.reasons.promises
    if not made:
        return Text(_why_not(state), style="dim")
    text = Text(no_wrap=True, overflow="ellipsis")
    heading = f"{'':<8}{'run':>4}{'failed':>7}{'expected':>9}{'got':>7}"
    text.append(f"{heading}  95 %\n" if width >= 44 else f"{heading}\n", style="dim")
    for arm in dict.fromkeys([*state.reasons.offered, *(p.arm for p in made)]):
        theirs = [p for p in made if p.arm == arm]
        got = [p.delivered for p in theirs if p.delivered is not None]
        failed = sum(p.failed for p in theirs)
        text.append(f"{arm:<8}{len(theirs):>4}{failed:>7}", style="bold" if theirs else "dim")
        if not got:
            offers = state.reasons.offered.get(arm, [])
            text.append(f"{f'{statistics.fmean(offers):.2%}' if offers else '–':>9}{'–':>7}\n", style="dim")
            continue
        half = f"  ±{half_width(got):.2%}" if len(got) > 1 and width >= 44 else ""
        text.append(f"{_promised(theirs):>9.2%}{statistics.fmean(got):>7.2%}{half}\n")
    if height > text.plain.count("\n"):
        text.append("gains relative to the best cost estimated at that time", style="dim")
    return text


def _promised(theirs: list[Promise]) -> float:
    """The mean expected gain of proposals whose achieved gain is known."""
    return statistics.fmean(p.promised for p in theirs if p.delivered is not None)


def ladder(state: State, width: int, height: int, ascii_only: bool) -> Text:
    """For each fidelity the number of results and their cost, and the error of predictions."""
    if state.job is None:
        return Text("")
    counts = dict.fromkeys(_RUNGS, 0)
    cost = dict.fromkeys(_RUNGS, 0.0)
    for run in state.runs:
        if run.measurement is not None and run.purpose != "answered":
            counts[run.measurement.fidelity] += 1
            cost[run.measurement.fidelity] += run.measurement.device_s
    counts["predicted"] += state.predicted
    most = max(counts.values(), default=0) or 1
    size = max(4, min(24, width - 46))
    text = Text(no_wrap=True, overflow="ellipsis")
    for rung in _RUNGS:
        text.append(f"{fidelity_mark(rung, ascii_only)} {rung:<11}", style="" if counts[rung] else "dim")
        if not counts[rung]:
            text.append(f"none{_error(state) if rung == 'predicted' else ''}\n", style="dim")
            continue
        unit = "device s" if width >= 44 else "s"
        said = f"{counts[rung]:>5}  {cost[rung]:,.0f} {unit}" if cost[rung] else f"{counts[rung]:>5}  free"
        text.append(f"{bar(counts[rung] / most, size, ascii_only)} {said}")
        text.append(f"{_error(state) if rung == 'predicted' else ''}\n")
    if state.known:
        text.append(f"{fidelity_mark('known', ascii_only)} {'known':<11}{state.known} answered by the knowledge base\n")
    text.right_crop(1)
    return text


def _error(state: State) -> str:
    """The mean relative error of predictions that were checked by a measurement, as text."""
    off = [abs(c.predicted - c.measured) / c.measured for c in state.checks if c.measured]
    return f"; {len(off)} checked, off by {statistics.fmean(off):.0%}" if off else ""
