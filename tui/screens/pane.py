"""What all screens share: they look at one session, and redraw when told to."""

from textual.containers import Vertical

from tui.session.state import State
from tui.session.watched import Watched
from tui.widgets.beside import MANY
from tui.widgets.panel import Panel


class Pane(Vertical):
    help = ""

    def __init__(self, session: Watched, id: str) -> None:
        super().__init__(id=id)
        self.session = session

    @property
    def state(self) -> State:
        return self.session.state

    @property
    def ascii(self) -> bool:
        return self.session.ascii_only

    @property
    def long(self) -> bool:
        """Whether there are so many experiments that adding them up would keep a key waiting."""
        return len(self.state.runs) > MANY

    def on_mount(self) -> None:
        for panel in self.query(Panel):
            panel.takes_long = lambda: self.long

    def repaint(self) -> None:
        for panel in self.query(Panel):
            panel.repaint()
