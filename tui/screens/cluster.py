"""Cluster: what the machine does meanwhile, who holds it, and what waits for what."""

from textual.app import ComposeResult
from textual.containers import Horizontal

from tui.draw.machine_panel import devices, queue, slots
from tui.screens.pane import Pane
from tui.widgets.panel import Panel


class ClusterPane(Pane):
    help = "this machine, read once a second while this screen is open; one experiment at a time has all its devices"

    def compose(self) -> ComposeResult:
        yield Panel("devices", lambda w, h: devices(self.session.readings, w, h, self.ascii), "devices")
        with Horizontal(id="cluster-bottom"):
            yield Panel("slots", lambda w, h: slots(self.state, self.session.neighbours, w, self.ascii), "slots")
            yield Panel(
                "queue",
                lambda w, h: queue(self.state, self.session.neighbours, self.session.orders, h, self.ascii),
                "queue",
            )
