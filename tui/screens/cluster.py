"""The screen "cluster": load of the machine, times by kind of device, stage, rank and host, and waiting sessions."""

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Horizontal

from kb.sharing import hosts
from tui.draw import device_groups
from tui.draw.machine_panel import devices, queue, slots
from tui.draw.rank_table import ranks, recorded
from tui.screens.pane import Pane
from tui.session.by_device import newest
from tui.session.neighbours import NeighbourSessions
from tui.widgets.panel import Panel

_VIEWS = ("kinds", "stages", "ranks", "hosts")


class ClusterPane(Pane):
    help = {
        "devices": "how busy this machine is now; for a recorded session, run by run",
        "kinds of device": "the newest run, by kind of device",
        "pipeline stages": "the newest run, by stage; stages wait for the slowest",
        "ranks": "the newest run, by rank; alone ms leaves out the wait for other ranks",
        "hosts": "runs of each host, and how many failed because of it",
        "slots": "who uses which devices, and the versions that are measured",
        "queue": "sessions that wait for these devices, and orders that were given",
    }

    def compose(self) -> ComposeResult:
        a = self.ascii
        yield Panel("devices", self._devices, "devices")
        with Horizontal(id="by-device"):
            yield Panel("kinds of device", lambda w, h: device_groups.kinds(self.state, w, h, a), "kinds")
            yield Panel("pipeline stages", lambda w, h: device_groups.stages(self.state, w, h, a), "stages")
        with Horizontal(id="by-rank"):
            yield Panel("ranks", lambda w, h: ranks(self.state, w, h, a), "ranks")
            yield Panel("hosts", lambda w, h: device_groups.hosts(self.state, w, h, a), "hosts")
        with Horizontal(id="cluster-bottom"):
            yield Panel("slots", lambda w, h: slots(self.state, self._around, w, a), "slots")
            yield Panel("queue", lambda w, h: queue(self.state, self._around, self.session.orders, h, a), "queue")

    def ready(self) -> None:
        self._view = _VIEWS[0]
        self.add_class(f"-{self._view}")
        for view in _VIEWS:
            self.query_one(f"#{view}", Panel).border_subtitle = "c next" if self.app.size.height < 34 else ""

    def repaint(self) -> None:
        self.set_class(not self._live_here and newest(self.state) is None, "-unrecorded")
        self.set_class(not self._live_here and bool(self.state.ended) and not self.session.orders, "-unqueued")
        super().repaint()

    def cycle(self) -> None:
        """Switches to the next view on a terminal with too few lines for all of them."""
        self.remove_class(f"-{self._view}")
        self._view = _VIEWS[(_VIEWS.index(self._view) + 1) % len(_VIEWS)]
        self.add_class(f"-{self._view}")
        self.call_after_refresh(self.repaint)

    @property
    def _live_here(self) -> bool:
        """Whether readings of this machine belong to the session: not for a recording or a session on another host."""
        here = self.state.host in ("", hosts.host())
        return bool(self.session.alive) and self.session.past is None and here and not self.session.elsewhere

    @property
    def _around(self) -> NeighbourSessions | None:
        return self.session.neighbours if self._live_here else None

    def _devices(self, width: int, height: int) -> Text:
        if self._live_here:
            return devices(self.session.readings, width, height, self.ascii)
        return recorded(self.state, width, height, self.ascii)
