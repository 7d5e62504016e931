"""Sends frames to the terminal: only changed cells, and not faster than the terminal processes them.

Each frame is compared with what the terminal shows, and only the difference is sent. If the terminal answers queries,
each frame ends with a query, and the next frame waits for the answer. So a slow connection lowers the frame rate, but
each frame shows the newest state. Frames that no user input caused are limited to `IDLE_BYTES_S`.
"""

import re
import select
import time
import unicodedata
from collections.abc import Iterable, Iterator

from rich.cells import cell_len
from rich.color import Color, ColorSystem
from rich.style import Style
from textual._compositor import ChopsUpdate, CompositorUpdate, LayoutUpdate
from textual.strip import Strip

from tui.ascii import plain_cell

IDLE_BYTES_S = 700.0  # limit in bytes per second on frames that no user input caused
CALM_S = 0.3  # seconds without user input after which a screen may be created in advance
ANSWER_S = 5.0  # timeout for the terminal's answer in seconds
ASK = "\x1b[?2026$p"  # asks the terminal whether it supports synchronized output; may be sent repeatedly
_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"  # synchronized output
_AT_ONCE = 400  # frames with fewer bytes do not flicker, and need no synchronized output
_ERASED, _ERASED_LAST = 12, 6  # shortest sequences of blanks that are sent as "erase", within and at the end of a run
_NEAR = 4  # sending up to this number of unchanged cells again takes fewer bytes than moving the cursor

Look = tuple[str, str, str]  # SGR codes of foreground, background and attributes
_NO_LOOK: Look = ("39", "49", "")
Row = tuple[list[str], list[Look]]
_Run = tuple[Look, int, int, list[str]]  # look, row, column, cells
_ATTRIBUTES = {"bold": "1", "dim": "2", "italic": "3", "underline": "4", "blink": "5", "reverse": "7", "strike": "9"}
_ENDS = {"1": "22", "2": "22", "3": "23", "4": "24", "5": "25", "7": "27", "9": "29"}
_NOT_SENT = ("Cf", "Cc", "Sk")  # categories of characters without width
_JOINER, _EMOJI = "\u200d", "\ufe0f"  # the character after _JOINER has no width; the one before _EMOJI has two columns
# Characters that every terminal draws in one column (except those that Unicode calls wide), and in two columns.
_ONE = re.compile("[\u0020-\u02ff\u0370-\u0482\u048a-\u052f\u2010-\u2dff]*")
_TWO = re.compile("[\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fff\uac00-\ud7a3]")
_SEEN_ON_BLANKS = frozenset("4579")


class Canvas:
    """The cells of the drawn frame and those that the terminal shows."""

    def __init__(self, colours: str | None, ascii_only: bool) -> None:
        """`colours`: "standard", "256" or "truecolor", as in rich.console.Console.color_system; None: no colours."""
        systems = {"standard": ColorSystem.STANDARD, "256": ColorSystem.EIGHT_BIT, "truecolor": ColorSystem.TRUECOLOR}
        self._colours = systems.get(colours or "")
        self._ascii = ascii_only
        self._looks: dict[Style | None, Look] = {None: _NO_LOOK}
        self._widths: dict[str, int] = {}
        self.size = (0, 0)
        self._drawn: list[Row] = []
        self._shown: list[Row] = []
        self._touched: set[int] = set()

    def resize(self, width: int, height: int) -> None:
        """Sets a new size. The next frame is sent completely."""
        self.size = (width, height)
        self._drawn = [([" "] * width, [_NO_LOOK] * width) for _ in range(height)]
        self.forget()

    def forget(self) -> None:
        """Makes the next frame be sent completely, because the terminal's content is unknown."""
        height = self.size[1]
        self._shown = [([], []) for _ in range(height)]
        self._touched = set(range(height))

    def put(self, update: CompositorUpdate) -> None:
        """Draws a frame of Textual into the cells."""
        for y, x, strip in _pieces(update):
            if 0 <= y < self.size[1]:
                self._put(y, x, strip)

    def difference(self, erases: bool = False) -> str:
        """The escape sequences that make the terminal show the drawn frame; "" if it does already. `erases`: whether
        the terminal erases with the current background colour (as modern ones do), so that blanks can be erased instead
        of sent."""
        runs: list[_Run] = []
        for y in sorted(self._touched):
            drawn, shown = self._drawn[y], self._shown[y]
            if drawn != shown:
                runs += _runs(y, drawn, shown)
                self._shown[y] = (drawn[0].copy(), drawn[1].copy())
        self._touched.clear()
        if not all(_ONE.fullmatch("".join(run[3])) for run in runs):  # wide characters may cover the next run
            return _written(runs, erases)
        order = {look: i for i, look in enumerate(dict.fromkeys(run[0] for run in runs))}
        by_look = sorted(runs, key=lambda run: order[run[0]])
        return min(_written(runs, erases), _written(by_look, erases), key=len)

    def _put(self, y: int, x: int, strip: Strip) -> None:
        texts, looks = self._drawn[y]
        width = self.size[0]
        self._touched.add(y)
        for text, style, control in strip:
            if control:
                continue
            look = self._looks.get(style)
            if look is None:
                look = self._looks[style] = _look(style, self._colours)
            cells = list(text) if text.isascii() and text.isprintable() else self._cells(text)
            if len(cells) > width - x:
                cells = cells[: max(0, width - x)]
                cells[-1:] = [" " if cell and self._wide(cell[0]) == 2 else cell for cell in cells[-1:]]
            end = x + len(cells)
            if cells and texts[x] == "":  # the right half of a wide character whose left half was overwritten
                texts[x - 1] = " "
            if cells and end < width and texts[end] == "":
                texts[end] = " "
            texts[x:end] = cells
            looks[x:end] = [look] * len(cells)
            x = end

    def _wide(self, text: str) -> int:
        wide = self._widths.get(text)
        if wide is None:
            wide = self._widths[text] = cell_len(text)
        return wide

    def _cells(self, text: str) -> list[str]:
        """Splits text into cells: "" follows a wide character, and combining characters are appended to their base
        character. The number of cells is that of `rich.cells.cell_len`, which the layout of the widgets uses."""
        cells: list[str] = []
        # `base`: index of the last base character's cell; `widened`: that character, while _EMOJI may still widen it
        base, widened = -1, ""
        characters = iter(text)
        for character in characters:
            wide = self._wide(character)
            if wide:
                base, widened = len(cells), character
                plain = self._ascii or "\ud800" <= character <= "\udfff"
                cells.append(plain_cell(character) if plain else character)
                if wide == 2:
                    cells.append("?" if self._ascii else "")
            elif character == _JOINER:
                next(characters, None)
            elif character == _EMOJI:
                if self._wide(widened + _EMOJI) > self._wide(widened):
                    cells.append(" ")
                widened = ""
            elif base >= 0 and not self._ascii and unicodedata.category(character) not in _NOT_SENT:
                cells[base] += character
        return cells


