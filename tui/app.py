"""The terminal UI of one session: live, attached later, or replayed. It only reads; closing it stops nothing."""

import os
import time
from pathlib import Path
from typing import Literal

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen, Screen
from textual.widgets import ContentSwitcher, DataTable, Footer, Input, Static

from kb.journal import AnyEvent, FidelitySwitched
from kb.orders import MEANING, give, parsed
from kb.records import AutoscoutError
from tui import telemetry
from tui.draw import panels
from tui.follow import Follower
from tui.screens.arms import ArmsPane
from tui.screens.checks import ChecksPane
from tui.screens.cluster import ClusterPane
from tui.screens.compare import ComparePane
from tui.screens.experiments import ExperimentsPane
from tui.screens.knowledge import KnowledgePane
from tui.screens.launch import LaunchPane, command
from tui.screens.pane import Pane
from tui.screens.tune import TunePane
from tui.state import State, fold
from tui.telemetry import Reading

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


class SessionApp(App[None]):
    CSS_PATH = "app.tcss"
    TITLE = "AutoScout"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide"), (160, "-widest")]
    VERTICAL_BREAKPOINTS = [(0, "-low"), (34, "-high")]
    BINDINGS = [
        *[Binding(str(i + 1), f"show('{key}')", name) for i, (key, name, _) in enumerate(_PANES)],
        Binding("question_mark", "explain", "help"),
        Binding("q", "quit", "close"),
        Binding("y", "copy", "copy", show=False),
        Binding("slash", "filter", "filter", show=False),
        Binding("m", "mark", "mark", show=False),
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
        Binding("r", "retry", "try again", show=False),
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
        self._counters = (0, 0)
        self._problem = ""
        self._reading = False

    @property
    def base(self) -> Screen[object]:
        """The screen with the panes, whatever lies over it."""
        return self.screen_stack[0]

    @property
    def state(self) -> State:
        return self.live if self.past is None else self.past

    def compose(self) -> ComposeResult:
        yield Static(id="headline")
        yield Static(id="problem")
        with ContentSwitcher(initial="tune-pane"):
            for key, _, pane in _PANES:
                yield pane(id=f"{key}-pane")
        yield Footer(compact=True)

    def on_mount(self) -> None:
        self.animation_level = "none"
        self.theme = os.environ.get("AUTOSCOUT_THEME", "textual-dark")
        self.set_interval(TICK_S, self._tick)
        self.set_interval(1.0, self._measure_machine)
        self._tick()

    # ---- following ---------------------------------------------------------------------------------------

    def _tick(self) -> None:
        if not self._reading:
            self._reading = True
            self._read()
        if self.playing and self.past is not None:
            self.action_step(1)

    @work(thread=True)
    def _read(self) -> None:
        """Off the screen's thread: files may lie on a slow disk."""
        problem, found, alive, tail = "", [], self.alive, self.tail
        try:
            found = self.follower.more()
            alive = self.follower.alive()
            running = [run for run in self.live.running.values() if run.folder]
            tail = self.follower.tail(running[-1].folder) if running else []
            failed = self.live.ended is not None and self.live.ended.reason == "failed"
            if failed or (alive is False and self.live.ended is None):
                problem = self.follower.last_words()
        except (AutoscoutError, OSError) as error:
            problem = str(error)
        self.call_from_thread(self._take, found, alive, tail, problem)

    def _take(self, found: list[AnyEvent], alive: bool | None, tail: list[str], problem: str) -> None:
        self._reading = False
        self.events += found
        for event in found:
            self.live.apply(event)
        self.alive, self.tail, self._problem = alive, tail, problem
        if alive and self.live.ended is None:
            self.live.now = max(self.live.last, time.time())
        self.repaint()

    def _measure_machine(self) -> None:
        if self.base.query_one(ContentSwitcher).current != "cluster-pane":
            return
        now, self._counters = telemetry.read(self._counters)
        for name, reading in now.items():
            history = self.readings.setdefault(name, [])
            history.append(reading)
            del history[:-_KEPT_READINGS]

    def repaint(self) -> None:
        """Draws the pane that is seen; the others draw when they are opened."""
        if not self.screen_stack or not self.base.query("#headline"):
            return
        headline = self.base.query_one("#headline", Static)
        width = self.size.width
        text = panels.headline(self.state, width, self.alive if self.past is None else None, self.ascii_only)
        if self.past is not None:
            text.append(f"\n replay: event {self.cursor} of {len(self.events)}", style="reverse")
            text.append("  [ ] step  { } 20  space play  f switch  end now", style="dim")
        headline.update(text)
        problem = self.base.query_one("#problem", Static)
        problem.display = bool(self._problem)
        problem.update(Text(self._problem))
        self._current().repaint()

    def _current(self) -> Pane:
        switcher = self.base.query_one(ContentSwitcher)
        return switcher.query_one(f"#{switcher.current}", Pane)

    # ---- screens and keys --------------------------------------------------------------------------------

    def action_show(self, key: str) -> None:
        self.base.query_one(ContentSwitcher).current = f"{key}-pane"
        pane = self._current()
        self.call_after_refresh(pane.repaint)
        first = next((w for w in pane.query("DataTable, Tree, TextArea") if w.focusable), None)
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

    def action_turn(self, pages: int) -> None:
        if self.base.query_one(ContentSwitcher).current == "experiments-pane":
            self.base.query_one(ExperimentsPane).turn(pages)

    def action_move(self, by: int) -> None:
        focused = self.focused
        if isinstance(focused, DataTable):
            (focused.action_cursor_down if by > 0 else focused.action_cursor_up)()
        elif focused is not None and hasattr(focused, "action_cursor_down"):
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

    def action_retry(self) -> None:
        """The selected experiment's configuration again, if it is not known already."""
        run = self.base.query_one(ExperimentsPane).selected
        if run is not None and self.base.query_one(ContentSwitcher).current == "experiments-pane":
            self._give(
                "try",
                [f"{n}={str(v).lower() if isinstance(v, bool) else v}" for n, v in run.configuration.knobs.items()],
            )

    def action_order(self) -> None:
        def written(line: str | None) -> None:
            words = (line or "").split()
            keys = {key: key for key, _, _ in _PANES}
            if words and words[0] in keys:
                self.action_show(words[0])
            elif words:
                self._give(words[0], words[1:])

        self.push_screen(Prompt(), written)

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


class Help(ModalScreen[None]):
    BINDINGS = [Binding("escape,question_mark,q", "dismiss", "back")]

    def __init__(self, about: str) -> None:
        super().__init__()
        self.about = about

    def compose(self) -> ComposeResult:
        text = Text()
        text.append(f"{self.about}\n\n", style="bold")
        for keys, meaning in _KEYS:
            text.append(f"  {keys:<12}", style="bold").append(f"{meaning}\n")
        with Vertical(classes="box"):
            yield Static(text)


class Sure(ModalScreen[bool]):
    """Asks once."""

    BINDINGS = [Binding("y", "dismiss(True)", "yes"), Binding("n,escape,q", "dismiss(False)", "no")]

    def __init__(self, question: str) -> None:
        super().__init__()
        self.question = question

    def compose(self) -> ComposeResult:
        with Vertical(classes="box"):
            yield Static(f"{self.question}\n\ny yes   n no")


class Prompt(ModalScreen[str]):
    """One line: an order with its values, or the name of a screen."""

    BINDINGS = [Binding("escape", "dismiss", "back")]

    def compose(self) -> ComposeResult:
        with Vertical(classes="box"):
            yield Input(placeholder="try tp=2 mbs=4", id="order")
            yield Static("\n".join(f"{what:<8} {meaning}" for what, meaning in MEANING.items()))

    def on_input_submitted(self, submitted: Input.Submitted) -> None:
        self.dismiss(submitted.value)


_KEYS = (
    ("1 … 8", "screens"),
    ("/", "filter the experiments"),
    ("j k enter", "down, up, open"),
    ("n b", "next page, page back"),
    ("m", "mark an experiment to compare"),
    ("y", "copy the best configuration's command"),
    ("[ ] { }", "step back and on in time, by 1 or 20 events"),
    ("space", "play the session from its beginning"),
    ("f", "jump to the switch from simulating to profiling"),
    ("g G", "the beginning, and now"),
    ("p", "pause, and go on"),
    ("S", "stop after asking: the finalists are still re-measured"),
    ("r", "run the selected configuration (again)"),
    (":", "any order: try, pin, exclude, budget, profile …, or a screen's name"),
    ("t", "light or dark"),
    ("ctrl+p", "all commands"),
    ("q", "close; the session goes on"),
)


def watch(follower: Follower, kb: Path, ascii_only: bool, colour: Literal["auto", "none"] = "auto") -> None:
    """Runs the screens until they are closed."""
    if colour == "none":
        os.environ["NO_COLOR"] = "1"
    os.environ.setdefault("TEXTUAL_FPS", "20")
    SessionApp(follower, kb, ascii_only).run()
