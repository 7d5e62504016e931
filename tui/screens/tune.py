"""The screen "tune", with the most important panels."""

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical

from tui.draw import panels
from tui.draw.arms_panel import arms
from tui.draw.gates import parts_of
from tui.draw.nothing import nothing
from tui.draw.running import running
from tui.draw.two_by_two import grid
from tui.screens.pane import Pane
from tui.widgets.panel import Panel


class TunePane(Pane):
    help = {
        "best so far": "each run, and the best value up to it; the dashed line is the reference",
        "budget": "how many experiments and how much time are spent, and how long is left",
        "simulators": "the simulators' error, which decides whether they are used",
        "arms": "who proposes experiments, how often each won, and the gain for its cost",
        "2×2 grid": "old and new structure at old and new point; ~ is predicted, Δ what a change saves",
        "best against default": "the settings that the best one changes; once the session has ended, its verdict",
        "running": "the experiment that runs now, its log, and what ends next",
        "failures": "runs that failed, by their reason, the newest first",
    }

    def compose(self) -> ComposeResult:
        a = self.ascii
        with Horizontal(id="tune-top"):
            yield Panel("best so far", self._curve, "curve")
            with Vertical(id="tune-side"):
                yield Panel("budget", lambda w, h: panels.budget(self.state, w, h, a), "budget")
                yield Panel("simulators", lambda w, h: panels.trust(self.state, w, h, a), "trust")
        with Horizontal(id="tune-middle"):
            yield Panel("arms", lambda w, h: arms(self.state, w, h, a), "arms")
            yield Panel("2×2 grid", lambda w, h: grid(self.state, w, a), "grid")
            yield Panel("best against default", lambda w, h: panels.changes(self.state, w, h, a), "changes")
        with Horizontal(id="tune-bottom"):
            yield Panel("running", self._running_now, "running")
            yield Panel("failures", lambda w, h: panels.failures(self.state, w, h, a), "failures")

    def repaint(self) -> None:
        """Redraws the panels. While nothing is feasible, a panel shows the reason instead of an empty curve."""
        state = self.state
        self.set_class(self._nothing_runs, "-nothing")
        title = "best so far"
        if self._nothing_runs:
            title = "nothing feasible" + ("" if state.ended else " yet")
        self.query_one("#curve", Panel).border_title = "A and B" if state.gated else title
        over = bool(state.gated or state.confirmed) and not state.running
        self.query_one("#running", Panel).border_title = "result" if over else "running"
        super().repaint()

    @property
    def _nothing_runs(self) -> bool:
        return self.state.best is None and bool(self.state.failures)

    def _running_now(self, width: int, height: int) -> Text:
        return running(self.state, width, height, self.session.tail, self.ascii)

    def _curve(self, width: int, height: int) -> Text:
        if self.state.gated:
            return parts_of(self.state.gated)
        draw = nothing if self._nothing_runs else panels.curve
        return draw(self.state, width, height, self.ascii)
