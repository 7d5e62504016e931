"""What all screens share: they are panes of one app, look at one session, and redraw when told to."""

from typing import TYPE_CHECKING

from textual.containers import Vertical

from tui.session.state import State
from tui.widgets.panel import Panel

if TYPE_CHECKING:
    from tui.app import SessionApp


class Pane(Vertical):
    help = ""

    @property
    def session(self) -> "SessionApp":
        return self.app  # type: ignore[return-value]

    @property
    def state(self) -> State:
        return self.session.state

    @property
    def ascii(self) -> bool:
        return self.session.ascii_only

    def repaint(self) -> None:
        for panel in self.query(Panel):
            panel.repaint()
