"""A titled box that shows what a pure function draws, and repaints only when that changed."""

from collections.abc import Callable
from functools import partial

from rich.text import Text
from textual.widgets import Static

from tui.widgets.beside import Beside

Draw = Callable[[int, int], Text]  # (width, height) → what to show


class Line(Static):
    """Text that is drawn anew only when it changed."""

    _shown: Text | None = None

    def show(self, text: Text) -> None:
        if text != self._shown:
            before, self._shown = self._shown, text
            as_high = before is not None and _height(text) == _height(before) is not None
            self.update(text, layout=not as_high)  # placing everything anew takes longer than drawing this


def _height(text: Text) -> int | None:
    """Lines; None where that depends on the width."""
    return text.plain.count("\n") if text.no_wrap else None


class Panel(Static):
    def __init__(self, title: str, draw: Draw, id: str) -> None:
        super().__init__(id=id, classes="panel")
        self.border_title = title
        self._draw_text = draw
        self._shown: Text | None = None
        self._drawn_for = (0, 0)
        self._beside: Beside[Text] = Beside(self, self._show)
        self.takes_long: Callable[[], bool] | None = None  # whether what is drawn takes longer than a key may wait

    def repaint(self) -> None:
        """Draws anew from the state of now."""
        width, height = self.content_size.width, self.content_size.height
        if width < 4 or height < 1:
            return
        self._drawn_for = (width, height)
        if self.takes_long is not None and self.takes_long():
            if self._shown is None:
                self.update(Text("adding up …", style="dim"), layout=False)
            self._beside.ask(partial(self._draw_text, width, height))
        else:
            self._show(self._draw_text(width, height))

    def _show(self, text: Text) -> None:
        if text != self._shown:
            self._shown = text
            self.update(text, layout=False)  # a panel is as large as its place

    def on_resize(self) -> None:
        if self.content_size != self._drawn_for:
            self.repaint()
