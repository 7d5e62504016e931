"""Knowledge base: its tables and views, a console for questions in SQL, and what it answered.

A query runs as `autoscout sql` in a process of its own: this one never opens the file, and cancelling is ending it.
"""

import asyncio
import json
import os
import re
import sys
from pathlib import Path

from textual import events, on, work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.widgets import DataTable, Static, TextArea, Tree

from tui.screens.pane import Pane

PAGE = 200
# Views are what people ask of; tables come after them.
_SCHEMA = (
    "SELECT c.table_name, c.column_name, c.data_type FROM information_schema.columns AS c "
    "JOIN information_schema.tables AS t USING (table_schema, table_name) WHERE table_schema = 'main' "
    "ORDER BY t.table_type != 'VIEW', c.table_name, c.ordinal_position"
)
_SAVED = {
    "best of each job": "SELECT job, name, value, metric, measurements FROM best",
    "latest experiments": "SELECT job, name, status, step_time_s, cost_s FROM runs ORDER BY ended DESC",
    "failures by class": "SELECT job, status, count(*) AS n, any_value(evidence) AS example FROM failures GROUP BY ALL",
    "sessions": "SELECT session, state, experiments, best, value, gain FROM sessions",
    "what the simulators were worth": "SELECT session, step, predicted, measured, mape FROM checks",
}
_WORDS = (
    "SELECT FROM WHERE GROUP BY ALL ORDER LIMIT HAVING JOIN USING AS DISTINCT median count avg min max quantile_cont "
)
_WORDS += "arg_min arg_max round any_value QUALIFY PIVOT UNPIVOT SUMMARIZE DESCRIBE regexp_matches list_contains"


class Console(TextArea):
    """SQL in one box: ctrl+j runs, tab completes, ctrl+up and ctrl+down go through what was asked before."""

    BINDINGS = [
        Binding("ctrl+j,f5", "run", "run", priority=True),
        Binding("ctrl+up", "past(-1)", "earlier", show=False),
        Binding("ctrl+down", "past(1)", "later", show=False),
    ]

    def __init__(self) -> None:
        super().__init__("FROM best", id="console", soft_wrap=True, tab_behavior="focus")
        self.words: list[str] = [str(word) for word in _WORDS.split()]
        self._cycle: tuple[str, int] = ("", 0)

    def on_key(self, event: events.Key) -> None:
        if event.key == "tab" and self.complete():
            event.prevent_default()
            event.stop()
        elif event.key != "tab":
            self._cycle = ("", 0)

    def complete(self) -> bool:
        """Completes the word before the cursor; again: the next candidate. False if there is nothing to complete."""
        row, column = self.cursor_location
        typed = re.search(r"\w*$", self.document.get_line(row)[:column])
        word = typed.group() if typed else ""
        stem, number = self._cycle if self._cycle[0] and word.lower().startswith(self._cycle[0]) else (word.lower(), -1)
        candidates = [w for w in self.words if w.lower().startswith(stem) and w.lower() != stem]
        if not stem or not candidates:
            return False
        number = (number + 1) % len(candidates)
        self._cycle = (stem, number)
        self.replace(candidates[number], (row, column - len(word)), (row, column))
        return True

    def action_run(self) -> None:
        self.screen.query_one(KnowledgePane).ask(self.text)

    def action_past(self, step: int) -> None:
        self.screen.query_one(KnowledgePane).recall(step)


class KnowledgePane(Pane):
    help = "ctrl+j runs the query, tab completes, ctrl+up recalls, escape cancels; enter on the left writes a question"

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield Tree("knowledge base", id="schema")
            with Vertical():
                yield Console()
                yield Static("ctrl+j runs · escape cancels", id="asked")
                yield DataTable(id="answer", zebra_stripes=True)

    def on_mount(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._history = _history()
        self._place = len(self._history)
        self._opened = False

    def repaint(self) -> None:
        super().repaint()
        if not self._opened:
            self._opened = True
            self._read_schema()

    def ask(self, sql: str) -> None:
        if sql.strip():
            self._history = [*[h for h in self._history if h != sql], sql]
            self._place = len(self._history)
            _remember(self._history)
            self._run(sql)

    def recall(self, step: int) -> None:
        if self._history:
            self._place = max(0, min(len(self._history) - 1, self._place + step))
            self.query_one(Console).text = self._history[self._place]

    def cancel(self) -> bool:
        """Ends the running query; False if there is none."""
        if self._process is None or self._process.returncode is not None:
            return False
        self._process.terminate()
        return True

    @work(exclusive=True)
    async def _run(self, sql: str) -> None:
        said = self.query_one("#asked", Static)
        said.update("running … escape cancels")
        began = asyncio.get_running_loop().time()
        code, out, problem = await self._sql(sql)
        took = asyncio.get_running_loop().time() - began
        table = self.query_one(DataTable)
        table.clear(columns=True)
        if code < 0:
            said.update("cancelled")
        elif code:
            said.update(problem.strip())
        else:
            rows = json.loads(out)
            if rows:
                table.add_columns(*rows[0])
                table.add_rows([[_cell(v) for v in row.values()] for row in rows])
            more = f" (the first {PAGE}; LIMIT and OFFSET show others)" if "--limit shows more" in problem else ""
            said.update(f"{len(rows)} rows{more} in {took:.2f} s")

    @work
    async def _read_schema(self) -> None:
        tree: Tree[str] = self.query_one("#schema", Tree)
        questions = tree.root.add("questions", expand=True)
        for name, sql in _SAVED.items():
            questions.add_leaf(name, data=sql)
        tree.root.expand()
        code, out, problem = await self._sql(_SCHEMA, limit=5000)
        if code:
            self.query_one("#asked", Static).update(problem.strip())
            return
        tables: dict[str, list[tuple[str, str]]] = {}
        for row in json.loads(out):
            tables.setdefault(row["table_name"], []).append((row["column_name"], row["data_type"]))
        for name, columns in tables.items():
            branch = tree.root.add(name, data=f"FROM {name}")
            for column, kind in columns:
                branch.add_leaf(f"{column} {kind}", data=f"SELECT {column} FROM {name}")
        console = self.query_one(Console)
        names = [*tables, *sorted({c for columns in tables.values() for c, _ in columns})]
        console.words[:0] = names

    async def _sql(self, sql: str, limit: int = PAGE) -> tuple[int, str, str]:
        command = [sys.executable, "-m", "tui.cli", "sql", sql, "--json", "--limit", str(limit)]
        self._process = await asyncio.create_subprocess_exec(
            *command,
            "--kb",
            str(self.session.kb),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            stdin=asyncio.subprocess.DEVNULL,
        )
        out, problem = await self._process.communicate()
        return self._process.returncode or 0, out.decode(), problem.decode().removeprefix("autoscout: ")

    @on(Tree.NodeSelected)
    def _write_question(self, selected: Tree.NodeSelected[str]) -> None:
        if selected.node.data:
            self.query_one(Console).text = selected.node.data
            self.ask(selected.node.data)


def _cell(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:.6g}" if isinstance(value, float) else str(value)[:120]


def _history_file() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
    return Path(state) / "autoscout" / "sql_history.json"


def _history() -> list[str]:
    try:
        return [str(x) for x in json.loads(_history_file().read_text())]
    except (OSError, ValueError):
        return []


def _remember(history: list[str]) -> None:
    file = _history_file()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(history[-200:]))
    except OSError:
        return  # a console without a memory still answers
