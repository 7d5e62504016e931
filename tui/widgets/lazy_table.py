"""A table with any number of rows that draws only the visible ones."""

from collections.abc import Callable, Iterable, Sequence

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from tui.text import fit

Cells = Sequence[tuple[str, str]]  # text and style of each column; the last one takes the remaining width
_CACHED = 4000  # number of cached lines


class Rows(ScrollView, can_focus=True):
    """A table whose first line is the heading. `draw(row)` returns a cache key and the cells of the row. The key must
    change whenever the cells change."""

    COMPONENT_CLASSES = {"rows--cursor", "rows--heading", "rows--odd"}
    BINDINGS = [
        Binding("up", "move(-1)", show=False),
        Binding("down", "move(1)", show=False),
        Binding("pageup", "turn(-1)", show=False),
        Binding("pagedown", "turn(1)", show=False),
        Binding("home", "move(-1000000000)", show=False),
        Binding("end", "move(1000000000)", show=False),
        Binding("enter", "choose", show=False),
    ]

    class Moved(Message):
        """The cursor moved to another row."""

    class Chosen(Message):
        """Enter was pressed."""

    def __init__(
        self,
        columns: Sequence[tuple[str, int]],
        draw: Callable[[int], tuple[object, Cells]],
        knobs: Callable[[int], Iterable[str]],
        id: str,
    ) -> None:
        """`columns`: names and widths (0: the rest); `knobs(row)`: names of knobs, between which a cell may be cut."""
        super().__init__(id=id)
        self.columns, self.draw, self.knobs = columns, draw, knobs
        self.rows: Sequence[int] = ()
        self.cursor = -1  # index into `rows`; -1: none
        self._lines: dict[tuple[object, ...], Strip] = {}

    @property
    def row_count(self) -> int:
        return len(self.rows)

    def show(self, rows: Sequence[int], keep: bool) -> None:
        """Shows other rows. `keep`: the cursor stays on its row, but if this is the last row, it moves to the new last
        row; without `keep`, it always moves to the last row."""
        at_end = not keep or self.cursor >= len(self.rows) - 1
        grown = len(rows) != len(self.rows)
        self.rows = rows
        self.cursor = len(rows) - 1 if at_end else min(self.cursor, len(rows) - 1)
        if grown:
            self.virtual_size = Size(0, len(rows) + 1)
        if at_end:
            self._into_view()
        self.refresh()

    def action_move(self, by: int) -> None:
        self._go(self.cursor + by)

    def action_turn(self, pages: int) -> None:
        self._go(self.cursor + pages * max(1, self.size.height - 1))

    def action_choose(self) -> None:
        self.post_message(self.Chosen())

    def action_cursor_down(self) -> None:
        self.action_move(1)

    def action_cursor_up(self) -> None:
        self.action_move(-1)

    def on_click(self, click: events.Click) -> None:
        inside = click.get_content_offset(self)  # not counting the border
        if inside is not None and inside.y > 0:
            self._go(round(self.scroll_offset.y) + inside.y - 1)

    def _go(self, cursor: int) -> None:
        cursor = max(0, min(len(self.rows) - 1, cursor))
        if self.rows and cursor != self.cursor:
            self.cursor = cursor
            self._into_view()
            self.refresh()
            self.post_message(self.Moved())

    def _into_view(self) -> None:
        top, height = round(self.scroll_offset.y), max(1, self.size.height - 1)
        if self.cursor < top:
            self.scroll_to(y=self.cursor, animate=False, immediate=True, force=True)
        elif self.cursor >= top + height:
            self.scroll_to(y=self.cursor - height + 1, animate=False, immediate=True, force=True)

    def on_resize(self) -> None:
        self._into_view()

    def render_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width  # without the scrollbar
        if y == 0:
            style = self.get_component_rich_style("rows--heading")
            return self._strip([(name, "") for name, _ in self.columns], (), style, width)
        at = round(self.scroll_offset.y) + y - 1
        if not 0 <= at < len(self.rows):
            return Strip.blank(width, self.rich_style)
        row = self.rows[at]
        key, cells = self.draw(row)
        look = "rows--cursor" if at == self.cursor else "rows--odd" if at % 2 else ""
        cached = (row, key, look, self.has_focus, width, self.app.theme)
        strip = self._lines.get(cached)
        if strip is None:
            if len(self._lines) > _CACHED:
                self._lines.clear()
            style = self.get_component_rich_style(look) if look else self.rich_style
            strip = self._lines[cached] = self._strip(cells, self.knobs(row), style, width)
        return strip

    def _strip(self, cells: Cells, knobs: Iterable[str], base: Style, width: int) -> Strip:
        segments, left = [], width
        for (text, style), (_, size) in zip(cells, self.columns, strict=True):
            size = min(size or left, left)
            shown = text if cell_len(text) <= size else _shortened(text, size, knobs)
            segments.append(Segment(set_cell_size(shown, size), base + Style.parse(style) if style else base))
            left -= size
        return Strip(segments).adjust_cell_length(width, base)

    def watch_has_focus(self, has_focus: bool) -> None:
        self.refresh(Region(0, 0, self.size.width, self.size.height))


def _shortened(text: str, cells: int, knobs: Iterable[str]) -> str:
    """Text cut after a word, or in a configuration's name after a knob; with wide characters, after any character."""
    narrow = cell_len(text) == len(text)
    return fit(text, cells, knobs) if narrow else f"{set_cell_size(text, max(0, cells - 1))}…"
