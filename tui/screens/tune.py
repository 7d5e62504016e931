"""Tune: everything that matters at a glance."""

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical

from tui.draw import panels
from tui.screens.pane import Pane
from tui.widgets.panel import Panel


class TunePane(Pane):
    help = "the session at a glance: the curve, what the simulators are worth, the arms, what runs now"

    def compose(self) -> ComposeResult:
        a = self.ascii
        with Horizontal(id="tune-top"):
            yield Panel("best so far", lambda w, h: panels.curve(self.state, w, h, a), "curve")
            with Vertical(id="tune-side"):
                yield Panel("budget", lambda w, h: panels.budget(self.state, w, a), "budget")
                yield Panel("simulators", lambda w, h: panels.trust(self.state, w, h, a), "trust")
        with Horizontal(id="tune-middle"):
            yield Panel("arms", lambda w, h: panels.arms(self.state, w, a), "arms")
            yield Panel("2×2 grid", lambda w, h: panels.grid(self.state, w, a), "grid")
            yield Panel("best against default", lambda w, h: panels.changes(self.state, w, a), "changes")
        with Horizontal(id="tune-bottom"):
            yield Panel("running", lambda w, h: panels.running(self.state, w, h, self.session.tail, a), "running")
            yield Panel("failures", lambda w, h: panels.failures(self.state, w, h, a), "failures")
