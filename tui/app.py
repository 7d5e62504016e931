"""The terminal UI of one session: live, attached later, or replayed. It only reads; closing it stops nothing."""

import gc
import os
import time
from pathlib import Path
from typing import Literal

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.message import Message
from textual.screen import Screen
from textual.widgets import ContentSwitcher, Footer, Input
from textual.worker import get_current_worker

from autoscout.machine.telemetry import Meter, Reading
from kb.journal import AnyEvent, FidelitySwitched, Steered
from kb.orders import give, parsed
from kb.records import AutoscoutError
from kb.store import default_path
from tui.draw import panels
from tui.modals import Choose, Help, Prompt, Sure
from tui.screens.arms import ArmsPane
from tui.screens.checks import ChecksPane
from tui.screens.cluster import ClusterPane
from tui.screens.compare import ComparePane
from tui.screens.experiments import ExperimentsPane
from tui.screens.knowledge import KnowledgePane
from tui.screens.launch import LaunchPane, command
from tui.screens.pane import Pane
from tui.screens.tune import TunePane
from tui.session.follow import Follower
from tui.session.neighbours import Neighbours, look, waiting_orders
from tui.session.standing import Standing, standing
from tui.session.state import State, fold
from tui.widgets.panel import Line

TICK_S = 0.25
_KEPT_READINGS = 600
_PANES = (
    ("tune", "Tune", TunePane),
    ("arms", "Arms", ArmsPane),
    ("checks", "Checks", ChecksPane),
    ("cluster", "Cluster", ClusterPane),
    ("experiments", "Runs", ExperimentsPane),
    ("compare", "Compare", ComparePane),
    ("knowledge", "KB", KnowledgePane),
    ("launch", "Launch", LaunchPane),
)


class Read(Message):
    """What the follower found since the last time."""

    def __init__(self, alive: bool | None) -> None:
        super().__init__()
        self.events: list[AnyEvent] = []
        self.alive = alive
        self.tail: list[str] = []
        self.problem = ""
        self.words = ""  # the engine's last ones, of a session that broke off
        self.share = 1.0


class Measured(Message):
    """What the machine does."""

    def __init__(self, readings: dict[str, Reading], neighbours: Neighbours, orders: list[str]) -> None:
        super().__init__()
        self.readings, self.neighbours, self.orders = readings, neighbours, orders


