"""The screen "knowledge": the knowledge base's tables and views, a SQL console, and the result of a query.

Queries run in an `autoscout sql` subprocess, so that this process does not open the file, and a query can be cancelled.
"""

import asyncio
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.text import Text
from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.widgets import DataTable, Static, Tree

from kb import lock
from kb.choices import choose
from kb.connect import lock_path
from kb.records import AutoscoutError
from kb.similar import FAR
from tui.draw.answers import of_answer, record
from tui.modals import Choose, Full, Prompt
from tui.screens.asking import AskedVerbs, until_closed
from tui.screens.pane import Pane
from tui.session.questions import ten_questions
from tui.session.remembered import remember, remembered
from tui.text import number
from tui.widgets.sql_box import FIRST, Console

PAGE = 200
_AGAIN_S = 2.0  # seconds between two attempts while the file is locked
_FORMATS = {".csv": "csv", ".json": "json", ".parquet": "parquet", ".md": "markdown", ".txt": "table"}
# Views come before tables, because users usually query views.
_SCHEMA = (
    "SELECT c.table_name, c.column_name, c.data_type FROM information_schema.columns AS c "
    "JOIN information_schema.tables AS t USING (table_schema, table_name) WHERE table_schema = 'main' "
    "ORDER BY t.table_type != 'VIEW', c.table_name, c.ordinal_position"
)
_FUNCTIONS = "SELECT DISTINCT function_name FROM duckdb_functions() WHERE regexp_matches(function_name, '^[a-z]\\w+$')"
_HINT = "ctrl+j runs  tab completes  ctrl+r history  ctrl+g chart  ctrl+s saves  ctrl+e exports  ctrl+o contents"
_BUSY = re.compile("is in use by|is open in")
_LATEST = {"What ran last?": "SELECT job, name, status, step_time_s, cost_s FROM runs ORDER BY ended DESC"}
_RECALLED = 50  # number of earlier queries that the history offers


class Contents(Tree[Any]):
    """A tree of questions, similar jobs and the schema. A leaf holds SQL, or a job of `autoscout similar --json`."""

    BINDINGS = [
        Binding("a", "decide(True)", "accept", show=False),
        Binding("x", "decide(False)", "reject", show=False),
    ]

    def action_decide(self, accepted: bool) -> None:
        node = self.cursor_node
        if node is not None and isinstance(node.data, dict):
            self.screen.query_one(KnowledgePane).decide(node.data, accepted)


