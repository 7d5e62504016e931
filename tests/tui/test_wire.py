"""What the terminal is sent: only what changed, and what it shows is what was drawn. And, as a process in a
pseudo-terminal: how much that is, and that a terminal that does not keep up gets less of it."""

import os
import re
import time
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pty_terminal import PtyScreens
from rich.cells import cell_len
from rich.console import RenderableType
from rich.segment import Segment
from rich.style import Style
from textual._compositor import CompositorUpdate, LayoutUpdate
from textual._context import visible_screen_stack
from textual.geometry import Region
from textual.screen import Screen
from textual.strip import Strip
from textual.widgets import Static

from tui import ascii
from tui.app import SessionApp
from tui.home import HomeApp
from tui.session.follow import Follower
from tui.wire import Canvas
from tui.wired import Wired

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "fixtures/recorded/tiny-gpt-session.jsonl"
SIZE = (20, 4)
_ORDER = re.compile(r"\x1b\[([\d;]*)([A-Za-z])|(.)", re.DOTALL)
STYLES = [
    "",
    "bold",
    "bold dim",
    "dim italic",
    "underline red",
    "red on blue",
    "bold red on blue",
    "#102030 on #405060",
    "dim reverse",
]
# The second half: of two columns, of none (accents, vowels, joiners, skin), and what terminals disagree on.
CHARACTERS = "ab ─│●…×⣀漢字אب" + "✅☰👩👧1❤\ufe0f\u20e3\u200d\u200b🏽e\u0301か\u3099\u1112\u1161ह\u093f"
_ENDED_BY = {"22": "12", "23": "3", "24": "4", "25": "5", "27": "7", "29": "9"}


class Shown:
    """What a terminal makes of the few orders that are sent: one (character, look) a cell. `opinion`: of how wide
    characters are; half of one that is overwritten leaves a blank."""

    def __init__(self, opinion: Callable[[str], int] = cell_len) -> None:
        self.cells = [[("#", "")] * SIZE[0] for _ in range(SIZE[1])]
        self.x = self.y = 0
        self.wide = opinion
        self.look: dict[str, str] = {}

    def take(self, sent: str) -> None:
        for order in _ORDER.finditer(sent):
            numbers, kind, character = order.groups()
            if kind == "H":
                self.y, self.x = (int(n) - 1 for n in numbers.split(";"))
            elif kind == "C":
                self.x += int(numbers or 1)
            elif kind == "G":
                self.x = int(numbers) - 1
            elif kind == "X":
                for x in range(self.x, self.x + int(numbers)):
                    self._write(x, " ", self._painted(" "))
            elif kind == "m":
                self._paint(numbers.split(";"))
            elif character == "\r":
                self.x = 0
            elif character == "\n":
                self.y += 1
            else:
                assert character is not None, order.group()
                if wide := self.wide(character):
                    self._write(self.x, character, self._painted(character), wide)
                    self.x = min(self.x + wide, SIZE[0] - 1)  # no line is wrapped
                else:
                    x = next(x for x in range(self.x - 1, -1, -1) if self.cells[self.y][x][0])
                    self.cells[self.y][x] = (self.cells[self.y][x][0] + character, self.cells[self.y][x][1])

    def _write(self, x: int, character: str, look: str, wide: int = 1) -> None:
        row = self.cells[self.y]
        if x + wide > SIZE[0]:  # it has no room
            return
        for half in range(x, x + wide):
            start = next(i for i in range(half, -1, -1) if row[i][0] or i == 0)
            end = next((i for i in range(half + 1, SIZE[0]) if row[i][0]), SIZE[0])
            for i in range(start, end if end - start > 1 and row[start][0] else start):
                row[i] = (" ", row[i][1])
        row[x : x + wide] = [(character, look), *[("", look)] * (wide - 1)]

    def _painted(self, character: str) -> str:
        """Of a blank neither the foreground nor how bold it is can be seen."""
        unseen = ("1", "2", "3", "38") if character == " " else ()
        return "".join(f"{k}{v}" for k, v in sorted(self.look.items()) if k not in unseen)

    def _paint(self, codes: list[str]) -> None:
        while codes:
            code = codes.pop(0)
            if code in ("38", "48"):
                rest = 4 if codes[0] == "2" else 2
                self.look[code] = ";".join([code, *codes[:rest]])
                del codes[:rest]
            elif code in ("0", ""):
                self.look.clear()
            elif code in ("39", "49"):
                self.look.pop("38" if code == "39" else "48", None)
            elif code in _ENDED_BY:
                for ended in _ENDED_BY[code]:
                    self.look.pop(ended, None)
            elif len(code) == 2:
                self.look["38" if code[0] == "3" else "48"] = code
            else:
                self.look[code] = ""


