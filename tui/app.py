"""The terminal UI of one session, which may be running, finished or recorded. Closing it does not end the session."""

import contextlib
import gc
import os
import threading
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from rich.text import Text
from textual.app import ComposeResult
from textual.dom import DOMNode
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input

from kb import dates
from kb.journal import Steered
from kb.orders import Order, parsed
from kb.records import AutoscoutError
from tui import actions
from tui.actions import Action
from tui.draw import panels
from tui.draw.winning_launch import command
from tui.feed import TICK_S, Measured, Read, follow, measure
from tui.modals import Choose, Help, Prompt, Sure
from tui.screens.pane import Pane, Panes
from tui.session.follow import Follower
from tui.session.remote import Remote
from tui.session.watched import Watched
from tui.widgets.key_line import KeyLine
from tui.widgets.panel import TextLine
from tui.wired import Wired, prepare_environment


class SessionApp(Wired[None]):
    CSS_PATH = "app.tcss"
    BINDINGS = [*actions.BINDINGS]

    def __init__(self, follower: Follower | Remote, kb: Path, ascii_only: bool = False) -> None:
        super().__init__(ascii_only)
        self.session = Watched(follower, kb, ascii_only)
        self.blank = True  # nothing is drawn until the journal has been read, unless that takes long
        self._panes = Panes(self.session, "tune")  # widgets are kept in attributes, because Textual's queries are slow
        self._headline, self._problem = TextLine(id="headline"), TextLine(id="problem")
        self._dirty = True
        self._prepared = False  # whether all screens have been created
        self._catching = False  # whether a timer will apply more past events to the state
        self._delivering = threading.Lock()  # held while an order is delivered

    @property
    def base(self) -> Screen[object]:
        """The bottom screen, which contains the panes."""
        return self.screen_stack[0]

    def compose(self) -> ComposeResult:
        yield self._headline
        yield self._problem
        yield self._panes
        yield KeyLine()

    def on_mount(self) -> None:
        self.run_worker(partial(follow, self.session, self.post_message), thread=True)
        self.run_worker(partial(measure, self.session, self.post_message), thread=True)
        self.set_interval(TICK_S, self._tick)

    # ---- incoming events ---------------------------------------------------------------------------------

    def on_read(self, read: Read) -> None:
        session = self.session
        for order in session.take(read.events):
            self._say(order)
        if session.share < 1.0 <= read.share:
            _keep_all()
        session.alive, session.tail, session.share = read.alive, read.tail, read.share
        session.problem, session.words = read.problem, read.words
        self._dirty = True
        if self.blank:
            self._draw()

    def _say(self, event: Steered) -> None:
        asked = " ".join([event.what, *(f"{n}={v}" for n, v in event.values.items())])
        if event.refused:
            self.notify(f"{asked} is refused: {event.refused}", severity="warning", timeout=10, markup=False)
        else:
            self.notify(f"{asked}: done", markup=False)

    async def _tick(self) -> None:
        """Draws what has changed since the last tick, and updates elapsed times once a second. When idle, creates a
        screen that has not been opened yet, so that it will open quickly."""
        session = self.session
        if not self._dirty:
            self.appear()
        if session.playing and session.replaying:
            self.action_step(1)
        runs = bool(session.alive) and session.live.ended is None
        if runs and dates.now() - session.live.now >= 1.0:
            self._dirty = True
        if self._dirty and (self.blank or self._pace.due()):
            self._draw()
        elif not self._prepared and self.is_running and self._pace.calm() and session.share >= 1.0:
            self._prepared = not await self._panes.prepare()
            if self._prepared:
                self.sheets.prepare()

    def on_measured(self, measured: Measured) -> None:
        session = self.session
        session.neighbours, session.orders = measured.neighbours, measured.orders
        session.measured(measured.readings)
        if self.shown == "cluster":
            self._dirty = True

    # ---- drawing -----------------------------------------------------------------------------------------

    def _draw(self) -> None:
        """Draws the panes once they are mounted; on a busy machine, the journal may be read before they are mounted."""
        if self._panes.is_mounted:
            self._dirty = False
            self.repaint()
            self.appear()

    def repaint(self) -> None:
        """Draws the visible pane; other panes are drawn when they are opened."""
        if not self._panes.is_mounted or not self.is_running:  # there are no widgets while the app closes
            return
        session = self.session
        if session.alive and session.live.ended is None:
            session.live.now = max(session.live.last, dates.now())
        stands = session.standing
        text = panels.headline(session.state, stands, self.size.width, session.ascii_only)
        if session.replaying:  # shown in the headline's line, so that the panes do not move
            at = Text(f" replay: event {session.folded:,} of {session.count:,} ", style="reverse")
            keys = Text(" [ ] { } step  space play  G now ", style="dim") if self.size.width >= 120 else Text("")
            text = Text.assemble(at, keys, text, no_wrap=True, overflow="ellipsis")
        if self.size.width < 80 or self.size.height < 24:
            text.append("\n 80×24 shows more" if not session.ascii_only else "\n 80x24 shows more", style="dim")
        self._headline.show(text)
        advice = session.problem or stands.advice
        self._problem.display = bool(advice)
        self._problem.show(Text(advice))
        self._panes.pane.repaint()

    # ---- screens and keys --------------------------------------------------------------------------------

    async def action_show(self, key: str) -> None:
        self.blank = True  # so that the whole screen is drawn as one frame
        pane = await self._panes.open(key)
        self.session.watching_devices = key == "cluster"
        self.call_after_refresh(self._opened, pane)
        # a text input gets the focus, so that typed letters do not trigger key bindings
        typed_in = pane.query("TextArea")
        self.set_focus(next((w for w in [*typed_in, *pane.query("Rows, Tree")] if w.focusable), None))
        self.refresh_bindings()

    def _opened(self, pane: Pane) -> None:
        pane.repaint()
        self.appear()

    @property
    def shown(self) -> str:
        return self._panes.shown

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if not self.is_running or not self._panes.children:
            return True
        if action == "leave":
            knowledge = self._panes.made("knowledge")
            return _typed_in(self.focused) or (knowledge is not None and knowledge.busy)
        given = ", ".join(repr(each) for each in parameters)
        return actions.acts(f"{action}({given})" if given else action, self.shown)

    def offered(self, screen: Screen[object]) -> Iterable[tuple[Action, DOMNode]]:
        return ((each, self) for each in actions.ACTIONS if actions.acts(each.does, self.shown))

    def action_explain(self) -> None:
        screens = (f"1 … {len(actions.SCREENS)}", "screens")
        keys = [screens, *((actions.keys_of(a), a.says) for a in actions.of_screen(self.shown))]
        self.push_screen(Help(self._panes.pane.help, keys))

    def action_copy(self) -> None:
        def write() -> None:  # runs in a thread, because it imports all of the export code
            self.call_later(self._copy, command(self.session.state))

        self.run_worker(write, thread=True)

    def _copy(self, line: str) -> None:
        if not line:
            self.notify("nothing measured yet")
            return
        self.copy_to_clipboard(line)
        file = self.session.follower.folder / "best.sh"
        try:
            file.write_text(line + "\n")
            self.notify(f"copied, and written to {file}", markup=False)
        except OSError as error:
            self.notify(f"copied; not written to {file}: {error.strerror}", markup=False)

    async def action_filter(self) -> None:
        await self.action_show("experiments")
        self.base.query_one("#filter", Input).focus()

    def action_mark(self) -> None:
        run = self._panes.pane.selected
        if run is None:
            return
        self.session.mark(run.configuration.id)
        self.notify(f"{len(self.session.marked)} marked to compare; press 6 to see them")

    def action_cycle(self) -> None:
        self._panes.pane.cycle()

    def action_unfold(self) -> None:
        self._panes.pane.unfold()

    def action_turn(self, pages: int) -> None:
        self._panes.pane.turn(pages)

    def action_move(self, by: int) -> None:
        focused = self.focused
        if focused is not None and hasattr(focused, "action_cursor_down"):
            (focused.action_cursor_down if by > 0 else focused.action_cursor_up)()  # type: ignore[attr-defined]

    def action_leave(self) -> None:
        knowledge = self._panes.made("knowledge")
        if knowledge is None or not knowledge.cancel():
            self.set_focus(None)

    # ---- orders, which the engine reads before its next experiment ----------------------------------------

    def action_pause(self) -> None:
        self._give("go" if self.session.live.paused else "pause")

    def action_stop(self) -> None:
        searched = self.session.live.searched
        kept = f"{searched} experiments are kept; the finalists are re-measured, then the session ends."
        self._give_if_sure(f"Stop this session? {kept}", "stop")

    def action_validate(self) -> None:
        self._give_if_sure("Run the configuration that simulators predict to be best, to check them?", "validate")

    def _selected_knobs(self) -> list[str]:
        """["tp=2", "sp=true", …] of the experiment under the cursor; [] if there is none."""
        run = self._panes.pane.selected
        if run is None:
            return []
        return [f"{n}={str(v).lower() if isinstance(v, bool) else v}" for n, v in run.configuration.knobs.items()]

    def action_retry(self) -> None:
        if knobs := self._selected_knobs():
            self._give_if_sure(f"Run {' '.join(knobs)} again?", "retry", knobs)

    def action_narrow(self, what: str) -> None:
        """Pins or excludes one knob value of the experiment under the cursor."""

        def chosen(knob: str | None) -> None:
            if knob:
                self._give(what, [knob])

        if knobs := self._selected_knobs():
            self.push_screen(Choose(f"{what} which value for the rest of the session?", knobs), chosen)

    def action_order(self) -> None:
        async def written(line: str | None) -> None:
            words = (line or "").split()
            if words and words[0] in actions.SCREENS:
                await self.action_show(words[0])
            elif words:
                self._give(words[0], words[1:])

        self.push_screen(Prompt.order(), written)

    def _give_if_sure(self, question: str, what: str, settings: list[str] | None = None) -> None:
        def answered(yes: bool | None) -> None:
            if yes:
                self._give(what, settings)

        self.push_screen(Sure(question), answered)

    def _give(self, what: str, settings: list[str] | None = None) -> None:
        if not self.session.alive:
            self.notify("this session is not running, so it takes no orders", severity="warning")
            return
        try:
            order = parsed(what, settings or [], f"screens, pid {os.getpid()}")
        except AutoscoutError as error:
            self.notify(str(error), severity="error", markup=False)
            return
        # Delivered in a thread, so that an unresponsive host blocks neither keys nor quitting.
        threading.Thread(target=self._deliver, args=[order], daemon=True).start()

    def _deliver(self, order: Order) -> None:
        """Delivers an order to the engine; called in a thread."""
        with self._delivering, contextlib.suppress(RuntimeError):  # the app may have closed meanwhile
            try:
                self.session.follower.give(order)
            except AutoscoutError as error:
                self.call_from_thread(self.notify, str(error), severity="error", markup=False)
            else:
                sentence = f"{order.what}: takes effect before the next experiment"
                self.call_from_thread(self.notify, sentence, markup=False)

    # ---- the time cursor ---------------------------------------------------------------------------------

    def _go(self, at: int) -> None:
        """Shows the state after `at` events. In a long journal this takes a while, with progress on the screen."""
        try:
            self.session.go(at)
            self._catch_up()
        except AutoscoutError as error:
            self.session.go_live()
            self.notify(str(error), severity="error", markup=False)

    def _catch_up(self) -> None:
        if not self.session.catch_up() and not self._catching:
            self._catching = True
            self.set_timer(0.02, self._go_on)
        self.repaint()

    def _go_on(self) -> None:
        self._catching = False
        _keep_all()
        self._go(self.session.cursor)

    def action_step(self, by: int) -> None:
        session = self.session
        self._go((session.cursor if session.replaying else session.count) + by)

    def action_play(self) -> None:
        if not self.session.replaying:
            self._go(0)
        self.session.playing = not self.session.playing

    def action_switch(self) -> None:
        """Shows the state when fidelity switched from simulating to profiling."""
        if self.session.switched_at is None:
            self.notify("this session never switched from simulating to profiling")
        else:
            self._go(self.session.switched_at)

    def action_rewind(self) -> None:
        self._go(1)

    def action_live(self) -> None:
        self.session.go_live()
        self.repaint()


def _keep_all() -> None:
    """Excludes the present objects from garbage collection, which would be slow with a long journal's events."""
    gc.freeze()
    gc.set_threshold(2000, 10, 1000)


def _typed_in(widget: Widget | None) -> bool:
    """Whether a widget is a text input; only these have a blinking cursor."""
    return hasattr(widget, "cursor_blink")


def watch(follower: Follower | Remote, kb: Path, ascii_only: bool) -> None:
    """Runs the screens until they are closed."""
    prepare_environment()
    SessionApp(follower, kb, ascii_only).run()