class KnowledgePane(Pane):
    help = {
        "contents": "questions, similar jobs and all tables; enter asks; a accepts a similar job, x rejects it",
        "question": "SQL; ctrl+j runs it, tab completes, ctrl+r lists earlier ones, escape cancels, ctrl+s saves",
        "answer": "enter on a row shows all of it; ctrl+g draws, ctrl+e exports all rows, n and b turn pages",
    }
    BINDINGS = [Binding("ctrl+o", "contents", "contents", show=False)]

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield Contents("knowledge base", id="schema")
            with Vertical(id="asking"):
                yield Console()
                yield Static("", id="asked")
                yield DataTable(id="answer", zebra_stripes=True, cursor_type="row")

    def ready(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._history = remembered("sql_history.json", [])
        self._questions: dict[str, str] = remembered("sql_questions.json", {})
        self._place = len(self._history)
        self._asked, self._page = "", 0
        self._rows: list[dict[str, Any]] = []
        self._opened = False
        self._verbs = AskedVerbs()
        self._say(_HINT)

    def on_unmount(self) -> None:
        self._verbs.end()

    def repaint(self) -> None:
        super().repaint()
        if not self._opened:
            self._opened = True
            self._read_contents()

    def on_console_wanted(self, wanted: Console.Wanted) -> None:
        match wanted.what:
            case "run":
                self.ask(wanted.sql)
            case "save":
                self.save(wanted.sql)
            case "export":
                self.export(wanted.sql)
            case "earlier":
                self.recall(-1)
            case "history":
                self.choose_from_history()
            case "chart":
                self.chart()
            case _:
                self.recall(1)

    def ask(self, sql: str) -> None:
        if sql.strip():
            self._history = [*[h for h in self._history if h != sql], sql]
            self._place = len(self._history)
            remember("sql_history.json", self._history[-200:])
            self._asked, self._page = sql, 0
            self._run()

    def turn(self, pages: int) -> None:
        if self._asked and self._page + pages >= 0:
            self._page += pages
            self._run()

    def recall(self, step: int) -> None:
        if self._history:
            self._place = max(0, min(len(self._history) - 1, self._place + step))
            self.query_one(Console).text = self._history[self._place]

    def choose_from_history(self) -> None:
        asked = [*reversed(self._history)][:_RECALLED]
        lines = [" ".join(sql.split()) for sql in asked]

        def chosen(line: str | None) -> None:
            if line:
                self.query_one(Console).text = asked[lines.index(line)]

        if asked:
            self.app.push_screen(Choose("asked before", lines), chosen)

    def chart(self) -> None:
        width, height = max(40, self.app.size.width - 10), max(8, self.app.size.height - 8)
        self.app.push_screen(Full("chart", of_answer(self._rows, width, height, self.ascii)))

    @property
    def busy(self) -> bool:
        """Whether a query is running."""
        return self._process is not None and self._process.returncode is None

    def cancel(self) -> bool:
        """Terminates the running query; False if there is none."""
        if self._process is None or not self.busy:
            return False
        self._process.terminate()
        return True

    def save(self, sql: str) -> None:
        def named(name: str | None) -> None:
            if name and name.strip():
                self._questions[name.strip()] = sql
                remember("sql_questions.json", self._questions)
                self._fill_questions()
                self.app.notify(f"saved as '{name.strip()}'", markup=False)

        if sql.strip():
            self.app.push_screen(Prompt("a name for this query"), named)

    def export(self, sql: str) -> None:
        def named(name: str | None) -> None:
            if name and name.strip():
                self._write(sql, Path(name.strip()).expanduser())

        if sql.strip():
            free = next(name for i in range(1, 10_000) if not Path(name := f"answer{i if i > 1 else ''}.csv").exists())
            self.app.push_screen(Prompt(free, f"all rows, as {' '.join(_FORMATS)}; enter writes", free), named)

    def action_contents(self) -> None:
        self.toggle_class("-contents")
        (self.query_one(Contents) if self.has_class("-contents") else self.query_one(Console)).focus()

    # ---- queries -----------------------------------------------------------------------------------------

    def _say(self, text: str) -> None:
        self.query_one("#asked", Static).update(Text(text))

    @work(exclusive=True, group="question")
    @until_closed
    async def _run(self) -> None:
        self._say("running … escape cancels")
        began = asyncio.get_running_loop().time()
        offset = self._page * PAGE
        code, out, problem = await self._sql(self._asked, self._say, "--offset", str(offset), question=True)
        took = asyncio.get_running_loop().time() - began
        table = self.query_one(DataTable)
        table.clear(columns=True)
        if code < 0:
            self._say("cancelled")
        elif code:
            self._say(problem.strip())
        else:
            rows = self._rows = json.loads(out)
            if rows:
                table.add_columns(*map(Text, rows[0]))
                table.add_rows([[_cell(v) for v in row.values()] for row in rows])
            more = "--limit shows more" in problem
            turn = f"rows {offset + 1:,}–{offset + len(rows):,}  n b turn pages" if more or offset else ""
            self._say(f"{turn or f'{len(rows)} row' + 's' * (len(rows) != 1)}  in {took:.2f} s    {_HINT}")

    @work(group="export")
    @until_closed
    async def _write(self, sql: str, file: Path) -> None:
        form = _FORMATS.get(file.suffix.lower())
        if form is None:
            self._say(f"{file}: the file name must end in one of {' '.join(_FORMATS)}")
            return
        everything = ("--format", form, "--out", str(file), "--limit", "1000000000")
        code, _, problem = await self._run_verb("sql", sql, *everything, on_wait=self._say)
        self.app.notify(problem.strip() if code else f"{file}: {problem.strip()}", markup=False)

    @work(group="contents")
    @until_closed
    async def _read_contents(self) -> None:
        tree = self.query_one(Contents)
        self._branches = {
            "questions": tree.root.add("questions", expand=True),
            "similar": tree.root.add("similar jobs: warm start", expand=True),
        }
        tree.root.expand()
        self._fill_questions()
        code, out, problem = await self._sql(_SCHEMA, self._say, limit=5000)
        if code:
            self._say(problem.strip())
            return
        tables: dict[str, list[tuple[str, str]]] = {}
        for row in json.loads(out):
            tables.setdefault(row["table_name"], []).append((row["column_name"], row["data_type"]))
        for name, columns in tables.items():
            branch = tree.root.add(Text(name), data=f"FROM {name}")
            for column, kind in columns:
                branch.add_leaf(Text(f"{column} {kind}"), data=f"SELECT {column} FROM {name}")
        console = self.query_one(Console)
        console.vocabulary[:0] = [*tables, *sorted({c for columns in tables.values() for c, _ in columns})]
        code, out, _ = await self._sql(_FUNCTIONS, self._say, limit=5000)
        if not code:
            console.vocabulary += [row["function_name"] for row in json.loads(out)]
        if not self._asked and self.query_one(Console).text == FIRST:
            self._asked = FIRST
            self._run()
        await self._read_similar()

    def _fill_questions(self) -> None:
        branch = self._branches["questions"]
        branch.remove_children()
        job = self.state.job
        known = ten_questions(job.name, job.objective.metric) if job is not None else {}
        for name, sql in {**self._questions, **known, **_LATEST}.items():
            branch.add_leaf(Text(name), data=sql)

    async def _sql(
        self, sql: str, on_wait: Callable[[str], None], *more: str, limit: int = PAGE, question: bool = False
    ) -> tuple[int, str, str]:
        return await self._run_verb(
            "sql", sql, "--json", "--limit", str(limit), *more, on_wait=on_wait, question=question
        )

    async def _run_verb(
        self, *arguments: str, on_wait: Callable[[str], None], question: bool = False
    ) -> tuple[int, str, str]:
        """Runs a verb; returns its exit code (< 0: cancelled), stdout and stderr. While another process has locked the
        knowledge base, shows which one and tries again."""
        kb = self.session.kb
        while True:
            process = await self._verbs.start(*arguments, "--kb", str(kb))
            if question:
                self._process = process
            talk = asyncio.ensure_future(self._verbs.outcome(process))
            while not (await asyncio.wait({talk}, timeout=0.5))[0]:
                if holder := lock.who(lock_path(kb)):
                    on_wait(f"{kb.name} is in use by {holder}; waiting, escape cancels")
            code, out, problem = await talk
            if code != 1 or not _BUSY.search(problem):
                return code, out, problem
            on_wait(f"{problem.strip().split(';')[0]}; trying again, escape cancels")
            await asyncio.sleep(_AGAIN_S)
            if question and self._process is not process:
                return -1, "", ""

    # ---- similar jobs ------------------------------------------------------------------------------------

    async def _read_similar(self) -> None:
        branch = self._branches["similar"]
        journal = str(self.session.follower.path)
        code, out, problem = await self._run_verb("similar", journal, "--json", on_wait=self._say)
        branch.remove_children()
        if code:
            branch.add_leaf(Text(problem.strip() or "unknown"))
            return
        self._similar = json.loads(out)
        for past in self._similar["similar"]:
            branch.add_leaf(Text(_similar_label(past, self.ascii)), data=past)
        if not self._similar["similar"]:
            branch.add_leaf("no similar job was measured yet")

    def decide(self, past: dict[str, Any], accepted: bool) -> None:
        """Stores whether to use a past job for warm starts, for the next `tune --warm-start auto`."""
        state = self.state
        if state.job is None:
            return
        try:
            choose(self.session.kb, state.job.id, past["id"], accepted, f"screens, pid {os.getpid()}")
        except AutoscoutError as error:
            self._say(str(error))
            return
        past["decided"] = "accepted" if accepted else "rejected"
        for leaf in self._branches["similar"].children:
            if leaf.data is not None:
                leaf.set_label(_similar_label(leaf.data, self.ascii))
        self._describe(past)

    def _describe(self, past: dict[str, Any]) -> None:
        self._rows = past["features"]
        table = self.query_one(DataTable)
        table.clear(columns=True)
        table.add_columns("feature", "here", "there", "distance", "because")
        for f in past["features"]:
            table.add_row(f["name"], _cell(f["here"]), _cell(f["there"]), f"+{f['distance']:.2f}", f["why"])
        decided = {"": "a accepts, x rejects", "accepted": "accepted; x rejects", "rejected": "rejected; a accepts"}
        failed, job = past["measurements"] - past["ok"], self.state.job
        self._say(
            f"{past['job']} on {past['cluster']}: distance {past['distance']:.2f}, {past['measurements']} runs, "
            f"{failed} failed\n{decided[past['decided']]} it for the next session of {job.name if job else 'this job'}"
        )

    @on(DataTable.RowSelected)
    def _opened_row(self, selected: DataTable.RowSelected) -> None:
        """Shows a row with one column per line, because a result may be wider than the terminal."""
        if 0 <= selected.cursor_row < len(self._rows):
            self.app.push_screen(Full("one row", record(self._rows[selected.cursor_row])))

    @on(Tree.NodeSelected)
    def _selected(self, selected: Tree.NodeSelected[Any]) -> None:
        data = selected.node.data
        if data:
            self.remove_class("-contents")
        if isinstance(data, dict):
            self._describe(data)
        elif data:
            self.query_one(Console).text = data
            self.ask(data)


def _similar_label(past: dict[str, Any], ascii_only: bool) -> str:
    """A similar job with a mark that shows whether warm starts use it: according to the user's decision, or without
    one, to its distance."""
    hands_over = past["decided"] == "accepted" or (not past["decided"] and past["distance"] < FAR)
    mark = ("+" if ascii_only else "✓") if hands_over else ("x" if ascii_only else "✗")
    return f"{mark} {number(past['distance'])} {past['job']} {past['cluster']} {past['decided']}".rstrip()


def _cell(value: object) -> Text:
    """A cell as Text, because Textual would interpret markup in a string."""
    if value is None:
        return Text("–")
    return Text(f"{value:.6g}" if isinstance(value, float) else " ".join(str(value)[:120].split()))
