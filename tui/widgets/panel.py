"""A titled box that shows the output of a pure function, and is repainted only when that changes."""

from collections.abc import Callable
from functools import partial

from rich.text import Text
from textual.widgets import Static

from tui.widgets.beside import InBackground

Draw = Callable[[int, int], Text]  # (width, height) → what to show


class TextLine(Static):
    """Text that is redrawn only when it changes."""

    _shown: Text | None = None

    def show(self, text: Text) -> None:
        if text != self._shown:
            before, self._shown = self._shown, text
            as_high = before is not None and _height(text) == _height(before) is not None
            self.update(text, layout=not as_high)  # a new layout takes longer than drawing the text


def _height(text: Text) -> int | None:
    """Number of lines; None if it depends on the width."""
    return text.plain.count("\n") if text.no_wrap else None


class Panel(Static):
    def __init__(self, title: str, draw: Draw, id: str) -> None:
        super().__init__(id=id, classes="panel")
        self.border_title = title
        self._draw_text = draw
        self._shown: Text | None = None
        self._drawn_for = (0, 0)
        self._background: InBackground[Text] = InBackground(self, self._show)
        self.takes_long: Callable[[], bool] | None = None  # whether drawing takes longer than a key press may

    def repaint(self) -> None:
        """Redraws from the current state."""
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
