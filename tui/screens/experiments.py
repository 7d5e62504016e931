"""Experiments: a table that filters as one types, and one experiment in full beside it."""

from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.containers import Horizontal, VerticalScroll
from textual.message import Message
from textual.widgets import Input, Static

from tui.draw.look import style
from tui.draw.runs import describe, experiment_row
from tui.modals import Full
from tui.screens.pane import Pane
from tui.session.state import Run
from tui.widgets.lazy_table import Cells, Rows

_COLUMNS = (("#", 7), ("status", 9), ("value", 9), ("GiB", 7), ("s", 7), ("arm", 9), ("configuration", 0))


class Tail(Message):
    """The end of an experiment's log."""

    def __init__(self, run: Run, lines: list[str]) -> None:
        super().__init__()
        self.run, self.lines = run, lines


class ExperimentsPane(Pane):
    help = (
        "/ filters by words that all must occur (ok, oom, tp2, SPARSE, limit …), - in front excludes; n b turn pages; "
        "enter shows one in full; r runs it again, P pins and x excludes one of its values, m marks it to compare"
    )

    def compose(self) -> ComposeResult:
        yield Input(placeholder="/ filter: words that must occur, -word must not", id="filter", compact=True)
        with Horizontal():
            yield Rows(_COLUMNS, self._row, id="experiments")
            with VerticalScroll(id="one"):
                yield Static(id="one-text")

    def on_mount(self) -> None:
        self._key: tuple[object, ...] = ()
        self._matching: list[int] = []
        self._lines: list[str] = []  # what the filter looks at, by run
        self._looked_at = 0  # runs
        self._unfinished: list[int] = []  # runs that may still change
        self._described: tuple[object, ...] = ()

    def repaint(self) -> None:
        words = self.query_one(Input).value.lower().split()
        runs, table = self.state.runs, self.query_one(Rows)
        key = (tuple(words), id(self.state))
        fresh = key != self._key
        if fresh:
            if not self._key or self._key[1] != key[1]:
                self._lines = []
            self._key, self._matching, self._looked_at, self._unfinished = key, [], 0, []
        ended = [i for i in self._unfinished if runs[i].status != "running"]
        if not (fresh or ended or self._looked_at < len(runs)):
            return
        for i in ended:
            self._unfinished.remove(i)
            if i < len(self._lines):
                self._lines[i] = _line(runs[i])
        self._matching += self._match(words, self._looked_at)
        self._unfinished += [i for i in range(self._looked_at, len(runs)) if runs[i].status == "running"]
        self._looked_at = len(runs)
        table.show(self._matching, keep=not fresh)
        self._describe()

    def _match(self, words: list[str], start: int) -> list[int]:
        """Runs from `start` on that have all the words, and none of those after a minus."""
        runs = self.state.runs
        if not words:
            return list(range(start, len(runs)))
        self._lines += [_line(run) for run in runs[len(self._lines) :]]
        has = [w for w in words if not (w.startswith("-") and len(w) > 1)]
        lacks = [w[1:] for w in words if w not in has]
        return [
            i
            for i, line in enumerate(self._lines[start:], start)
            if all(w in line for w in has) and not any(w in line for w in lacks)
        ]

    def _row(self, i: int) -> tuple[object, Cells]:
        cells = experiment_row(self.state, i, self.ascii)
        status = self.state.runs[i].status
        return (status, id(self.state)), [(c, style(status) if n == 1 else "") for n, c in enumerate(cells)]

    def turn(self, pages: int) -> None:
        self.query_one(Rows).action_turn(pages)

    def on_input_changed(self) -> None:
        self.repaint()

    def on_input_submitted(self) -> None:
        self.query_one(Rows).focus()

    def on_rows_moved(self) -> None:
        self._describe()

    def on_rows_chosen(self) -> None:
        """Enter: the whole screen for one experiment."""
        if run := self.selected:
            tail = self.session.follower.tail(run.folder, lines=200) if run.folder else []
            self.app.push_screen(Full(run.name, describe(self.state, run, tail, self.ascii)))

    @property
    def selected(self) -> Run | None:
        table = self.query_one(Rows)
        return self.state.runs[table.rows[table.cursor]] if 0 <= table.cursor < len(table.rows) else None

    def _describe(self) -> None:
        table, run = self.query_one(Rows), self.selected
        at = f"{table.cursor + 1:,} of {len(self._matching):,}" if self._matching else "none"
        filtered = f", filtered from {len(self.state.runs):,}" if len(self._matching) < len(self.state.runs) else ""
        table.border_title = f"experiment {at}{filtered}"
        table.border_subtitle = "enter in full  r again  P pin  x exclude  m compare"
        if not self.query_one("#one").display:
            return
        key = (id(run), run.status if run else "")
        if key == self._described:
            return
        self._described = key
        text = describe(self.state, run, [], self.ascii) if run else Text("no experiment yet", style="dim")
        self.query_one("#one-text", Static).update(text)
        if run is not None and run.folder:
            self._read_tail(run)

    @work(thread=True, exclusive=True)
    def _read_tail(self, run: Run) -> None:
        if lines := self.session.follower.tail(run.folder):
            self.post_message(Tail(run, lines))

    def on_tail(self, tail: Tail) -> None:
        if tail.run is self.selected:
            self.query_one("#one-text", Static).update(describe(self.state, tail.run, tail.lines, self.ascii))


def _line(run: Run) -> str:
    return f"{run.status} {run.name} {run.arm} {run.purpose} {run.note}".lower()
