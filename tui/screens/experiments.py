"""The screen "experiments": a table, filtered while the user types, and details of one experiment on its right."""

import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

from rich.text import Text
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

_COLUMNS = (("#", 7), ("status", 9), ("value", 9), ("GiB", 7), ("s", 8), ("arm", 9), ("configuration", 0))


_SLICE_S = 0.015  # how long runs are searched before keys are handled, in seconds
_REST_S = 0.01
_AT_ONCE = 1000  # number of runs that are searched before the time is checked


class Described(Message):
    """Details of one experiment, to be shown next to the table or on the whole screen."""

    def __init__(self, run: Run, text: Text, whole_screen: bool) -> None:
        super().__init__()
        self.run, self.text, self.whole_screen = run, text, whole_screen


class ExperimentsPane(Pane):
    help = {
        "experiments": "each run: how it ended, its value, memory and cost, who proposed it, what it changes",
        "filter": "words that must all occur (ok, oom, tp2, SPARSE, limit …); a leading - excludes a word",
        "details": "the run under the cursor in full, with its command and its log; enter shows it alone",
    }

    def compose(self) -> ComposeResult:
        yield Input(placeholder="/ filter: words that must occur, -word must not", id="filter", compact=True)
        with Horizontal():
            yield Rows(_COLUMNS, self._row, self._knobs, id="experiments")
            with VerticalScroll(id="one"):
                yield Static(id="one-text")

    def ready(self) -> None:
        self._key: tuple[object, ...] = ()
        self._matching: list[int] = []
        self._lines: list[str] = []  # for each run the text in which the filter searches
        self._going_on = False  # whether a timer will continue the search
        self._looked_at = 0  # number of runs that have been searched
        self._often: Counter[tuple[str, Any]] = Counter()  # (knob, value) → count in the first `_counted` runs
        self._counted = 0
        self._unfinished: list[int] = []  # runs that had not ended when they were searched
        self._described: tuple[object, ...] = ()

    def repaint(self) -> None:
        words = self.query_one(Input).value.lower().split()
        runs = self.state.runs
        key = (tuple(words), id(self.state))
        fresh = key != self._key
        if fresh:
            if not self._key or self._key[1] != key[1]:
                self._lines, self._often, self._counted = [], Counter(), 0
            self._key, self._matching, self._looked_at, self._unfinished = key, [], 0, []
        ended = [i for i in self._unfinished if runs[i].status != "running"]
        if not (fresh or ended or self._looked_at < len(runs)):
            return
        for i in ended:
            self._unfinished.remove(i)
            if i < len(self._lines):
                self._lines[i] = _line(runs[i])
        self._look_on(words, keep=not fresh)

    def _look_on(self, terms: list[str], keep: bool) -> None:
        """Searches runs for at most `_SLICE_S`; a timer continues the search, so that keys are handled in between."""
        runs, until = self.state.runs, time.perf_counter() + _SLICE_S
        for run in runs[self._counted : _AT_ONCE]:
            self._often.update(run.configuration.knobs.items())
        self._counted = min(len(runs), _AT_ONCE)
        while self._looked_at < len(runs) and time.perf_counter() < until:
            end = min(len(runs), self._looked_at + _AT_ONCE)
            self._matching += self._match(terms, self._looked_at, end)
            self._unfinished += [i for i in range(self._looked_at, end) if runs[i].status == "running"]
            self._looked_at = end
        self.query_one(Rows).show(self._matching, keep)
        self._describe()
        if self._looked_at < len(runs) and not self._going_on:
            self._going_on = True
            self.set_timer(_REST_S, self._go_on)

    def _go_on(self) -> None:
        self._going_on = False
        self.repaint()

    def _match(self, terms: list[str], start: int, end: int) -> Iterable[int]:
        """Indices in [start, end) of runs whose text contains all terms, but none of those with a leading minus."""
        if not terms:
            return range(start, end)
        self._lines += [_line(run) for run in self.state.runs[len(self._lines) : end]]
        has = [w for w in terms if not (w.startswith("-") and len(w) > 1)]
        lacks = [w[1:] for w in terms if w not in has]
        found: Iterable[tuple[int, str]] = enumerate(self._lines[start:end], start)
        for word in has:
            found = [each for each in found if word in each[1]]
        for word in lacks:
            found = [each for each in found if word not in each[1]]
        return [i for i, _ in found]

    def _row(self, i: int) -> tuple[object, Cells]:
        cells = experiment_row(self.state, i, self.ascii, self._often)
        status = self.state.runs[i].status
        return (status, id(self.state)), [(c, style(status) if n == 1 else "") for n, c in enumerate(cells)]

    def _knobs(self, i: int) -> Iterable[str]:
        return self.state.runs[i].configuration.knobs

    def turn(self, pages: int) -> None:
        self.query_one(Rows).action_turn(pages)

    def on_input_changed(self) -> None:
        self.repaint()

    def on_input_submitted(self) -> None:
        self.query_one(Rows).focus()

    def on_rows_moved(self) -> None:
        self._describe()

    def on_rows_chosen(self) -> None:
        """Enter shows the experiment on the whole screen."""
        if run := self.selected:
            self._tell(run, whole_screen=True)

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
        if run is None:
            self.query_one("#one-text", Static).update(Text("no experiment yet", style="dim"))
        else:
            self._tell(run, whole_screen=False)

    def _tell(self, run: Run, whole_screen: bool) -> None:
        """Describes a run in a thread, since its log may be on a slow disk, and its command needs slow imports."""
        state = self.state
        box = self.query_one("#one")
        # leaves room for the scrollbar of a long text
        beside = box.content_region.width - box.styles.scrollbar_size_vertical
        width = self.app.size.width - 4 if whole_screen else beside

        def write() -> None:  # not a partial, whose arguments (all experiments) Textual would format
            tail = self.session.follower.tail(run.folder, lines=200 if whole_screen else 30) if run.folder else []
            self.post_message(Described(run, describe(state, run, tail, self.ascii, width), whole_screen))

        self.run_worker(write, thread=True, exclusive=True, group="one")

    def on_described(self, described: Described) -> None:
        if described.whole_screen:
            self.app.push_screen(Full(described.run.name, described.text))
        elif described.run is self.selected:
            self.query_one("#one-text", Static).update(described.text)


def _line(run: Run) -> str:
    return f"{run.status} {run.name} {run.arm} {run.purpose} {run.note}".lower()
