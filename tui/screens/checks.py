"""Checks: what the simulators predicted, what was measured, and who is believed."""

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical

from tui.draw import panels
from tui.screens.pane import Pane
from tui.widgets.panel import Panel


class ChecksPane(Pane):
    help = "each check of the guard: x lies further off than ε allows; weights are by held-out R²"

    def compose(self) -> ComposeResult:
        a = self.ascii
        with Horizontal():
            yield Panel("predicted against measured", lambda w, h: panels.checks(self.state, w, h, a), "scatter")
            with Vertical():
                yield Panel("fidelity", lambda w, h: panels.trust(self.state, w, h, a), "fidelity")
                yield Panel("weights of the simulators", lambda w, h: panels.weights(self.state, w, a), "weights")
        yield Panel("checks, newest first", lambda w, h: panels.check_list(self.state, w, h, a), "check-list")