def _runs(y: int, drawn: Row, shown: Row) -> Iterator[_Run]:
    """The changed cells of a row as runs with the same look; a run may include a few unchanged cells (_NEAR)."""
    (texts, looks), (old_texts, old_looks) = drawn, shown
    known, width = len(old_texts), len(texts)
    covered = 0  # columns before this may be hidden by a character that the terminal draws wider than expected

    def same(x: int) -> bool:
        if x < covered or x >= known or texts[x] != old_texts[x]:
            return False
        return looks[x] == old_looks[x] or (texts[x] == " " and _same_blank(looks[x], old_looks[x]))

    x = 0
    while x < width:
        if same(x):
            x += 1
            continue
        start = x
        while start and texts[start] == "":  # includes the left half of a wide character
            start -= 1
        end = probe = x + 1
        while probe < width and probe - end <= _NEAR:
            if looks[probe] != looks[x] and not (texts[probe] == " " and _same_blank(looks[probe], looks[x])):
                break
            probe += 1
            if not same(probe - 1):
                end = probe
        while end < width and texts[end] == "":
            end += 1
        yield looks[x], y, start, texts[start:end]
        if not _ONE.fullmatch("".join(texts[start:end])):
            covered = max(at + _widest(texts[at]) for at in range(start, end))
        x = end


def _same_blank(one: Look, other: Look) -> bool:
    """Whether a space looks the same in both styles: only its background and, say, an underline are visible."""
    return one[1] == other[1] and not _SEEN_ON_BLANKS.intersection(one[2] + other[2])


def _written(runs: Iterable[_Run], erases: bool) -> str:
    """The escape sequences for runs in this order. Before a character whose width differs between terminals, blanks are
    written, and after it the cursor is positioned again."""
    out: list[str] = []
    pen = _Pen(out)
    for look, y, x, cells in runs:
        pen.to(x, y)
        blank = 0
        for at, cell in enumerate(cells, start=x):
            if blank:
                blank -= 1
                continue
            if erases and cell == " " and not look[2]:
                blank = _blanks(cells, at - x)
                if blank >= (_ERASED if at - x + blank < len(cells) else _ERASED_LAST):
                    pen.to(at, y)
                    pen.write(f"\x1b[{blank}X", look)  # erases without moving the cursor
                    blank -= 1
                    continue
                blank = 0
            if cell:
                wide = 2 if cells[at - x + 1 : at - x + 2] == [""] else 1
                sure = (_ONE if wide == 1 else _TWO).fullmatch(cell)
                pen.to(at, y)
                if not sure:
                    pen.write(" " * wide, look)
                    pen.x = -1
                    pen.to(at, y)
                pen.write(cell, look)
                pen.x = at + wide if sure else -1
    if pen.look != _NO_LOOK:
        out.append("\x1b[0m")
    return "".join(out)


def _blanks(cells: list[str], start: int) -> int:
    return next((i for i, cell in enumerate(cells[start:]) if cell != " "), len(cells) - start)


