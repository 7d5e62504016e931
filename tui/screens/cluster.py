"""Cluster: what the machine does meanwhile, who holds it, and what waits for what."""

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Horizontal

from kb.sharing import hosts
from tui.draw.machine_panel import devices, queue, slots
from tui.draw.rank_table import ranks, recorded
from tui.screens.pane import Pane
from tui.widgets.panel import Panel


class ClusterPane(Pane):
    help = (
        "of a running session this machine, read once a second, of a recorded one its machine, run by run; below, the "
        "ranks of the newest run. They wait for each other: who is slow shows in alone ms, the same arithmetic without "
        "the others"
    )

    def compose(self) -> ComposeResult:
        yield Panel("devices", self._devices, "devices")
        yield Panel("ranks", lambda w, h: ranks(self.state, w, h, self.ascii), "ranks")
        with Horizontal(id="cluster-bottom"):
            yield Panel("slots", lambda w, h: slots(self.state, self.session.neighbours, w, self.ascii), "slots")
            yield Panel(
                "queue",
                lambda w, h: queue(self.state, self.session.neighbours, self.session.orders, h, self.ascii),
                "queue",
            )

    def _devices(self, width: int, height: int) -> Text:
        """Of the machine that measures: what this one does says nothing of a recording, nor of another machine."""
        here = self.state.host in ("", hosts.host())
        if self.session.alive and self.session.past is None and here and not self.session.elsewhere:
            return devices(self.session.readings, width, height, self.ascii)
        return recorded(self.state, width, height, self.ascii)
