"""Panels on this machine: its devices, who uses them, and what waits for them."""

from rich.text import Text

from autoscout.machine.telemetry import DeviceReading
from kb import dates
from tui.draw.look import glyph
from tui.draw.plot import bar, sparkline
from tui.session.neighbours import NeighbourSessions
from tui.session.state import State
from tui.text import clock, number


def devices(readings: dict[str, list[DeviceReading]], width: int, height: int, ascii_only: bool) -> Text:
    """Load, memory, power and temperature now and over the last minutes, by device; one line each if there are many."""
    if not readings:
        return Text("reading …", style="dim")
    text = Text(no_wrap=True, overflow="ellipsis")
    roomy = height >= 4 * len(readings)
    for name, history in readings.items():
        now = history[-1]
        rows: list[tuple[str, str, list[float]]] = [
            ("busy", f"{bar(now.busy, 10, ascii_only)} {now.busy:>5.0%}", [r.busy for r in history]),
            (
                "memory",
                f"{number(now.memory_gib)} of {number(now.memory_total_gib)} GiB",
                [r.memory_gib for r in history],
            ),
        ]
        if now.power_w is not None:
            rows.append(("power", f"{now.power_w:.0f} W", [r.power_w or 0.0 for r in history]))
        if now.temperature_c is not None:
            rows.append(("temperature", f"{now.temperature_c:.0f} °C", [r.temperature_c or 0.0 for r in history]))
        if roomy:
            text.append(f"{name}\n", style="bold")
            for what, shown, values in rows:
                text.append(f"  {what:<12}{shown:<26}")
                text.append(f"{sparkline(values, max(4, min(120, width - 42)), ascii_only)}\n", style="dim")
        else:
            text.append(f"{name:<8.8}" + "  ".join(shown for _, shown, _ in rows) + "  ")
            text.append(f"{sparkline(rows[0][2], max(4, width - 66), ascii_only)}\n", style="dim")
    return text


def slots(state: State, around: NeighbourSessions | None, width: int, ascii_only: bool) -> Text:
    """The job's devices and the session that uses them now. `around`: None if unknown (recordings, other machines)."""
    if state.job is None:
        return Text("")
    text = Text(no_wrap=True, overflow="ellipsis")
    for node in state.job.cluster.nodes:
        text.append(f"{node.count} × {node.device}\n", style="bold")
    if around is not None and around.holder is not None:
        ours = around.holder.session == state.session
        who = "this session" if ours else around.holder.session or "an AutoScout"
        text.append(f"{glyph('running', ascii_only)} held by {who}\n")
        held = clock(max(0.0, dates.now() - around.holder.since))
        text.append(f"  process {around.holder.pid}, for {held}\n", style="dim")
    elif around is not None:
        text.append("free\n", style="dim")
    for run in state.running.values():
        text.append(f"  #{run.number} {run.name}\n")
    text.append("\n")
    for name, value in state.environment.items():
        text.append(f"{name:<16}{value}\n", style="dim")
    return text


def queue(state: State, around: NeighbourSessions | None, orders: list[str], height: int, ascii_only: bool) -> Text:
    """Sessions that wait for devices, and proposals and orders that this session has not processed yet."""
    text = Text(no_wrap=True, overflow="ellipsis")
    for session in around.sessions if around is not None else []:
        mark = "this session" if session.session == state.session else session.session
        text.append(f"{mark}, process {session.pid}\n", style="bold")
        text.append(f"  {session.doing}")
        if session.waits_since:
            text.append(f" that process {session.waits_for} uses" if session.waits_for else "")
            text.append(f", for {clock(max(0.0, dates.now() - session.waits_since))}")
        text.append("\n")
    done = {run.configuration.id for run in state.runs if run.status != "running"}
    running = {run.configuration.id for run in state.running.values()}
    if state.decision is not None and state.phase not in ("confirm", "ended"):
        names = zip(state.decision.configurations, state.decision.names, strict=True)
        for c, name in names:
            if c.id not in done | running:
                text.append(f"next: {name}, after the running experiment\n")
    for order in orders:
        text.append(f"order: {order}, before the next experiment\n")
    if not text.plain:
        return Text("which sessions waited: not recorded" if around is None else "nothing waits", style="dim")
    return text
