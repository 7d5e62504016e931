"""A titled box that shows the text of a function, and is only repainted when the text changes."""

from collections.abc import Callable
from functools import partial

from rich.text import Text
from textual.widgets import Static

from tui.widgets.beside import InBackground

Draw = Callable[[int, int], Text]  # (width, height) → what to show


class TextLine(Static):
    """A text without a box, which is only redrawn when it changes."""

    _shown: Text | None = None

    def show(self, text: Text) -> None:
        if text != self._shown:
            before, self._shown = self._shown, text
            as_high = before is not None and _height(text) == _height(before) is not None
            self.update(text, layout=not as_high)  # avoids a new layout, which is slow, if the height is the same


def _height(text: Text) -> int | None:
    """Number of line ends; None if the height depends on the width."""
    return text.plain.count("\n") if text.no_wrap else None


class Panel(Static):
    def __init__(self, title: str, draw: Draw, id: str) -> None:
        super().__init__(id=id, classes="panel")
        self.border_title = title
        self._draw_text = draw
        self._shown: Text | None = None
        self._drawn_for = (0, 0)
        self._background: InBackground[Text] = InBackground(self, self._show)
        self.takes_long: Callable[[], bool] | None = None  # if it returns True, the text is computed in a thread

    def repaint(self) -> None:
        width, height = self.content_size.width, self.content_size.height
        if width < 4 or height < 1:
            return
        self._drawn_for = (width, height)
        if self.takes_long is not None and self.takes_long():
            if self._shown is None:
                self.update(Text("adding up …", style="dim"), layout=False)
            self._background.ask(partial(self._draw_text, width, height))
        else:
            self._show(self._draw_text(width, height))

    def _show(self, text: Text) -> None:
        if text != self._shown:
            self._shown = text
            self.update(text, layout=False)  # a panel's size does not depend on its text

    def on_resize(self) -> None:
        if self.content_size != self._drawn_for:
            self.repaint()
