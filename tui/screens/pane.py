"""The base class of a session's screens, which are panes of one widget. Each is created when it is first opened."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.css.query import NoMatches
from textual.widgets import ContentSwitcher

from tui.actions import SCREENS
from tui.session.state import Run, State
from tui.session.watched import Watched
from tui.widgets.beside import MANY
from tui.widgets.panel import Panel

CLASSES = {
    "tune": "tui.screens.tune:TunePane",
    "arms": "tui.screens.arms:ArmsPane",
    "checks": "tui.screens.checks:ChecksPane",
    "cluster": "tui.screens.cluster:ClusterPane",
    "experiments": "tui.screens.experiments:ExperimentsPane",
    "compare": "tui.screens.compare:ComparePane",
    "knowledge": "tui.screens.knowledge:KnowledgePane",
    "launch": "tui.screens.launch_screen:LaunchPane",
    "why": "tui.screens.why:WhyPane",
}


class Pane(Vertical):
    help: Mapping[str, str] = {}  # name of a panel → what it shows, in one line

    def __init__(self, session: Watched, id: str) -> None:
        super().__init__(id=id)
        self.session = session

    @property
    def state(self) -> State:
        return self.session.state

    @property
    def ascii(self) -> bool:
        return self.session.ascii_only

    @property
    def long(self) -> bool:
        """Whether there are so many experiments that computing with all of them would delay keys."""
        return len(self.state.runs) > MANY

    def on_mount(self) -> None:
        with suppress(NoMatches):  # the app was closed while this pane was being created
            self.ready()
        for panel in self.query(Panel):
            panel.takes_long = panel.takes_long or (lambda: self.long)
        for box in self.query("Input, TextArea"):
            box.cursor_blink = False  # type: ignore[attr-defined] - no output to the terminal while nothing happens

    def ready(self) -> None:
        """Called once the widgets exist."""

    def repaint(self) -> None:
        for panel in self.query(Panel):
            panel.repaint()

    # ---- methods that screens may override ----------------------------------------------------------------

    @property
    def selected(self) -> Run | None:
        """The experiment under the cursor."""
        return None

    @property
    def busy(self) -> bool:
        """Whether something is running that `cancel` can end."""
        return False

    def cancel(self) -> bool:
        """Ends what is running; False if nothing is."""
        return False

    def cycle(self) -> None:
        """Switches to the next view."""

    def unfold(self) -> None:
        """Shows truncated content completely."""

    def turn(self, pages: int) -> None:
        """Turns pages of a table."""


class Panes(ContentSwitcher):
    """All screens of a session; one of them is visible."""

    def __init__(self, session: Watched, first: str) -> None:
        super().__init__(initial=f"{first}-pane")
        self._session, self._first = session, first
        self._made: dict[str, Pane] = {}
        self._coloured: dict[str, str] = {}  # pane → the theme with which it was styled
        self._making = asyncio.Lock()

    def on_mount(self) -> None:
        self.app.theme_changed_signal.subscribe(self, lambda _: self._coloured_anew())

    def compose(self) -> ComposeResult:
        first = self._made[self._first] = self._new(self._first)
        yield first

    @property
    def shown(self) -> str:
        return (self.current or "").removesuffix("-pane")

    @property
    def pane(self) -> Pane:
        return self._made[self.shown or self._first]

    def made(self, key: str) -> Pane | None:
        return self._made.get(key)

    async def open(self, key: str) -> Pane:
        await self._make(key)
        self.current = f"{key}-pane"
        if self._coloured.get(key) != self.app.theme:  # Textual only restyles the visible pane
            self._coloured[key] = self.app.theme
            self.app.stylesheet.update(self.pane)
        return self.pane

    def _coloured_anew(self) -> None:
        """Records that a new theme was only applied to the visible pane; `open` restyles the other panes."""
        self._coloured = {self.shown: self.app.theme}

    async def prepare(self) -> bool:
        """Creates a pane that has not been opened yet, so that it will open quickly; False if there is none left."""
        key = next((key for key in SCREENS if key not in self._made), None)
        if key is not None:
            await self._make(key)
        return key is not None

    async def _make(self, key: str) -> None:
        async with self._making:
            if key not in self._made:
                pane = self._new(key)
                pane.display = False
                await self.mount(pane)
                self._coloured[key] = self.app.theme
                self._made[key] = pane  # after mounting, because other methods use the pane from now on

    def _new(self, key: str) -> Pane:
        module, _, name = CLASSES[key].partition(":")
        return getattr(import_module(module), name)(self._session, id=f"{key}-pane")
