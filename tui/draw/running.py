"""The panel on the running experiment, with its expected duration; if none is running, on the last one."""

import re
import textwrap

from rich.text import Text

from tui.draw.gates import gated
from tui.draw.look import glyph, style
from tui.draw.plot import bar
from tui.draw.runs import called
from tui.session.eta import expected_s
from tui.session.headlines import verdict
from tui.session.state import Run, State
from tui.text import clauses, clock, fit

# The current iteration and the total number: "iteration 3/ 10" in logs of Megatron-LM, "3/10 [" in progress bars.
_ITERATION = re.compile(r"iteration\s+(\d+)\s*/\s*(\d+)|(?<![\d/.-])(\d+)/(\d+)\s*\[")
# Warnings of Python (FILE.py:LINE: SomethingWarning: text, then the source line) and PyTorch ([W1120 … FILE.cpp:LINE]).
_WARNING = re.compile(r"\.py:\d+: \w*Warning\b|^\s*warnings\.warn\(|^\[(?:rank\d+\]:\s*\[)?W\d{3}")


def running(state: State, width: int, height: int, tail: list[str], ascii_only: bool) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    for run in state.running.values():
        text.append(f"{glyph('running', ascii_only)} #{run.number} ", style="cyan")
        text.append(f"{run.name}\n", style="bold")
        text.append(f"  {progress(state, run, tail, width, ascii_only)}\n")
        text.append(f"  {fit(run.why, width - 2)}\n", style="dim")
    if state.gated is not None:
        return gated(state.gated, ascii_only)
    if state.confirmed is not None and not state.running:
        return ended(state, width)
    if not state.running and state.runs:
        run = state.runs[-1]
        text.append(f"{glyph(run.status, ascii_only)} #{run.number or '–'} ", style(run.status))
        text.append(f"{run.name}  {run.status}\n")
        text.append(f"  {fit(run.note or run.why, width - 2)}\n", style="dim")
    room = height - text.plain.count("\n")
    for line in telling(tail)[-room:] if room > 0 else []:
        text.append(f"  {fit(line, width - 2)}\n", style="dim")
    return text


def telling(lines: list[str]) -> list[str]:
    """The lines of a log without warnings of Python and PyTorch and the source lines that follow these."""
    shown, source = [], False
    for line in lines:
        if _WARNING.search(line):
            source = True
            continue
        if not (source and line.startswith("  ")):
            shown.append(line)
        source = False
    return shown


def ended(state: State, width: int) -> Text:
    """The verdict of an ended session, its evidence, and possible next steps."""
    c = state.confirmed
    assert c is not None
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append("\n".join(textwrap.wrap(verdict(state), width)) + "\n", style="bold")
    if c.winner != state.default:
        text.append(f"{called(state, c.winner, c.name)}\n")
    text.append("press 8 for the command, 6 for the source of the gain\n", style="dim")
    designed = state.seen == "designed"  # costs come from a deterministic model, without rounds and intervals
    for part in [] if designed else clauses(c.sentence):
        text.append(f"{part}\n", style="dim")
    rival = next((run for run in state.runs if c.rival_name and run.name == c.rival_name), None)
    if rival is not None and c.behind is not None:
        sure = designed or (c.behind_low is not None and c.behind_low > 1)
        noise = "" if sure else ", within the noise"
        name = called(state, rival.configuration, rival.name)
        text.append(f"next: {name}, {c.behind:.3f}× its cost{noise}\n", style="dim")
    text.right_crop(1)
    return text


def progress(state: State, run: Run, tail: list[str], width: int, ascii_only: bool) -> str:
    """Elapsed and expected time, and the iteration if the log contains it."""
    if state.waiting is not None:
        who = state.waiting.holder or "another AutoScout"
        return f"waits for the devices that {who} uses"
    elapsed = max(0.0, state.now - run.began)
    step = iteration(tail)
    shown = f"  iteration {step[0]} of {step[1]}" if step else ""
    expected = expected_s(state, run)
    if not expected:
        return f"{run.purpose}  {clock(elapsed)}{shown}"
    over = f", {clock(elapsed - expected)} longer than usual" if elapsed > 1.5 * expected + 5 else ""
    done = bar(min(elapsed / expected, 1.0), 10, ascii_only)
    return f"{done} {clock(elapsed)} of about {clock(expected)}{over}{shown}"


def iteration(tail: list[str]) -> tuple[int, int] | None:
    """(iteration, total number) in the last line of a log that contains them."""
    for line in reversed(tail):
        if found := list(_ITERATION.finditer(line)):
            k, n = (int(x) for x in found[-1].groups() if x is not None)
            return (k, n) if 0 <= k <= n and n else None
    return None
