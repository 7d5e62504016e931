"""Writes docs/imports.md and docs/lab/imports.md: PYTHONPATH=. python tests/tools/tool_files_page.py"""

import re
from collections.abc import Iterable
from pathlib import Path

from autoscout.importing.bring_in import readers
from autoscout.importing.tool_file import ToolFile, shipped_tools

HEAD = """\
# Files of tools that `import` reads

Made from `autoscout/importing/tools/*.toml` by `python tests/tools/tool_files_page.py`, as is the list of
[versions that each was held against](lab/imports.md).

`autoscout import FILE --job JOB.toml` recognizes a file by what is in it, `autoscout import FOLDER` everything in a
folder; what nothing reads is listed. `--dry-run` shows the values, units, status, date and cost of each row. A row of
another load, model, length or batch than the job's is refused with both values; so is one whose values contradict each
other, as seconds read as milliseconds do. Requests that failed make the row a failure, whatever the others' percentiles
are. Imported rows are hints: they seed searches and train the simulators of the job and of its neighbours, and are
never recommended by themselves.

A reader of your own is a file like those: for once with `--reader FILE.toml`, for good in the folder `readers/` beside
the knowledge base. Its keys are described in `autoscout/importing/tool_file.py`.

| tool, versions | read | units | status | load | engine, version | unsaid | used later |
|---|---|---|---|---|---|---|---|
"""
MADE = """\
# Versions that each reader of `import` was held against, and how a file of it was made

Made from `autoscout/importing/tools/*.toml` by `python tests/tools/tool_files_page.py`.

| tool | version | by |
|---|---|---|
"""


def page() -> str:
    tools = sorted(shipped_tools(), key=lambda tool: tool.tool.lower())
    rows = "".join(_row(tool) for tool in tools)
    coded = ", ".join(f"`{name}`" for name in sorted(readers()))
    code = (
        f"\nCode, since they are logs and folders, or have any columns: {coded} ([import](knowledge-base.md#import)).\n"
    )
    return HEAD + rows + code


def lab_page() -> str:
    tools = sorted(shipped_tools(), key=lambda tool: tool.tool.lower())
    return MADE + "".join(_line(t.tool, held.version, f"`{_cell(held.command)}`") for t in tools for held in t.held)


def _row(tool: ToolFile) -> str:
    meant = [*tool.columns.values(), *tool.derived]
    units = sorted({unit for each in meant if (unit := each.partition("@")[2])})
    status = [*(f"{theirs} is {ours}" for theirs, ours in tool.status.words.items()), *tool.status.left_out.values()]
    status += ["failed requests"] if {"failed", "completed"} & tool.says.keys() else []
    status += ["a text of the error"] if tool.status.failed else []
    status += ["runs that have not ended are left out"] if tool.status.finished else []
    load = [name.replace("_", " ") for name in tool.says]
    engine = [part.strip("'") for part in (tool.engine, tool.engine_version) if part]
    return _line(
        f"{tool.tool} {tool.versions}",
        tool.what + (" (a prediction)" if tool.predicted else ""),
        _list(units),
        _list(status),
        _list(load),
        _list(engine),
        "; ".join(tool.unsaid) or "–",
        tool.used,
    )


def _list(parts: Iterable[str]) -> str:
    return ", ".join(parts) or "–"


def _line(*cells: str) -> str:
    return f"| {' | '.join(_cell(cell) for cell in cells)} |\n"


def _cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", text)


if __name__ == "__main__":
    for path, text in (("docs/imports.md", page()), ("docs/lab/imports.md", lab_page())):
        Path(path).write_text(text)
