"""A one-line choice. Space, enter, the right arrow and the mouse select the next value, left the previous one."""

from collections.abc import Sequence

from rich.text import Text
from textual.binding import Binding
from textual.message import Message
from textual.widgets import Static


class Choice(Static, can_focus=True):
    BINDINGS = [
        Binding("right,space,enter", "turn(1)", "next", show=False),
        Binding("left", "turn(-1)", "before", show=False),
    ]

    class Turned(Message):
        """Another value was chosen."""

    def __init__(self, values: Sequence[str], id: str, ascii_only: bool) -> None:
        super().__init__(id=id)
        self.values, self.at = list(values), 0
        self._ends = ("<", ">") if ascii_only else ("‹", "›")

    @property
    def value(self) -> str:
        return self.values[self.at] if self.values else ""

    def offer(self, values: Sequence[str]) -> None:
        self.values, self.at = list(values), 0
        self._draw()

    def on_mount(self) -> None:
        self._draw()

    def on_click(self) -> None:
        self.action_turn(1)

    def action_turn(self, by: int) -> None:
        if self.values:
            self.at = (self.at + by) % len(self.values)
            self._draw()
            self.post_message(self.Turned())

    def _draw(self) -> None:
        self.update(Text(f"{self._ends[0]} {self.value} {self._ends[1]}", no_wrap=True, overflow="ellipsis"))
