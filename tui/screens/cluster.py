"""Cluster: what the machine does meanwhile, and who holds it."""

from rich.text import Text
from textual.app import ComposeResult

from tui.draw.plot import bar, sparkline
from tui.screens.pane import Pane
from tui.telemetry import Reading
from tui.text import number
from tui.widgets.panel import Panel


class ClusterPane(Pane):
    help = "this machine, read once a second while this screen is open"

    def compose(self) -> ComposeResult:
        yield Panel("devices", lambda w, h: devices(self.session.readings, w, self.ascii), "devices")
        yield Panel("slots", lambda w, h: self._slots(), "slots")

    def _slots(self) -> Text:
        state = self.state
        if state.job is None:
            return Text("")
        text = Text()
        for node in state.job.cluster.nodes:
            text.append(f"{node.count} × {node.device}\n")
        for run in state.running.values():
            text.append(f"#{run.number} {run.name} holds all of them\n", style="bold")
        if not state.running:
            text.append("free\n", style="dim")
        for name, value in state.environment.items():
            text.append(f"{name} {value}\n", style="dim")
        return text


def devices(readings: dict[str, list[Reading]], width: int, ascii_only: bool) -> Text:
    """A line a device: how busy, its memory, power and temperature, and the last minutes."""
    if not readings:
        return Text("reading …", style="dim")
    text = Text(no_wrap=True, overflow="ellipsis")
    for name, history in readings.items():
        now = history[-1]
        text.append(f"{name:<14.14}{bar(now.busy, 10, ascii_only)} {now.busy:>4.0%}  ")
        text.append(f"{number(now.memory_gib)}/{number(now.memory_total_gib)} GiB  ")
        if now.power_w is not None:
            text.append(f"{now.power_w:.0f} W  ")
        if now.temperature_c is not None:
            text.append(f"{now.temperature_c:.0f} °C  ")
        text.append(sparkline([r.busy for r in history], max(4, width - 56), ascii_only) + "\n", style="dim")
    return text
