"""Experiments: a table that filters as one types, and one experiment in full beside it."""

from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.containers import Horizontal, VerticalScroll
from textual.message import Message
from textual.widgets import DataTable, Input, Static

from tui.draw.look import style
from tui.draw.runs import describe, experiment_row
from tui.modals import Full
from tui.screens.pane import Pane
from tui.state import Run

PAGE = 200  # rows that the table holds at once; more would make it slow to build
_COLUMNS = {"#": 5, "status": 8, "value": 8, "GiB": 6, "s": 6, "arm": 8, "configuration": None}


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
            yield DataTable(id="experiments", cursor_type="row", zebra_stripes=True)
            with VerticalScroll(id="one"):
                yield Static(id="one-text")

    def on_mount(self) -> None:
        self.page = -1  # counted from the end: the newest stand last, as in a log
        self._listed: list[int] = []
        self._key: tuple[object, ...] = ()
        self._matching: list[int] = []
        self._lines: list[str] = []  # what the filter looks at, by run
        self._of: int = 0  # id of the state that they are of
        self._taken = 0  # runs that were looked at
        self._open: list[int] = []  # listed rows that may still change
        self._described: tuple[object, ...] = ()
        table = self.query_one(DataTable)
        for name, width in _COLUMNS.items():
            table.add_column(name, width=width)

    def repaint(self) -> None:
        words = self.query_one(Input).value.lower().split()
        key = (tuple(words), self.page, id(self.state))
        if key != self._key or len(self._listed) >= 2 * PAGE:
            self._key = key
            self._fill(words)
        elif self.page == -1:
            self._follow(words)

    def _match(self, words: list[str], start: int) -> list[int]:
        """Runs from `start` on that have all the words."""
        runs = self.state.runs
        if self._of != id(self.state):
            self._lines, self._of = [], id(self.state)
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

    def _fill(self, words: list[str]) -> None:
        self._matching = self._match(words, 0)
        pages = self._pages
        self.page = max(-pages, min(-1, self.page))
        start = (pages + self.page) * PAGE
        self.query_one(DataTable).clear()
        self._listed, self._open, self._taken = [], [], len(self.state.runs)
        self._add(self._matching[start : start + PAGE])
        self.query_one(DataTable).move_cursor(row=len(self._listed) - 1, animate=False)
        self._describe()

    def _follow(self, words: list[str]) -> None:
        """New runs go below, and those that ended are written anew: the table is not built again."""
        runs, table = self.state.runs, self.query_one(DataTable)
        ended = [i for i in self._open if runs[i].status != "running"]
        if not ended and self._taken == len(runs):
            return
        at_end = table.cursor_row >= len(self._listed) - 1
        for i in ended:
            self._open.remove(i)
            if i < len(self._lines):
                self._lines[i] = _line(runs[i])
            for column, cell in zip(table.ordered_columns, self._cells(i), strict=True):
                table.update_cell(str(i), column.key, cell)
        new = self._match(words, self._taken)
        self._taken = len(runs)
        self._matching += new
        self._add(new)
        if new and at_end:
            table.move_cursor(row=len(self._listed) - 1, animate=False)
        self._describe()

    def _add(self, rows: list[int]) -> None:
        table = self.query_one(DataTable)
        for i in rows:
            table.add_row(*self._cells(i), key=str(i))
        self._listed += rows
        self._open += [i for i in rows if self.state.runs[i].status == "running"]

    def _cells(self, i: int) -> list[Text]:
        cells = experiment_row(self.state, i, self.ascii)
        return [Text(c, style=style(self.state.runs[i].status) if n == 1 else "") for n, c in enumerate(cells)]

    def turn(self, pages: int) -> None:
        self.page = min(-1, self.page + pages)
        self.repaint()

    def on_input_changed(self) -> None:
        self.page = -1
        self.repaint()

    def on_input_submitted(self) -> None:
        self.query_one(DataTable).focus()

    def on_data_table_row_highlighted(self) -> None:
        self._describe()

    def on_data_table_row_selected(self) -> None:
        """Enter: the whole screen for one experiment."""
        if run := self.selected:
            tail = self.session.follower.tail(run.folder, lines=200) if run.folder else []
            self.app.push_screen(Full(run.name, describe(self.state, run, tail, self.ascii)))

    @property
    def selected(self) -> Run | None:
        row = self.query_one(DataTable).cursor_row
        return self.state.runs[self._listed[row]] if 0 <= row < len(self._listed) else None

    @property
    def _pages(self) -> int:
        return max(1, -(-len(self._matching) // PAGE))

    def _describe(self) -> None:
        table, run = self.query_one(DataTable), self.selected
        page = f", page {self._pages + 1 + self.page} of {self._pages}  n b" if self._pages > 1 else ""
        table.border_title = f"{len(self._matching):,} of {len(self.state.runs):,} experiments{page}"
        table.border_subtitle = "enter in full  r again  P pin  x exclude  m compare"
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
