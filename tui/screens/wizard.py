"""The form for a new job: some questions, the cost of the session (updated while the user types), and a checked job
file. The job is checked by `autoscout check` and started by `autoscout tune`, each in a subprocess.
"""

import json
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from rich.text import Text
from textual import on, work
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import Screen
from textual.suggester import Suggester
from textual.timer import Timer
from textual.widgets import Button, Input, Static
from textual.worker import get_current_worker

from autoscout.job.device_names import kinds
from autoscout.job.presets import models
from autoscout.machine.devices_here import here
from autoscout.machine.new_job import Drafted, JobAnswers, ModelEngine, drafted, engines, write
from kb.records import AutoscoutError
from tui.actions import WIZARD_BINDINGS
from tui.draw.findings import findings
from tui.screens.asking import AskedVerbs, until_closed
from tui.widgets.key_line import KeyLine
from tui.widgets.one_of import Choice
from tui.widgets.panel import TextLine

_PAUSE_S = 0.5  # seconds without a key before a draft is checked
_NUMBERS = ("count", "length", "batch", "profiles")


class Paths(Suggester):
    """Suggests completions of files, folders and names of presets; the right arrow accepts one."""

    def __init__(self, folder: Path) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self.folder = folder

    async def get_suggestion(self, value: str) -> str | None:
        if not value.strip() or " " in value:
            return None
        if known := next((name for name in models() if name.startswith(value) and name != value), None):
            return known
        typed = Path(value).expanduser()
        parent, stem = (typed, "") if value.endswith("/") else (typed.parent, typed.name)
        try:
            names = sorted(p.name + "/" * p.is_dir() for p in (self.folder / parent).iterdir())
        except OSError:
            return None
        shown = [n for n in names if n.startswith(stem) and (n.endswith(("/", ".json", ".sh", ".sbatch", ".toml")))]
        shown = [n for n in shown if not n.startswith(".") or stem.startswith(".")]
        return value + shown[0][len(stem) :] if shown and shown[0] != stem else None