def frame(rows: list[list[tuple[str, str]]]) -> LayoutUpdate:
    """Of as many rows as there are, each filled up with blanks."""
    strips = [[Strip([Segment(t, Style.parse(s)) for t, s in row]).adjust_cell_length(SIZE[0])] for row in rows]
    return LayoutUpdate(strips, Region(0, 0, *SIZE))  # type: ignore[arg-type]


rows = st.lists(
    st.lists(st.tuples(st.text(CHARACTERS, min_size=1, max_size=9), st.sampled_from(STYLES)), max_size=4),
    min_size=SIZE[1],
    max_size=SIZE[1],
)


def narrow(character: str) -> int:
    """An old terminal, which knows no emoji and no widths that are new in Unicode 16."""
    return 1 if cell_len(character) == 2 and not "\u3041" <= character <= "\uffff" else cell_len(character)


def spacing(character: str) -> int:
    """One that gives vowels and the parts of a syllable columns of their own, as tmux does."""
    return 1 if character == "\u093f" else 2 if character in "🏽\u1161" else cell_len(character)


@pytest.mark.parametrize("opinion", [cell_len, narrow, spacing])
@given(st.lists(rows, min_size=1, max_size=5), st.booleans())
def test_the_terminal_shows_what_was_drawn_last(opinion, frames, erases):
    canvas, terminal = Canvas("truecolor", False), Shown(opinion)
    canvas.resize(*SIZE)
    for each in frames:
        canvas.put(frame(each))
        terminal.take(canvas.difference(erases))
    whole, anew = Canvas("truecolor", False), Shown(opinion)
    whole.resize(*SIZE)
    whole.put(frame(frames[-1]))
    anew.take(whole.difference())
    assert terminal.cells == anew.cells
    assert canvas.difference() == ""


@pytest.mark.parametrize("ascii_only", [False, True])
@pytest.mark.parametrize("opinion", [cell_len, narrow, spacing])
@given(st.text(CHARACTERS, min_size=1, max_size=9))
def test_what_follows_a_word_of_any_script_stays_in_its_column(opinion, ascii_only, word):
    canvas, terminal = Canvas(None, ascii_only), Shown(opinion)
    canvas.resize(*SIZE)
    canvas.put(frame([[(word, "")] * 2 + [("|", "")]] * SIZE[1]))
    terminal.take(canvas.difference())
    if (x := 2 * Segment(word).cell_length) < SIZE[0]:
        assert all(row[x][0] == "|" for row in terminal.cells)


@given(st.text("ab漢字✅", min_size=1, max_size=9), st.integers(0, 9), st.integers(1, 4))
def test_half_of_a_wide_character_that_is_covered_is_a_blank(word, x, wide):
    """What lies over a name, such as a message, is drawn alone: left and right of it nothing is drawn anew."""
    canvas, whole = Canvas(None, False), Canvas(None, False)
    for each in (canvas, whole):
        each.resize(*SIZE)
    under = Strip([Segment(word)]).adjust_cell_length(SIZE[0])
    left, _, right = under.divide([x, x + wide, SIZE[0]])
    canvas.put(frame([[(word, "")]] * SIZE[1]))
    canvas.put(LayoutUpdate([[Strip([Segment("#" * wide)])]] * SIZE[1], Region(x, 0, wide, SIZE[1])))  # type: ignore
    whole.put(LayoutUpdate([[left, Strip([Segment("#" * wide)]), right]] * SIZE[1], Region(0, 0, *SIZE)))  # type: ignore
    shown, expected = Shown(), Shown()
    shown.take(canvas.difference())
    expected.take(whole.difference())
    assert shown.cells == expected.cells


