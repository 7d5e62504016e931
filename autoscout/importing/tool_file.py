"""The format of tool files: TOML files in tools/ that each define how mapped.py reads the result files of one tool.

Users add a tool with `--reader FILE.toml`, or permanently in the folder readers/ next to the knowledge base."""

import re
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from autoscout.importing import paths
from autoscout.importing.circumstances import CIRCUMSTANCES
from autoscout.job.strict import converted, read_toml
from kb.records import AutoscoutError
from kb.strict_record import Strict

TOOLS = Path(__file__).parent / "tools"
Arrivals = Literal["poisson", "even", "closed", "at once", "one at a time"]
Kind = Literal["json", "csv", "csv steps", "yaml", "sqlite", "tfevents", "wandb", "optuna journal", "text", "mllog"]


class Held(Strict, frozen=True):
    """A version of the tool with which the mapping was tested. `command`: the command that wrote the tested result
    file, or where that file is from."""

    version: str
    command: str


class Where(Strict, frozen=True, kw_only=True):
    """Where the rows are in a result file. A JSON file may be one object, a list, or one object per line.

    names     shell patterns of the file's name
    needs     paths that exist in every file of the tool
    rows      path to the list or table of rows; without it the whole file is one row
    settings  paths to tables whose values become columns under their own names
    beside    top-level key → path of a companion file (JSON, YAML or text), relative to the file's folder
    steps     path to per-step values; a column is their median (or mean), without the first `warmup` steps
    query     SQL for a SQLite file; the result columns listed in `json` are parsed
    repair    text that completes an unfinished file
    part      path to the study's name, if a file has several
    only      shell patterns that select which of the row's own values become columns; none: all
    others    shell patterns of secondary files, which are ignored near a main file; of paths, if they have a slash,
              anywhere in a folder with a main file
    refused   path to a value → why the rows of a file with this value are never imported
    patterns  for the kind text: column → regular expression, whose group is the value at its first match"""

    kind: Kind
    names: list[str] = []
    needs: list[str] = []
    rows: str = ""
    settings: list[str] = []
    beside: dict[str, str] = {}
    steps: str = ""
    usual: Literal["median", "mean"] = "median"
    warmup: int = 1
    query: str = ""
    json: list[str] = []
    repair: str = ""
    part: str = ""
    only: list[str] | None = None
    others: list[str] = []
    refused: dict[str, str] = {}
    patterns: dict[str, str] = {}


class Status(Strict, frozen=True, kw_only=True):
    """How a row's status is determined. `of`: path to the tool's status word; `words`: the tool's word → our status;
    `left_out`: words for runs that are not measurements → the reason. `failed`: path to an error text that exists only
    if the run failed. `finished`: path to a value that exists (or is true) only if the run has ended."""

    of: str = ""
    words: dict[str, str] = {}
    left_out: dict[str, str] = {}
    failed: str = ""
    finished: str = ""


class RunTimes(Strict, frozen=True, kw_only=True):
    """Paths to a run's start and end times. `form`: iso, s, ms or ns (since 1970), or a strptime pattern. A time
    without a zone is local, or in UTC if the form ends with " utc"."""

    began: str = ""
    ended: str = ""
    form: str = "iso"


class ToolFile(Strict, frozen=True, kw_only=True):
    """The mapping of one tool's result files.

    columns   the tool's column = our name, or `name@unit`; "-" drops the column
    derived   our name (or `name@unit`) = expression
    units     path to a unit stated in the file = the unit that this mapping expects
    says      measurement condition (see circumstances.py) = expression
    arrivals  the tool's name for an arrival process = our name
    unsaid    facts that the tool's files do not contain
    like      name of another tool file, whose tables are extended"""

    tool: str
    what: str = ""
    versions: str
    held: list[Held]
    file: Where
    columns: dict[str, str] = {}
    derived: dict[str, str] = {}
    units: dict[str, str] = {}
    says: dict[str, str] = {}
    arrivals: dict[str, Arrivals] = {}
    status: Status = Status()
    times: RunTimes = RunTimes()
    engine: str = ""
    engine_version: str = ""
    unsaid: list[str] = []
    predicted: bool = False
    used: str = ""
    like: str = ""
    name: str = ""  # name of the TOML file


def read_tool(path: Path) -> ToolFile:
    """Reads a tool file. Errors: AutoscoutError (exit 2) naming the file and the key."""
    found = converted(path, _with_like(path, read_toml(path, "reader")), ToolFile)
    expressions = {**{f"derived.{k}": v.partition("@")[0] for k, v in found.derived.items()}}
    expressions |= {f"says.{name}": text for name, text in found.says.items()}
    for where, text in expressions.items():
        if wrong := paths.problem(text):
            raise AutoscoutError(f"{path}: {where}: {wrong}", 2)
    for name in found.says:
        if name not in CIRCUMSTANCES:
            raise AutoscoutError(f"{path}: says.{name} must be one of {', '.join(CIRCUMSTANCES)}", 2)
    if found.file.kind == "sqlite" and not found.file.query:
        raise AutoscoutError(f"{path}: file.query is missing; write the SELECT that gives the rows", 2)
    for name, pattern in found.file.patterns.items():
        if wrong := _pattern_problem(pattern):
            raise AutoscoutError(f"{path}: file.patterns.{name}: {wrong}", 2)
    return msgspec.structs.replace(found, name=path.stem)


def _pattern_problem(pattern: str) -> str:
    try:
        return "" if re.compile(pattern).groups == 1 else "the expression must have one group, which is the value"
    except re.error as error:
        return f"'{pattern}' is not a regular expression ({error})"


def _with_like(path: Path, data: dict[str, Any]) -> dict[str, Any]:
    like = data.get("like")
    if not isinstance(like, str):
        return data
    base = _with_like(path, read_toml(TOOLS / f"{like}.toml", "reader"))
    tables = {k: {**base.get(k, {}), **data.get(k, {})} for k in ("columns", "derived", "says", "status", "times")}
    return {**base, **data, **{name: table for name, table in tables.items() if table}}


@cache
def shipped_tools() -> tuple[ToolFile, ...]:
    found = [read_tool(path) for path in sorted(TOOLS.glob("*.toml"))]
    return tuple(sorted(found, key=lambda tool: -len(tool.file.needs)))


def tools_of(kb: Path) -> tuple[ToolFile, ...]:
    """Returns the user's tools, then the shipped tools in descending order of the number of required keys. Errors:
    AutoscoutError (exit 2) for an unreadable tool file."""
    return (*(read_tool(path) for path in sorted((kb.parent / "readers").glob("*.toml"))), *shipped_tools())
