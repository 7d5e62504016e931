"""The screen of `autoscout` without a verb: sessions and jobs, known machines and winners, and a form for a new job."""

import json
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from rich.text import Text
from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.dom import DOMNode
from textual.message import Message
from textual.screen import Screen
from textual.widgets import OptionList
from textual.widgets.option_list import Option
from textual.worker import get_current_worker

from kb.store import sessions_folder
from tui import actions
from tui.actions import Action
from tui.draw.at_home import job_line, known, session_line, winners
from tui.hygiene import plain_line
from tui.modals import Help, Options
from tui.screens.asking import AskedVerbs
from tui.screens.wizard import NewJob
from tui.session.house import JobFile, Seen, SessionsOfHouse, job_files
from tui.widgets.key_line import KeyLine
from tui.widgets.panel import Panel, TextLine
from tui.wired import Wired, prepare_environment

_AGAIN_S = 2.0  # polling interval of sessions, in seconds
_MACHINES = (
    "SELECT host, cluster, sum(measurements) AS measurements, max(last_ended) AS last_ended FROM periods "
    "GROUP BY ALL ORDER BY last_ended DESC LIMIT 20"
)
WINNERS = (
    "SELECT job, best, value, metric, gain, low, ended FROM sessions "
    "WHERE best IS NOT NULL AND low > 1 ORDER BY ended DESC LIMIT 20"  # low > 1: the gain is proven
)
_PANELS = {
    "sessions": "running and ended sessions; they continue when you close these screens",
    "jobs": "job files in this folder, then examples; a job is checked before it starts",
    "recent winners": "the best configurations of ended sessions whose gain is proven",
    "machines known": "where measurements come from",
}


class Looked(Message):
    def __init__(self, sessions: list[Seen], jobs: list[JobFile]) -> None:
        super().__init__()
        self.sessions, self.jobs = sessions, jobs


class Openable(Options):
    """A list whose lines can be opened; the footer shows the key for it."""

    BINDINGS = [Binding("enter", "select", "open"), Binding("tab", "app.focus_next", "other list")]