class NewJob(Screen[Path]):
    """The form; its result is the journal of the started session."""

    BINDINGS = [*WIZARD_BINDINGS]

    def __init__(self, kb: Path, folder: Path, ascii_only: bool, job_file: str = "") -> None:
        """`job_file`: an existing job file, which is only checked and started; "" for a new one."""
        super().__init__()
        self.kb, self.folder, self.ascii, self.job_file = kb, folder, ascii_only, job_file
        self.verbs, self._starts = AskedVerbs(), AskedVerbs()
        self.draft: Drafted | None = None
        self.engines: list[ModelEngine] = []
        self._drafts = tempfile.TemporaryDirectory(prefix="autoscout-draft-")
        self._due: Timer | None = None
        self._checked = ""  # the job file's text to which the check's result `_found` belongs
        self._found: list[dict[str, Any]] | None = None
        self._starting = False
        self._submitted = ""  # the draft when enter was last pressed in an input

    def compose(self) -> ComposeResult:
        yield TextLine(Text(f" {self.job_file or 'a new job'}", style="bold"), id="wizard-title")
        if not self.job_file:
            with Vertical(id="questions"):
                yield from self._questions()
        with VerticalScroll(id="expected", can_focus=False) as box:
            box.border_title = "before anything is spent"
            yield TextLine(id="findings")
        with Horizontal(id="go"):
            yield Button("start", id="start", compact=True)
            yield TextLine(id="said")
        yield KeyLine()

    def _questions(self) -> ComposeResult:
        def row(label: str, *widgets: Input | Choice | Static) -> Horizontal:
            return Horizontal(Static(label, classes="label"), *widgets, classes="question")

        def box(id: str, hint: str = "", value: str = "", kind: str = "integer") -> Input:
            return Input(value, placeholder=hint, id=id, compact=True, type=kind, classes="short")  # type: ignore[arg-type]

        hint = "config.json or its folder, a model's name, or your command of today"
        yield row("model", Input(placeholder=hint, id="source", compact=True, suggester=Paths(self.folder)))
        yield row("engine", Choice([], "engine", self.ascii), Static("", id="engine-found", classes="beside"))
        yield row("devices", Choice([], "device", self.ascii), Static("each", classes="word"), box("count"))
        yield row("tokens", box("length"), Static("batch", classes="word", id="batch-word"), box("batch"))
        limits = row("limits", Input(placeholder="ttft_p99_ms <= 500, tpot_p99_ms <= 50", id="limits", compact=True))
        limits.display = False
        yield limits
        yield row("budget", box("profiles", value="30"), Static("runs,", classes="word"), box("wall", "", "1h", "text"))

    def on_mount(self) -> None:
        if self.job_file:
            self.query_one("#start").focus()
            self._check(self._given)
        else:
            self.query_one("#source").focus()
            self._show_findings(Text(_known(), style="dim"))
            self._look_here()

    def on_unmount(self) -> None:
        self.verbs.end()
        self._drafts.cleanup()

    @work(thread=True)
    def _look_here(self) -> None:
        """Finds this machine's GPUs and engines; called in a thread, because drivers can be slow."""
        kind, count = here()
        found = engines(self.folder)
        if not get_current_worker().is_cancelled:
            self.app.call_from_thread(self._offer, kind, count, found)

    def _offer(self, kind: str, count: int, found: list[ModelEngine]) -> None:
        self.engines = found
        self._offer_engines("")
        self._offer_devices(kind)
        self.query_one("#count", Input).placeholder = str(count or 1)
        self._say_engine()
        self.answer()

    def _offer_engines(self, own: str) -> None:
        """Offers engines to choose from. `own`: the engine of a launch command, which is then the only one."""
        choice, offered = self.query_one("#engine", Choice), [own] if own else [e.name for e in self.engines]
        if choice.values != offered:
            choice.offer(offered)

    def _offer_devices(self, first: str) -> None:
        """Offers devices to choose from. `first`: the draft's kind of device, which is selected unless the user chooses
        another one."""
        choice = self.query_one("#device", Choice)
        if not choice.at and choice.value != first:
            choice.offer([first, *(k for k in kinds() if k != first)])

    # ---- answers -----------------------------------------------------------------------------------------

    @on(Input.Changed)
    @on(Choice.Turned)
    def answer(self) -> None:
        """Updates the draft at once, and checks it after a pause in typing."""
        self._say_engine()
        if self._due is not None:
            self._due.stop()
        try:
            answers = self._answers()
            self.draft = drafted(answers, self.folder) if answers.source else None
            notes = "" if self.draft is None else "\n".join(self.draft.notes)
        except AutoscoutError as error:
            self.draft, notes = None, str(error)
        if self.draft is None:
            typed = bool(self.query_one("#source", Input).value.strip())
            self._show_findings(Text(notes if typed else _known(), style="" if typed else "dim"))
        elif self.draft.text != self._checked:
            self._fill(self.draft)
            self._show_findings(Text("checking …", style="dim"))
            self._due = self.set_timer(_PAUSE_S, partial(self._check_draft, self.draft))

    def _answers(self) -> JobAnswers:
        words = {
            name: self.query_one(f"#{name}", Input).value.strip() for name in ("source", "limits", "wall", *_NUMBERS)
        }
        numbers = {name: int(words[name]) for name in _NUMBERS if words[name].isdigit()}
        choice, names = self.query_one("#engine", Choice), [e.name for e in self.engines]
        # `choice` may still list the engines of an earlier source
        engine = choice.value if choice.values == names else "".join(names[:1])
        python = next((e.python for e in self.engines if e.name == engine), "")
        numbers["profiles"] = numbers.get("profiles") or 30
        device = self.query_one("#device", Choice)
        chosen = device.value if device.at else ""
        return JobAnswers(source=words["source"], engine=engine, python=python, device=chosen, limits=words["limits"],
                       wall=words["wall"], **numbers)  # fmt: skip

    def _fill(self, draft: Drafted) -> None:
        """Shows the draft's defaults as placeholders in empty inputs."""
        traffic, nodes = draft.job.get("traffic", {}), draft.job["cluster"]["nodes"]
        serves = draft.job.get("task") == "serve"
        self._offer_engines(draft.job["target"] if draft.own else "")
        self._say_engine()
        self._offer_devices(nodes[0]["device"])
        self.query_one("#count", Input).placeholder = str(nodes[0]["count"])
        limits = self.query_one("#limits", Input)
        if limits.parent is not None:
            limits.parent.display = serves
        self.query_one("#length", Input).placeholder = str(traffic.get("input_len" if serves else "seq_len", ""))
        self.query_one("#batch", Input).placeholder = str(traffic.get("concurrency" if serves else "global_batch", ""))
        self.query_one("#batch-word", Static).update("users" if serves else "batch")
        self.query_one("#wizard-title", TextLine).show(Text(f" a new job: {draft.name}.toml", style="bold"))

    def _say_engine(self) -> None:
        chosen = self.query_one("#engine", Choice).value
        engine = next((e for e in self.engines if e.name == chosen), None)
        own = self.draft is not None and self.draft.own
        if own:
            self.query_one("#engine-found", Static).update(Text("your own launch line"))
        elif engine is not None:
            what = "serves" if engine.serves else "trains"
            self.query_one("#engine-found", Static).update(Text(f"{what}; {engine.missing or engine.found}"))

    # ---- check of the draft ------------------------------------------------------------------------------

    def _check_draft(self, draft: Drafted) -> None:
        file = Path(self._drafts.name) / f"{draft.name}.toml"
        file.write_text(draft.text)
        self._check(str(file), draft.text)

    @work(exclusive=True, group="check")
    @until_closed
    async def _check(self, file: str, text: str = "") -> None:
        self.verbs.end()
        self._found = None
        code, out, problem = await self.verbs.verb("check", file, "--json", "--kb", str(self.kb))
        if code < 0:
            return
        if not out.strip():
            self._starting = False
            self._show_findings(Text(problem.strip()))
            return
        found: list[dict[str, Any]] = json.loads(out)
        self._checked, self._found = text, found
        self._show_findings(findings(found, self.ascii))
        if self._starting:
            self.action_start()

    def _show_findings(self, text: Text) -> None:
        self.query_one("#findings", TextLine).show(text)

    def _say(self, text: str) -> None:
        self.query_one("#said", TextLine).show(Text(text))

    # ---- start -------------------------------------------------------------------------------------------

    @on(Input.Submitted)
    def _onwards(self) -> None:
        """Enter in an input moves the focus to "start"; a second enter starts, even before the focus has moved."""
        if self.draft is None:
            self._say("first enter a known model or command")
        elif self._submitted == self.draft.text:
            self.action_start()
        else:
            self._submitted = self.draft.text
            self.query_one("#start").focus()

    @on(Button.Pressed, "#start")
    def action_start(self) -> None:
        """Starts the session once the check of the present draft has passed."""
        text = "" if self.job_file else self.draft.text if self.draft else None
        if text is None:
            self._say("first enter a known model or command")
            self.query_one("#source").focus()
            return
        if self._found is None or text != self._checked:
            self._starting = True
            self._say("starts when the check has passed …")
            return
        self._starting = False
        if against := [f for f in self._found if f["needed"] and not f["ok"]]:
            self._say(f"cannot start: {against[0]['subject']}, see above")
            return
        self._say("starting …")
        self._start()

    @work(exclusive=True, group="start")
    @until_closed
    async def _start(self) -> None:
        try:
            file = self._given or str(self._written())
        except OSError as error:
            self._say(f"the job file cannot be written: {error.strerror}")
            return
        code, out, problem = await self._starts.verb("tune", file, "--detach", "--json", "--kb", str(self.kb))
        if code:
            self._say(problem.strip())
        else:
            self.dismiss(Path(json.loads(out)["journal"]))

    @property
    def _given(self) -> str:
        """The existing job file as an argument that is valid in any working directory."""
        return str(self.folder / self.job_file) if self.job_file.endswith(".toml") else self.job_file

    def _written(self) -> Path:
        """Writes the job file to the working directory, or if that is not writable, next to the knowledge base."""
        assert self.draft is not None
        try:
            return write(self.draft, self.folder)
        except PermissionError:
            fallback = self.kb.parent / "jobs"
            fallback.mkdir(parents=True, exist_ok=True)
            return write(self.draft, fallback)

    def action_back(self) -> None:
        self.dismiss()


def _known() -> str:
    return "models that are known by name:\n" + "\n".join(f"  {name}" for name in models())