def test_one_cell_that_changed_is_sent_alone():
    canvas = Canvas("truecolor", False)
    canvas.resize(*SIZE)
    canvas.put(frame([[("12:34:56", "bold")]] * SIZE[1]))
    canvas.difference()
    canvas.put(frame([[("12:34:57", "bold")], *[[("12:34:56", "bold")]] * (SIZE[1] - 1)]))
    assert canvas.difference() == "\x1b[1;8H\x1b[1m7\x1b[0m"


class Parts(Wired[Any]):
    """What a terminal would be sent: a whole frame first, then the widgets that changed."""

    canvas: Canvas

    def _display(self, screen: Screen[object], renderable: RenderableType | None) -> None:
        if isinstance(renderable, CompositorUpdate):
            if self.canvas.size != self.size:
                self.canvas.resize(*self.size)
            self.canvas.put(renderable)

    def lost(self) -> str:
        """What the whole screen has beyond what its parts added up to."""
        canvas = deepcopy(self.canvas)
        canvas.difference()
        visible_screen_stack.set(self._background_screens)
        rows = [[strip] for strip in self.screen._compositor.render_strips()]
        canvas.put(LayoutUpdate(rows, Region(0, 0, *self.size)))  # type: ignore[arg-type]
        return canvas.difference()


class PartByPart(Parts, SessionApp):
    CSS_PATH = ROOT / "tui/app.tcss"

    def __init__(self, folder: Path) -> None:
        super().__init__(Follower(RECORDED), folder / "kb.duckdb")
        self.canvas = Canvas("truecolor", False)


class HomePartByPart(Parts, HomeApp):
    CSS_PATH = [ROOT / "tui/app.tcss", ROOT / "tui/home.tcss"]

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "kb.duckdb", folder)
        self.canvas = Canvas("truecolor", False)


@pytest.mark.thorough
async def test_frames_of_home_and_a_new_job_add_up_to_the_whole_screen(tmp_path, monkeypatch):
    """Also in other sizes, below messages and behind what is open."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    app = HomePartByPart(tmp_path)
    steps = "down tab down n g p tab right space tab right tab 4 tab 6 message 61x15 shift+tab 1 120x40 left escape"
    steps += " question_mark pagedown escape ctrl+p n e down escape t message 20x5 80x24 end pageup 1x1 pagedown k"
    async with app.run_test(size=(80, 24)) as pilot:
        for step in steps.split():
            if step == "message":
                app.notify("漢字 ✅ message", timeout=0.3, markup=False)
            elif step[0].isdigit() and "x" in step:
                await pilot.resize_terminal(*map(int, step.split("x")))
            else:
                await pilot.press(step)
            for _ in range(100):
                await pilot.pause(0.02)
                if app.canvas.size == app.size and app.lost() == "":
                    break
            assert app.lost() == "", step


async def test_frames_of_a_few_widgets_add_up_to_the_whole_screen(tmp_path, monkeypatch):
    """Where the tree alone changed, all of the SQL console beside it went blank, and stayed so."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    app = PartByPart(tmp_path)
    async with app.run_test(size=(120, 40)) as pilot:

        async def wait(until: Callable[[], bool]) -> None:
            for _ in range(400):
                await pilot.pause(0.05)
                if until():
                    break

        await wait(lambda: app.session.count > 1 and app.lost() == "")
        for key in ["}", "7", "escape", "tab", "down", "tab", "x", "escape", "5", "up", "4", "?", "escape"]:
            await pilot.press(key)
            if key == "7":
                await wait(lambda: "no knowledge base" in str(app.query_one("#asked", Static).render()))
            await pilot.pause(0.2)  # frames that follow
            await wait(lambda: app.lost() == "")
            assert app.lost() == "", f"after {key}"


@pytest.mark.parametrize("ascii_only", [False, True])
def test_nothing_that_a_terminal_obeys_is_sent_and_what_cannot_be_written_is_a_mark(ascii_only):
    canvas = Canvas(None, ascii_only)
    canvas.resize(*SIZE)
    canvas.put(frame([[("a\x1b]52;c;\x07b", ""), ("\u2500\x9b\x1bc\udcff", "")]]))
    sent = canvas.difference()
    assert "a]52;c;b" + ("-" if ascii_only else "─") + "c?" in sent
    sent.encode()
    assert not re.search("[\x00-\x09\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f]|\x1b(?!\\[)", sent)


