"""Why: the search's belief about each value, promised against achieved gains, whether anything better is left."""

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical

from tui.draw import beliefs, comparing
from tui.modals import Full
from tui.screens.pane import Pane
from tui.session.fronts import front
from tui.widgets.panel import Panel

_ALL = 10_000  # lines


class WhyPane(Pane):
    help = (
        "cost is that of the best configuration with a value, as a multiple of the best measured cost, as the search "
        "believed at its last report; runs: how many with the value were measured. Promised and got are gains over "
        "the best believed at that time. Everything here is computed from this journal alone"
    )

    def compose(self) -> ComposeResult:
        a = self.ascii
        yield Panel("beliefs about each value", lambda w, h: beliefs.belief(self.state, w, h, a), "belief")
        with Horizontal(id="why-bottom"):
            with Vertical(id="why-side"):
                yield Panel("is anything better left", lambda w, h: beliefs.left(self.state, w, h, a), "left")
                yield Panel("what proposers promised", lambda w, h: beliefs.promises(self.state, w, h, a), "promises")
            with Vertical(id="why-rest"):
                yield Panel("rungs of the ladder", lambda w, h: beliefs.ladder(self.state, w, h, a), "ladder")
                yield Panel("front of the objectives", self._front, "why-front")

    def repaint(self) -> None:
        job = self.state.job
        self.set_class(job is not None and bool(job.objective.also), "-several")
        super().repaint()

    def _front(self, width: int, height: int) -> Text:
        return comparing.front(self.state, front(self.state), width, height, self.ascii)

    def unfold(self) -> None:
        """Shows all knobs."""
        width = max(40, self.app.size.width - 8)
        text = beliefs.belief(self.state, width, _ALL, self.ascii)
        self.app.push_screen(Full("beliefs about each value", text))