class SessionApp(App[None]):
    CSS_PATH = "app.tcss"
    TITLE = "AutoScout"
    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (80, "-narrow"), (100, "-wide"), (160, "-widest")]
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (24, "-low"), (34, "-high")]
    BINDINGS = [
        *[Binding(str(i + 1), f"show('{key}')", name) for i, (key, name, _) in enumerate(_PANES)],
        Binding("question_mark", "explain", "help"),
        Binding("q", "quit", "close"),
        Binding("y", "copy", "copy", show=False),
        Binding("slash", "filter", "filter", show=False),
        Binding("m", "mark", "mark", show=False),
        Binding("c", "cycle", "next view to compare", show=False),
        Binding("n", "turn(1)", "next page", show=False),
        Binding("b", "turn(-1)", "page back", show=False),
        Binding("left_square_bracket,h", "step(-1)", "step back", show=False),
        Binding("right_square_bracket,l", "step(1)", "step", show=False),
        Binding("left_curly_bracket", "step(-20)", "20 back", show=False),
        Binding("right_curly_bracket", "step(20)", "20 on", show=False),
        Binding("space", "play", "play", show=False),
        Binding("f", "switch", "fidelity switch", show=False),
        Binding("home,g", "rewind", "start", show=False),
        Binding("end,G", "live", "now", show=False),
        Binding("j", "move(1)", show=False),
        Binding("k", "move(-1)", show=False),
        Binding("t", "next_theme", "theme", show=False),
        Binding("escape", "leave", show=False),
        Binding("p", "pause", "pause", show=False),
        Binding("S", "stop", "stop", show=False),
        Binding("v", "validate", "validate", show=False),
        Binding("r", "retry", "run again", show=False),
        Binding("P", "narrow('pin')", "pin", show=False),
        Binding("x", "narrow('exclude')", "exclude", show=False),
        Binding("colon", "order", "order", show=False),
    ]

    def __init__(self, follower: Follower, kb: Path, ascii_only: bool = False) -> None:
        super().__init__()
        self.follower = follower
        self.kb = kb
        self.ascii_only = ascii_only
        self.events: list[AnyEvent] = []
        self.live = State()
        self.past: State | None = None  # what is shown instead of `live` while a time cursor is set
        self.cursor = 0  # events that `past` has taken in
        self.playing = False
        self.alive: bool | None = None
        self.tail: list[str] = []
        self.marked: list[str] = []
        self.readings: dict[str, list[Reading]] = {}
        self.neighbours = Neighbours()
        self.orders: list[str] = []  # given, and not taken in yet
        self.share = 1.0  # of the journal that was read
        self.watching_devices = False
        self._problem = self._words = ""
        self._dirty = True
        self._kb_hint = "" if kb == default_path() else str(kb)

    @property
    def base(self) -> Screen[object]:
        """The screen with the panes, whatever lies over it."""
        return self.screen_stack[0]

    @property
    def state(self) -> State:
        return self.live if self.past is None else self.past

    def compose(self) -> ComposeResult:
        yield Line(id="headline")
        yield Line(id="problem")
        with ContentSwitcher(initial="tune-pane"):
            for key, _, pane in _PANES:
                yield pane(id=f"{key}-pane")
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        self.animation_level = "none"
        self.theme = os.environ.get("AUTOSCOUT_THEME", "textual-dark")
        self._follow()
        self._measure()
        self.set_interval(TICK_S, self._tick)

    # ---- following ---------------------------------------------------------------------------------------

    @work(thread=True)
    def _follow(self) -> None:
        """Off the screen's thread, since files may lie on a slow disk: reads, and says what changed."""
        worker, said = get_current_worker(), None
        while not worker.is_cancelled:
            read = self._look()
            if read.events or (read.alive, read.tail, read.problem) != said:
                said = read.alive, read.tail, read.problem
                self.post_message(read)
            if read.share >= 1.0 or not read.events:
                time.sleep(TICK_S)

    def _look(self) -> Read:
        read = Read(alive=self.alive)
        try:
            read.events = self.follower.more()
            read.share = self.follower.share() if read.events else 1.0
            read.alive = self.follower.alive()
            running = [run for run in list(self.live.running.values()) if run.folder]
            read.tail = self.follower.tail(running[-1].folder) if running else []
            if read.alive is False and (self.live.ended is None or self.live.ended.reason == "failed"):
                read.words = self.follower.last_words()
        except (AutoscoutError, OSError) as error:
            read.problem = str(error)
        return read

    def on_read(self, read: Read) -> None:
        at_start = not self.events or self.share < 1.0
        self.events += read.events
        for event in read.events:
            self.live.apply(event)
            if isinstance(event, Steered) and not at_start:
                self._say(event)
        if self.share < 1.0 <= read.share:
            gc.freeze()  # a long journal's events stay: going through them again and again would stop the screen
        self.alive, self.tail, self.share = read.alive, read.tail, read.share
        self._problem, self._words = read.problem, read.words
        self._dirty = True

    def _say(self, event: Steered) -> None:
        asked = " ".join([event.what, *(f"{n}={v}" for n, v in event.values.items())])
        if event.refused:
            self.notify(f"{asked} is refused: {event.refused}", severity="warning", timeout=10)
        else:
            self.notify(f"{asked}: done")

    def _tick(self) -> None:
        """Draws what came since the last tick; once a second also what only the clock changes."""
        if self.playing and self.past is not None:
            self.action_step(1)
        now = time.time()
        runs = bool(self.alive) and self.live.ended is None
        if runs and now - self.live.now >= 1.0:
            self._dirty = True
        if self._dirty:
            self._dirty = False
            self.repaint()

    @work(thread=True)
    def _measure(self) -> None:
        """The devices, once a second while their screen is open."""
        worker = get_current_worker()
        meter = Meter()
        while not worker.is_cancelled:
            if self.watching_devices:
                orders = waiting_orders(self.follower.folder, len(self.live.orders)) if self.alive else []
                self.post_message(Measured(meter.read(), look(self.kb), orders))
            time.sleep(1.0)

    def on_measured(self, measured: Measured) -> None:
        self.neighbours, self.orders = measured.neighbours, measured.orders
        for name, reading in measured.readings.items():
            history = self.readings.setdefault(name, [])
            history.append(reading)
            del history[:-_KEPT_READINGS]
        if self.base.query_one(ContentSwitcher).current == "cluster-pane":
            self._current().repaint()

    @property
    def standing(self) -> Standing:
        alive = self.alive if self.past is None else None
        return standing(self.state, alive, self.share, self._words, self._kb_hint)

    def repaint(self) -> None:
        """Draws the pane that is seen; the others draw when they are opened."""
        if not self.screen_stack or not self.base.query("#headline"):
            return
        if self.alive and self.live.ended is None:
            self.live.now = max(self.live.last, time.time())
        stands = self.standing
        text = panels.headline(self.state, stands, self.ascii_only)
        if self.past is not None:
            text.append(f"\n replay: event {self.cursor} of {len(self.events)}", style="reverse")
            text.append("  [ ] step  { } 20  space play  f switch  end now", style="dim")
        if self.size.width < 80 or self.size.height < 24:
            text.append("\n 80×24 shows more" if not self.ascii_only else "\n 80x24 shows more", style="dim")
        self.base.query_one("#headline", Line).show(text)
        advice = self._problem or stands.advice
        problem = self.base.query_one("#problem", Line)
        problem.display = bool(advice)
        problem.show(Text(advice))
        self._current().repaint()

    def _current(self) -> Pane:
        switcher = self.base.query_one(ContentSwitcher)
        return switcher.query_one(f"#{switcher.current}", Pane)

    # ---- screens and keys --------------------------------------------------------------------------------

    def action_show(self, key: str) -> None:
        self.base.query_one(ContentSwitcher).current = f"{key}-pane"
        self.watching_devices = key == "cluster"
        pane = self._current()
        self.call_after_refresh(pane.repaint)
        first = next((w for w in pane.query("Rows, Tree, TextArea") if w.focusable), None)
        self.set_focus(first)

    def action_explain(self) -> None:
        self.push_screen(Help(self._current().help))

    def action_copy(self) -> None:
        line = command(self.state)
        if not line:
            self.notify("nothing measured yet")
            return
        self.copy_to_clipboard(line)
        file = self.follower.folder / "best.sh"
        try:
            file.write_text(line + "\n")
            self.notify(f"copied, and written to {file}")
        except OSError as error:
            self.notify(f"copied; not written to {file}: {error.strerror}")

    def action_filter(self) -> None:
        self.action_show("experiments")
        self.base.query_one("#filter", Input).focus()

    def action_mark(self) -> None:
        run = self.base.query_one(ExperimentsPane).selected
        if run is None or self.base.query_one(ContentSwitcher).current != "experiments-pane":
            return
        key = run.configuration.id
        self.marked = [k for k in self.marked if k != key] if key in self.marked else [*self.marked, key]
        self.notify(f"{len(self.marked)} marked to compare; 6 shows them")

    def action_cycle(self) -> None:
        pane = self._current()
        if isinstance(pane, ComparePane):
            pane.cycle()

    def action_turn(self, pages: int) -> None:
        pane = self._current()
        if isinstance(pane, ExperimentsPane | KnowledgePane):
            pane.turn(pages)

    def action_move(self, by: int) -> None:
        focused = self.focused
        if focused is not None and hasattr(focused, "action_cursor_down"):
            (focused.action_cursor_down if by > 0 else focused.action_cursor_up)()  # type: ignore[attr-defined]

    def action_next_theme(self) -> None:
        self.theme = "textual-light" if self.theme == "textual-dark" else "textual-dark"

    def action_leave(self) -> None:
        if not self.base.query_one(KnowledgePane).cancel():
            self.set_focus(None)

    # ---- steering: orders, which the engine takes in before its next experiment -------------------------------

    def action_pause(self) -> None:
        self._give("go" if self.live.paused else "pause")

    def action_stop(self) -> None:
        def answered(yes: bool | None) -> None:
            if yes:
                self._give("stop")

        kept = f"{self.live.searched} experiments are kept; the finalists are re-measured, then the session ends."
        self.push_screen(Sure(f"Stop this session? {kept}"), answered)

    def action_validate(self) -> None:
        self._give("validate")

    def _selected_knobs(self) -> list[str]:
        """["tp=2", "sp=true", …] of the experiment under the cursor; [] where there is none."""
        run = self.base.query_one(ExperimentsPane).selected
        if run is None or self.base.query_one(ContentSwitcher).current != "experiments-pane":
            return []
        return [f"{n}={str(v).lower() if isinstance(v, bool) else v}" for n, v in run.configuration.knobs.items()]

    def action_retry(self) -> None:
        """The experiment under the cursor again."""
        if knobs := self._selected_knobs():
            self._give("retry", knobs)

    def action_narrow(self, what: str) -> None:
        """Pins or excludes one knob value of the experiment under the cursor."""

        def chosen(knob: str | None) -> None:
            if knob:
                self._give(what, [knob])

        if knobs := self._selected_knobs():
            self.push_screen(Choose(f"{what} which value for the rest of the session?", knobs), chosen)

    def action_order(self) -> None:
        def written(line: str | None) -> None:
            words = (line or "").split()
            keys = {key: key for key, _, _ in _PANES}
            if words and words[0] in keys:
                self.action_show(words[0])
            elif words:
                self._give(words[0], words[1:])

        self.push_screen(Prompt.order(), written)

    def _give(self, what: str, words: list[str] | None = None) -> None:
        if not self.alive:
            self.notify("this session does not run", severity="warning")
            return
        try:
            give(self.follower.folder, parsed(what, words or [], f"screens, pid {os.getpid()}"))
            self.notify(f"{what}: takes effect before the next experiment")
        except AutoscoutError as error:
            self.notify(str(error), severity="error")

    # ---- the time cursor ---------------------------------------------------------------------------------

    def action_step(self, by: int) -> None:
        at = (self.cursor if self.past is not None else len(self.events)) + by
        self._go(at)

    def action_play(self) -> None:
        if self.past is None:
            self._go(0)
        self.playing = not self.playing

    def action_switch(self) -> None:
        """To the moment when evaluation went over to profiling."""
        at = next((i for i, e in enumerate(self.events) if isinstance(e, FidelitySwitched)), None)
        if at is None:
            self.notify("the fidelity never switched")
        else:
            self._go(at + 1)

    def action_rewind(self) -> None:
        self._go(1)

    def action_live(self) -> None:
        self.past, self.playing = None, False
        self.repaint()

    def _go(self, at: int) -> None:
        at = max(0, min(len(self.events), at))
        if at == len(self.events) and (self.alive or self.playing):
            self.action_live()
            return
        if self.past is None or at < self.cursor:
            self.past = fold(self.events[:at])
        else:
            for event in self.events[self.cursor : at]:
                self.past.apply(event)
        self.cursor = at
        self.repaint()


def watch(follower: Follower, kb: Path, ascii_only: bool, colour: Literal["auto", "none"] = "auto") -> None:
    """Runs the screens until they are closed."""
    if colour == "none":
        os.environ["NO_COLOR"] = "1"
    os.environ.setdefault("TEXTUAL_FPS", "20")
    SessionApp(follower, kb, ascii_only).run()
