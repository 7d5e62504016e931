"""The base class of our apps, which sends frames with tui/wire.py: only changed cells, as fast as the terminal can."""

import os
import select
import signal
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TypeVar

from rich.console import RenderableType
from textual import events
from textual._compositor import CompositorUpdate
from textual.app import App, SystemCommand
from textual.dom import DOMNode
from textual.messages import TerminalSupportsSynchronizedOutput
from textual.screen import Screen
from textual.widgets import ContentSwitcher

from tui.actions import Action, keys_of
from tui.themes import Sheets, add_themes, next_theme
from tui.wire import Canvas, Pace, framed

Outcome = TypeVar("Outcome")
_LOOK_S = 2.0  # seconds between two checks whether the terminal still exists


class _Paper(Screen[None]):
    """The bottom screen of the app, below modals."""

    AUTO_FOCUS = ""  # each screen sets its own focus

    def _compositor_refresh(self) -> None:
        """Composes a frame, unless nothing should be drawn yet (`blank`)."""
        if not getattr(self.app, "blank", False):
            super()._compositor_refresh()


def prepare_environment() -> None:
    """Sets what Textual reads from the environment: the frame rate, and never a size, since the terminal may be
    resized."""
    os.environ.setdefault("TEXTUAL_FPS", "20")
    for name in ("COLUMNS", "LINES"):
        os.environ.pop(name, None)


def _seen(node: DOMNode) -> Iterator[DOMNode]:
    """The node and its descendants, without those that a ContentSwitcher hides."""
    yield node
    for child in node.children:
        if child.display or not isinstance(node, ContentSwitcher):
            yield from _seen(child)


class Wired(App[Outcome]):
    TITLE = "AutoScout"
    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (80, "-narrow"), (100, "-wide"), (160, "-widest")]
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (24, "-low"), (34, "-high")]

    def __init__(self, ascii_only: bool) -> None:
        super().__init__()
        self.blank = False  # whether no frames are composed, because the screen is incomplete
        self._canvas = Canvas(None if self.no_color else self.console.color_system, ascii_only)
        self._pace = Pace(sys.__stderr__.fileno() if sys.__stderr__ else 2)  # Textual draws on stderr
        self.sheets = Sheets(self)
        self._late = False  # whether a frame waits until the terminal is ready

    def on_mount(self) -> None:
        self.animation_level = "none"
        add_themes(self)
        if not self.is_headless and os.isatty(0):
            self.set_interval(_LOOK_S, self._end_with_the_terminal)

    def _end_with_the_terminal(self) -> None:
        """Sends SIGHUP to this process if the terminal no longer exists, since Textual does not notice that."""
        looked = select.poll()
        looked.register(0, select.POLLIN)
        if any(seen & (select.POLLHUP | select.POLLERR | select.POLLNVAL) for _, seen in looked.poll(0)):
            os.kill(os.getpid(), signal.SIGHUP)
            self.exit()

    def get_default_screen(self) -> Screen[None]:
        return _Paper(id="_default")

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The palette's commands: the screen's actions, without Textual's own commands."""
        for action, place in self.offered(screen):
            below = f"key {keys_of(action)}" + (f"; {action.verb}" if action.verb else "")
            yield SystemCommand(action.says, below, partial(self.run_action, action.does, place))

    def offered(self, screen: Screen[object]) -> Iterable[tuple[Action, DOMNode]]:
        """The actions of a screen, each with the object that has its method."""
        return ()

    def appear(self) -> None:
        """Shows what was drawn while the screen was blank, as one frame."""
        if self.blank:
            self.blank = False
            self.screen.refresh()

    def refresh_css(self, animate: bool = True) -> None:
        """Applies another theme to the visible widgets."""
        self.sheets.change()
        self.stylesheet.apply(self)
        for screen in self.screen_stack:
            self.stylesheet.update_nodes(_seen(screen), animate=animate)
            screen._css_update_count = self._css_update_count
        if self.screen.is_mounted:
            self.screen._refresh_layout(self.size)

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.InputEvent | events.Resize):
            self._pace.wanted()
        await super().on_event(event)
        if isinstance(event, events.Resize) and event.size == self._canvas.size:
            self._canvas.forget()  # a resize, or other programs while this one was stopped, changed the terminal
            self._send()

    def on_terminal_supports_synchronized_output(self, _: TerminalSupportsSynchronizedOutput) -> None:
        """The terminal answered the query at the end of a frame, so it has processed that frame."""
        self._pace.answered()
        self._send()

    def action_next_theme(self) -> None:
        next_theme(self)

    def action_redraw(self) -> None:
        """Redraws the whole screen, for example after other programs wrote to the terminal."""
        self._canvas.forget()
        self.screen.refresh()

    def _display(self, screen: Screen[object], renderable: RenderableType | None) -> None:
        """Overrides Textual's method, which sends whole widgets, to send only changed cells."""
        if self.is_headless or not isinstance(renderable, CompositorUpdate):
            super()._display(screen, renderable)
            return
        if self._batch_count:
            return
        if self._canvas.size != self.size:
            self._canvas.resize(*self.size)
        self._canvas.put(renderable)
        self._send()
        self.post_display_hook()

    def _send(self) -> None:
        if self._driver is None or not self._running or self._closed:
            return
        if not self._pace.ready():
            if not self._late:
                self._late = True
                self.set_timer(0.05, self._send_late)
            return
        if changes := self._canvas.difference(erases=self._pace.answers):
            cursor = self.screen.outer_size.clamp_offset(self.cursor_position)
            frame = framed(changes, cursor, self._sync_available, ask=self._pace.answers)
            self._driver.write(frame)
            self._driver.flush()
            self._pace.sent(len(frame.encode(errors="replace")))

    def _send_late(self) -> None:
        self._late = False
        self._send()