@given(rows)
def test_where_there_is_only_ascii_nothing_else_is_sent_and_every_cell_stays_in_its_column(drawn):
    canvas, terminal = Canvas("standard", True), Shown()
    canvas.resize(*SIZE)
    canvas.put(frame(drawn))
    sent = canvas.difference()
    assert sent.isascii()
    terminal.take(sent)
    assert all(len(character) == 1 for row in terminal.cells for character, _ in row)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"TERM": "xterm-256color", "LANG": "C.UTF-8"}, False),
        ({"TERM": "screen-256color", "LANG": "en_US.utf8"}, False),
        ({"TERM": "xterm", "LANG": "de_DE.UTF-8", "LC_ALL": "C"}, True),
        ({"TERM": "xterm", "LANG": "de_DE.UTF-8", "LC_CTYPE": "POSIX"}, True),
        ({"TERM": "xterm"}, True),
        ({"TERM": "linux", "LANG": "C.UTF-8"}, True),
        ({"TERM": "screen", "LANG": "C.UTF-8"}, True),
    ],
)
def test_who_gets_ascii(environment, expected):
    assert ascii.needed(environment) is expected


@pytest.fixture
def screens():
    opened: list[PtyScreens] = []

    def opening(*arguments: str, size: tuple[int, int] = (120, 40), **environment: str) -> PtyScreens:
        opened.append(PtyScreens(*arguments, size=size, program=("-m", "tui.cli"), **environment))
        return opened[-1]

    yield opening
    for each in opened:
        if each.process.poll() is None:
            each.close()


@pytest.mark.thorough  # what draws any screen is tried above, one screen in test_bad_input.py
@pytest.mark.parametrize("environment", [{"LC_ALL": "C"}, {"TERM": "linux"}, {"TERM": "screen"}], ids=str)
def test_no_byte_beyond_ascii_on_any_screen(screens, environment):
    shown = screens("watch", str(RECORDED), **environment)
    shown.shows("experiments")
    for key in "1234568?":
        shown.press(key)
        shown.settle()
    shown.escape()
    shown.press("7")
    shown.settle()
    assert shown.close() == 0
    assert [c for c in shown.sent if c > 127] == []


def test_a_recorded_session_sends_little_for_keys_and_nothing_without(screens):
    shown = screens("watch", str(RECORDED))
    shown.shows("experiments")
    shown.settle()
    first = len(shown.sent)
    sizes = {}
    for key in "2345681":
        shown.press(key)
        sizes[key] = len(shown.settle(some=True))
    shown.press("{")
    step = len(shown.settle(some=True))
    assert first < 24_576
    assert max(sizes.values()) < 24_576
    assert 0 < step < 4096
    shown.settle()
    assert shown.read(3.0) == b""


def test_everything_is_drawn_anew_whatever_is_open(screens):
    """A key did nothing beside an open help or in a box."""
    shown = screens("watch", str(RECORDED))
    shown.shows("experiments")
    for key, seen in (("?", "the dashed line"), (":", "ry tp=2")):
        shown.press(key)
        shown.shows(seen)
        shown.settle()
        shown.press("\x0c")
        assert seen.encode() in shown.settle(within_s=30, some=True)
        shown.escape()


def test_a_terminal_that_takes_nothing_for_a_while_then_gets_the_newest_state_alone(screens):
    shown = screens("watch", str(RECORDED))
    shown.shows("experiments")
    shown.settle()
    shown.answers = False  # nothing is answered any more: as if all were still on its way
    for key in "{}" * 15:
        shown.press(key)
        time.sleep(0.02)
    kept_back = len(shown.read(1.0))
    shown.press("\x1b[?2026;2$y")
    assert kept_back < 4096  # one frame is on its way, the others wait
    assert len(shown.settle()) < 4096


def test_screens_end_with_their_terminal(screens):
    """Without a signal, as under setsid or nohup, they read the end of input for ever, at two thirds of a core."""
    shown = screens("watch", str(RECORDED))
    shown.settle()
    os.close(shown.ours)
    shown.ours = os.open(os.devnull, os.O_RDWR)
    shown.process.wait(240)
