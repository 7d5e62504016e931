"""Experiments: a table that filters as one types, and one experiment in full beside it."""

import json

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Horizontal, VerticalScroll
from textual.widgets import DataTable, Input, Static

from tui.draw import panels
from tui.draw.look import glyph, style
from tui.screens.pane import Pane
from tui.state import Run
from tui.text import number

PAGE = 200  # rows that the table holds at once; more would make it slow to build
_COLUMNS = ("#", "status", "value", "GiB", "s", "arm", "configuration")


class ExperimentsPane(Pane):
    help = "/ filters by words that all must occur (ok, oom, tp2, SPARSE …), - in front excludes; n and b turn pages"

    def compose(self) -> ComposeResult:
        yield Input(placeholder="filter: words that must occur, -word must not", id="filter")
        with Horizontal():
            yield DataTable(id="experiments", cursor_type="row", zebra_stripes=True)
            with VerticalScroll(id="one"):
                yield Static(id="one-text")

    def on_mount(self) -> None:
        self.page = -1  # counted from the end: the newest stand last, as in a log
        self._listed: list[int] = []
        self._key: tuple[object, ...] = ()
        self._matching = 0
        self._taken = 0  # runs that were looked at
        self._open: list[int] = []  # listed rows that may still change
        self.query_one(DataTable).add_columns(*_COLUMNS)

    def repaint(self) -> None:
        super().repaint()
        words = self.query_one(Input).value.lower().split()
        key = (tuple(words), self.page, id(self.state))
        if key != self._key or len(self._listed) >= 2 * PAGE:
            self._key = key
            self._fill(words)
        elif self.page == -1:
            self._follow(words)

    def _fill(self, words: list[str]) -> None:
        runs = self.state.runs
        matching = [i for i in range(len(runs)) if _matches(runs[i], words)]
        pages = max(1, -(-len(matching) // PAGE))
        self.page = max(-pages, min(-1, self.page))
        start = (pages + self.page) * PAGE
        self.query_one(DataTable).clear()
        self._listed, self._open, self._taken = [], [], len(runs)
        self._add(matching[start : start + PAGE])
        self._matching = len(matching)
        self.query_one(DataTable).move_cursor(row=len(self._listed) - 1, animate=False)
        self._describe()

    def _follow(self, words: list[str]) -> None:
        """New runs go below, and those that ended are written anew: the table is not built again."""
        runs, table = self.state.runs, self.query_one(DataTable)
        at_end = table.cursor_row >= len(self._listed) - 1
        new = [i for i in range(self._taken, len(runs)) if _matches(runs[i], words)]
        ended = [i for i in self._open if runs[i].status != "running"]
        self._taken = len(runs)
        self._matching += len(new)
        for i in ended:
            self._open.remove(i)
            for column, cell in zip(table.ordered_columns, self._cells(i), strict=True):
                table.update_cell(str(i), column.key, cell)
        self._add(new)
        if new and at_end:
            table.move_cursor(row=len(self._listed) - 1, animate=False)
        if new or ended:
            self._describe()

    def _add(self, rows: list[int]) -> None:
        table = self.query_one(DataTable)
        for i in rows:
            table.add_row(*self._cells(i), key=str(i))
        self._listed += rows
        self._open += [i for i in rows if self.state.runs[i].status == "running"]

    def _cells(self, i: int) -> list[Text]:
        cells = panels.experiment_row(self.state, i, self.ascii)
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

    @property
    def selected(self) -> Run | None:
        row = self.query_one(DataTable).cursor_row
        return self.state.runs[self._listed[row]] if 0 <= row < len(self._listed) else None

    def _describe(self) -> None:
        pages = max(1, -(-self._matching // PAGE))
        self.query_one(
            DataTable
        ).border_title = (
            f"{self._matching} of {len(self.state.runs)} experiments, page {pages + 1 + self.page} of {pages}"
        )
        run = self.selected
        tail = self.session.follower.tail(run.folder) if run and self.session.follower else []
        text = describe(run, tail, self.ascii) if run else Text("no experiment yet", style="dim")
        self.query_one("#one-text", Static).update(text)


def _matches(run: Run, words: list[str]) -> bool:
    line = f"{run.status} {run.name} {run.arm} {run.purpose} {run.note}".lower()
    return all((w[1:] not in line) if w.startswith("-") and len(w) > 1 else w in line for w in words)


def describe(run: Run, tail: list[str], ascii_only: bool) -> Text:
    """One experiment in full."""
    text = Text()
    text.append(f"{glyph(run.status, ascii_only)} {run.status}  ", style=style(run.status))
    text.append(f"{run.name}\n", style="bold")
    if run.note:
        text.append(f"{run.note}\n")
    text.append(f"{run.purpose} {run.arm}  {run.why}\n\n", style="dim")
    for name, value in run.configuration.knobs.items():
        shown = ("on" if value else "off") if isinstance(value, bool) else value
        text.append(f"{name:<18}{shown}\n")
    m = run.measurement
    if run.predicted is not None:
        text.append(f"\npredicted {number(run.predicted)}")
        if run.value is not None:
            text.append(f", measured {number(run.value)}: {run.predicted / run.value - 1:+.1%}")
        text.append("\n")
    if m is not None:
        text.append("\n")
        for name, value in m.metrics.items():
            text.append(f"{name:<18}{number(value)}\n")
        if m.iterations_s:
            text.append(f"{'iterations s':<18}{' '.join(number(x) for x in m.iterations_s)}\n")
        if m.rank_memory_gib:
            text.append(f"{'GiB by rank':<18}{' '.join(number(x) for x in m.rank_memory_gib)}\n")
        text.append(f"{'cost':<18}{number(m.cost_s)} s, {number(m.device_s)} device seconds\n")
        text.append(f"environment {json.dumps(m.environment)}\n", style="dim")
    if run.folder:
        text.append(f"folder {run.folder}\n", style="dim")
    for line in tail:
        text.append(f"{line}\n", style="dim")
    return text