def _widest(cell: str) -> int:
    """The largest number of columns in which a terminal may draw a cell."""
    categories = (unicodedata.category(character) for character in cell)
    return 1 if _ONE.fullmatch(cell) else sum(0 if category == "Mn" else 2 for category in categories)


def _right(columns: int) -> str:
    return "" if columns == 0 else "\x1b[C" if columns == 1 else f"\x1b[{columns}C"


class _Pen:
    """The terminal's cursor position and current look."""

    def __init__(self, out: list[str]) -> None:
        self.out = out
        self.x, self.y = -1, -1  # -1: unknown
        self.look = _NO_LOOK

    def to(self, x: int, y: int) -> None:
        if (x, y) == (self.x, self.y):
            return
        ways = [f"\x1b[{y + 1};{x + 1}H"]
        if self.x >= 0 and y == self.y:
            ways += [f"\x1b[{x + 1}G", *([_right(x - self.x)] if self.x < x else [])]
        elif self.x >= 0 and y == self.y + 1:
            ways.append("\r\n" + _right(x))
        self.out.append(min(ways, key=len))
        self.x, self.y = x, y

    def write(self, text: str, look: Look) -> None:
        if look != self.look and not (text == " " and _same_blank(look, self.look)):
            self.out.append(_change(self.look, look))
            self.look = look
        self.out.append(text)


class Pace:
    """Decides when the next frame may be sent."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.answers = False  # whether the terminal answers queries
        self._asked_at = 0.0  # time of the query that has not been answered; 0: none
        self._quiet_until = 0.0  # no frame before this time, unless user input caused it
        self._wanted_at = 0.0  # time of the last user input

    def ready(self) -> bool:
        """Whether the terminal has processed the last frame."""
        if self._asked_at and time.monotonic() - self._asked_at < ANSWER_S:
            return False
        try:
            return bool(select.select([], [self._fd], [], 0)[1])
        except (OSError, ValueError):  # the terminal was closed, so writing will raise
            return True

    def wanted(self) -> None:
        """Notes user input (key, mouse, resize), so that the following frames are not delayed."""
        self._wanted_at = time.monotonic()

    def due(self) -> bool:
        """Whether a frame that no user input caused may be drawn."""
        return time.monotonic() >= self._quiet_until

    def calm(self) -> bool:
        """Whether there was no user input for a while."""
        return time.monotonic() - self._wanted_at >= CALM_S

    def sent(self, count: int) -> None:
        now = time.monotonic()
        if now - self._wanted_at > 1.0:
            self._quiet_until = max(now, self._quiet_until) + count / IDLE_BYTES_S
        if self.answers:
            self._asked_at = now

    def answered(self) -> None:
        self.answers, self._asked_at = True, 0.0


def framed(changes: str, cursor: tuple[int, int], at_once: bool, ask: bool) -> str:
    """What is sent for a frame. `cursor`: column and row of the text cursor; `at_once`: whether the terminal supports
    synchronized output; `ask`: whether to end with the query `ASK`."""
    text = f"{changes}\x1b[{cursor[1] + 1};{cursor[0] + 1}H"
    if at_once and len(text) > _AT_ONCE:
        text = f"{_BEGIN}{text}{_END}"
    return text + ASK if ask else text


def _pieces(update: CompositorUpdate) -> Iterator[tuple[int, int, Strip]]:
    """(row, column, strip) for each strip of a frame."""
    if isinstance(update, LayoutUpdate):
        for y, strips in enumerate(update.strips, update.region.y):
            x = update.region.x
            for strip in strips:
                yield y, x, strip
                x += strip.cell_length
    elif isinstance(update, ChopsUpdate):
        # Only the spans of a row are valid, because Textual renders only changed widgets.
        for y, left, right in update.spans:
            for x, strip in update.chops[y].items():
                if strip is not None and x < right and x + strip.cell_length > left:
                    yield y, x, strip


def _look(style: Style | None, colours: ColorSystem | None) -> Look:
    if style is None:
        return _NO_LOOK
    attributes = ";".join(code for name, code in _ATTRIBUTES.items() if getattr(style, name))
    return _codes(style.color, colours, True), _codes(style.bgcolor, colours, False), attributes


def _codes(colour: Color | None, colours: ColorSystem | None, foreground: bool) -> str:
    if colour is None or colours is None:
        return "39" if foreground else "49"
    return ";".join(colour.downgrade(colours).get_ansi_codes(foreground))


def _change(before: Look, after: Look) -> str:
    """The shortest SGR sequence that changes one look into another."""
    had, has = (set(filter(None, look[2].split(";"))) for look in (before, after))
    ends = {_ENDS[code] for code in had - has}
    begins = {code for code in has if code not in had or _ENDS[code] in ends}  # the code that ends bold also ends dim
    colours = [b for a, b in zip(before[:2], after[:2], strict=True) if a != b]
    anew = ["0", *sorted(has), *(code for code in after[:2] if code not in ("39", "49"))]
    codes = min([*sorted(ends), *sorted(begins), *colours], anew, key=lambda codes: len(";".join(codes)))
    return f"\x1b[{';'.join(codes)}m"
