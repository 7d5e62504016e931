"""A text input for SQL with completion of words."""

import re

from textual import events
from textual.binding import Binding
from textual.message import Message
from textual.widgets import TextArea

_WORDS = (
    "SELECT FROM WHERE GROUP BY ALL ORDER LIMIT HAVING JOIN USING AS DISTINCT median count avg min max quantile_cont "
)
_WORDS += "arg_min arg_max round any_value QUALIFY PIVOT UNPIVOT SUMMARIZE DESCRIBE regexp_matches list_contains"


FIRST = "FROM best"


class Console(TextArea):
    """The input. ctrl+j runs the query, tab completes a word, ctrl+up and ctrl+down go through the history."""

    BINDINGS = [
        Binding("ctrl+j,f5", "want('run')", "run", priority=True),
        Binding("ctrl+up", "want('earlier')", "earlier", show=False),
        Binding("ctrl+down", "want('later')", "later", show=False),
        Binding("ctrl+r", "want('history')", "asked before", show=False),
        Binding("ctrl+g", "want('chart')", "chart", show=False),
        Binding("ctrl+s", "want('save')", "save the query", show=False),
        Binding("ctrl+e", "want('export')", "export", show=False),
    ]

    def __init__(self) -> None:
        super().__init__(FIRST, id="console", soft_wrap=True, tab_behavior="focus")
        self.vocabulary: list[str] = [str(word) for word in _WORDS.split()]
        self._cycle: tuple[str, int] = ("", 0)

    def on_key(self, event: events.Key) -> None:
        # while nothing has been typed, these keys switch screens
        if self.text == FIRST and (event.key.isdigit() or event.key == "question_mark"):
            event.prevent_default()
            event.stop()
            self.screen.set_focus(None)
            self.app.simulate_key(event.key)
        elif event.key == "tab" and self.complete():
            event.prevent_default()
            event.stop()
        elif event.key != "tab":
            self._cycle = ("", 0)

    def complete(self) -> bool:
        """Completes the word before the cursor; further calls choose the next candidate. False if there is none."""
        row, column = self.cursor_location
        typed = re.search(r"\w*$", self.document.get_line(row)[:column])
        word = typed.group() if typed else ""
        stem, number = self._cycle if self._cycle[0] and word.lower().startswith(self._cycle[0]) else (word.lower(), -1)
        candidates = [w for w in self.vocabulary if w.lower().startswith(stem) and w.lower() != stem]
        if not stem or not candidates:
            return False
        number = (number + 1) % len(candidates)
        self._cycle = (stem, number)
        self.replace(candidates[number], (row, column - len(word)), (row, column))
        return True

    class Wanted(Message):
        """What the user wants. `what`: `run`, `save` or `export` the query, show the `earlier` or `later` one of the
        history, show the `history`, or `chart` the result."""

        def __init__(self, what: str, sql: str) -> None:
            super().__init__()
            self.what, self.sql = what, sql

    def action_want(self, what: str) -> None:
        self.post_message(self.Wanted(what, self.text))
