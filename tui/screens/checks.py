"""The screen "checks": predictions against measurements, and where the simulators can be trusted."""

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical

from tui.draw import checking, panels
from tui.screens.pane import Pane
from tui.widgets.panel import Panel


class ChecksPane(Pane):
    help = {
        "predicted against measured": "one point per check; x: error above the limit",
        "fidelity": "whether simulators or runs answer now, and why",
        "simulators": "error of each simulator, and its weight in the ensemble",
        "where they fail": "settings where predictions are worse than elsewhere",
        "checks, newest first": "each prediction that was compared with a run",
    }

    def compose(self) -> ComposeResult:
        a = self.ascii
        with Horizontal(id="checks-top"):
            yield Panel("predicted against measured", self._scatter, "scatter")
            with Vertical(id="checks-side"):
                yield Panel("fidelity", lambda w, h: panels.trust(self.state, w, h, a), "fidelity")
                yield Panel("simulators", lambda w, h: checking.members(self.state, w, a), "members")
        yield Panel("where they fail", lambda w, h: checking.regions(self.state, w, h, a), "regions")
        yield Panel("checks, newest first", lambda w, h: checking.check_list(self.state, w, h, a), "check-list")

    def _scatter(self, width: int, height: int) -> Text:
        self.query_one("#scatter", Panel).border_title = f"predicted against {self.state.seen}"
        return checking.checks(self.state, width, height, self.ascii)
