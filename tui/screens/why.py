"""The screen "why": beliefs about each knob's values, expected and achieved gains, and whether search still pays."""

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical

from tui.draw import beliefs, comparing
from tui.modals import Full
from tui.screens.pane import Pane
from tui.session.fronts import front
from tui.widgets.panel import Panel

_ALL = 10_000  # a height in lines in which all knobs fit


class WhyPane(Pane):
    help = {
        "beliefs about each value": "cost of the best configuration with that value, relative to the best measured",
        "is anything better left": "the chance that something better is left, and the gain expected from more runs",
        "expected and achieved gains": "the gain that each arm (a source of proposals) expected, and the measured gain",
        "results by fidelity": "how many configurations were measured, and how many only predicted",
        "Pareto front": "Pareto-optimal configurations: none is better in every objective",
    }

    def compose(self) -> ComposeResult:
        a = self.ascii
        yield Panel("beliefs about each value", lambda w, h: beliefs.belief(self.state, w, h, a), "belief")
        with Horizontal(id="why-bottom"):
            with Vertical(id="why-side"):
                yield Panel("is anything better left", lambda w, h: beliefs.left(self.state, w, h, a), "left")
                yield Panel(
                    "expected and achieved gains", lambda w, h: beliefs.promises(self.state, w, h, a), "promises"
                )
            with Vertical(id="why-rest"):
                yield Panel("results by fidelity", lambda w, h: beliefs.ladder(self.state, w, h, a), "ladder")
                yield Panel("Pareto front", self._front, "why-front")

    def repaint(self) -> None:
        job = self.state.job
        self.set_class(job is not None and bool(job.objective.also), "-several")
        self.set_class(bool(self.state.ended) and not self.state.reasons.recorded, "-unrecorded")
        super().repaint()

    def _front(self, width: int, height: int) -> Text:
        return comparing.front(self.state, front(self.state), width, height, self.ascii)

    def unfold(self) -> None:
        width = max(40, self.app.size.width - 8)
        text = beliefs.belief(self.state, width, _ALL, self.ascii)
        self.app.push_screen(Full("beliefs about each value", text))