class HomeApp(Wired[Path]):
    """The home screen; its result is the journal of the session to open."""

    CSS_PATH = ["app.tcss", "home.tcss"]
    AUTO_FOCUS = ""
    BINDINGS = [*actions.HOME_BINDINGS]

    def __init__(self, kb: Path, folder: Path, ascii_only: bool = False) -> None:
        super().__init__(ascii_only)
        self.kb, self.folder, self.ascii = kb, folder, ascii_only
        self.verbs = AskedVerbs()
        self.sessions: list[Seen] = []
        self.jobs: list[JobFile] | None = None
        self._shown: dict[str, list[str]] = {}
        self._machines: list[dict[str, object]] | str = "reading …"
        self._winners: list[dict[str, object]] | str = "reading …"
        self._over: set[str] = set()  # sessions that had ended when the knowledge base was last queried

    def compose(self) -> ComposeResult:
        yield TextLine(id="headline")
        with Vertical(id="home"):
            yield Openable(id="sessions")
            yield Openable(id="jobs")
            with Horizontal(id="known"):
                yield Panel("recent winners", lambda w, h: winners(self._winners, w, h), "winners")
                yield Panel("machines known", lambda w, h: known(self._machines, w, h), "machines")
        yield KeyLine()

    def on_mount(self) -> None:
        where = f" AutoScout   knowledge base {plain_line(str(self.kb))}" + ("" if self.kb.exists() else " (empty)")
        self.query_one("#headline", TextLine).show(Text(where))
        self.query_one("#sessions", OptionList).border_title = "sessions"
        self.query_one("#jobs", OptionList).border_title = "jobs"
        self.run_worker(self._look, thread=True)

    def on_unmount(self) -> None:
        self.verbs.end()

    def _look(self) -> None:
        """Finds sessions and jobs; called in a thread, because disks may be slow."""
        worker, sessions, jobs = get_current_worker(), SessionsOfHouse(self.kb), job_files(self.folder)
        seen: tuple[list[Seen], list[JobFile]] | None = None
        while not worker.is_cancelled:
            if seen != (now := (sessions.look(), jobs)):
                seen = now
                self.post_message(Looked(*now))
            time.sleep(_AGAIN_S)
            jobs = job_files(self.folder)

    def on_looked(self, looked: Looked) -> None:
        self.sessions, self.jobs = looked.sessions, looked.jobs
        width = max(40, self.size.width - 6)
        lines = [session_line(s, width, self.ascii) for s in self.sessions]
        empty = "none yet; press n to create a job, or open one of the jobs below"
        self._fill("sessions", lines, empty)
        self._fill("jobs", [job_line(j, width) for j in self.jobs], "none")
        if len(self.screen_stack) == 1 and not self.focused:
            self.query_one("#sessions" if self.sessions else "#jobs").focus()
        over = {s.session for s in self.sessions if not s.alive}
        if self._machines == "reading …" or over != self._over:
            self._over = over
            self._ask()

    def _fill(self, which: str, lines: list[Text], empty: str) -> None:
        plain = [line.plain for line in lines]
        if plain == self._shown.get(which):
            return
        self._shown[which] = plain
        box = self.query_one(f"#{which}", OptionList)
        at = box.highlighted
        box.clear_options()
        box.add_options(lines or [Option(Text(empty, style="dim"), disabled=True)])
        if lines:
            box.highlighted = min(at or 0, len(lines) - 1)

    @work(exclusive=True, group="known")
    async def _ask(self) -> None:
        """Queries the knowledge base in separate processes."""
        found: dict[str, list[dict[str, object]] | str] = {
            "_machines": "nothing measured yet",
            "_winners": "no proven gain yet",
        }
        if self.kb.exists():
            for name, question in (("_winners", WINNERS), ("_machines", _MACHINES)):
                code, out, problem = await self.verbs.verb("sql", question, "--json", "--kb", str(self.kb))
                found[name] = (json.loads(out) or found[name]) if code == 0 else problem.strip()
        self._machines, self._winners = found["_machines"], found["_winners"]
        nothing = isinstance(self._machines, str) and isinstance(self._winners, str)
        self.query("#known").set_class(nothing, "-nothing")  # query_one() would fail if another screen is in front
        for panel in self.query(Panel):
            panel.repaint()

    # ---- actions -----------------------------------------------------------------------------------------

    @on(OptionList.OptionSelected)
    def _opened(self, selected: OptionList.OptionSelected) -> None:
        if selected.option_list.id == "sessions":
            self.exit(sessions_folder(self.kb) / self.sessions[selected.option_index].session / "journal.jsonl")
        elif self.jobs:
            self._new(self.jobs[selected.option_index].given)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disables the home screen's actions while a modal is open."""
        ours = action in ("new", "open", "move", "explain", "next_theme", "quit")
        return not ours or len(self.screen_stack) == 1

    def offered(self, screen: Screen[object]) -> Iterable[tuple[Action, DOMNode]]:
        if isinstance(screen, NewJob):
            return ((each, screen) for each in actions.WIZARD)
        return ((each, self) for each in actions.HOME if screen is self.screen_stack[0])

    def action_new(self) -> None:
        self._new("")

    def action_open(self) -> None:
        if isinstance(self.focused, OptionList):
            self.focused.action_select()

    def _new(self, job_file: str) -> None:
        self.push_screen(NewJob(self.kb, self.folder, self.ascii, job_file), self._started)

    def _started(self, journal: Path | None) -> None:
        if journal is not None:
            self.exit(journal)

    def action_move(self, by: int) -> None:
        if isinstance(self.focused, OptionList):
            (self.focused.action_cursor_down if by > 0 else self.focused.action_cursor_up)()

    def action_explain(self) -> None:
        self.push_screen(Help(_PANELS, [(actions.keys_of(a), a.says) for a in actions.HOME]))


def home(kb: Path, folder: Path, ascii_only: bool) -> None:
    """Shows the home screen, then the chosen session, then the home screen again, until that is closed."""
    from tui.app import watch
    from tui.session.follow import Follower

    prepare_environment()
    opened = partial(HomeApp, kb, folder, ascii_only)
    while (journal := opened().run()) is not None:
        watch(Follower(journal), kb, ascii_only)
