"""A titled box that shows what a pure function draws, and repaints only when that changed."""

from collections.abc import Callable

from rich.text import Text
from textual.widgets import Static

Draw = Callable[[int, int], Text]  # (width, height) → what to show


class Line(Static):
    """Text that is drawn anew only when it changed."""

    _shown: Text | None = None

    def show(self, text: Text) -> None:
        if text != self._shown:
            self._shown = text
            self.update(text)


class Panel(Static):
    def __init__(self, title: str, draw: Draw, id: str) -> None:
        super().__init__(id=id, classes="panel")
        self.border_title = title
        self._draw_text = draw
        self._shown: Text | None = None

    def repaint(self) -> None:
        """Draws anew from the state of now."""
        width, height = self.content_size.width, self.content_size.height
        if width < 4 or height < 1:
            return
        text = self._draw_text(width, height)
        if text != self._shown:
            self._shown = text
            self.update(text)

    def on_resize(self) -> None:
        self.repaint()
