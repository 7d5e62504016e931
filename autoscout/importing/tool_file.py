"""What a tool's result files mean, as data: one TOML file per tool in the folder tools/, which mapped.py applies.

A user adds a tool with `--reader FILE.toml`, or permanently in the folder readers/ next to the knowledge base.
"""

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
Arrivals = Literal["poisson", "even", "closed", "at once"]
Kind = Literal["json", "csv", "csv steps", "yaml", "sqlite", "tfevents", "wandb", "optuna journal"]


class Held(Strict, frozen=True):
    """A version of the tool with which the mapping was checked, and how one of its files was made (or where one is)."""

    version: str
    command: str


class Where(Strict, frozen=True, kw_only=True):
    """Where the rows of a file are. JSON may be one object, a list, or one object per line.

    names     shell patterns of the file's name
    needs     paths that every file of the tool has
    rows      path to the list or table of rows; without it the whole file is one row
    settings  paths to tables whose values become columns under their own names
    beside    top-level key → path of a companion file (JSON, YAML or text), relative to the file's folder
    steps     path to the values of each step; columns are their medians (or means) without the first `warmup` steps
    query     SQL for a SQLite file; its columns named in `json` are parsed
    repair    text that completes an unfinished file
    part      path to the study's name, if a file has several
    only      shell patterns of the row's own values that are kept; none: all
    others    further files of the tool, which add nothing if files of this kind exist
    """

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


class Status(Strict, frozen=True, kw_only=True):
    """`of`: path to the tool's word for how a run ended; `words`: the tool's word → our status; `left_out`: words of
    runs that are not measurements → the reason. `failed`: path to the failure's text, which exists only if the run
    failed. `finished`: path to a value that exists (or is true) only once a run has ended."""

    of: str = ""
    words: dict[str, str] = {}
    left_out: dict[str, str] = {}
    failed: str = ""
    finished: str = ""


class RunTimes(Strict, frozen=True, kw_only=True):
    """Paths to when a run began and ended. `form`: iso, iso utc, s, ms or ns (since 1970), or a strptime pattern."""

    began: str = ""
    ended: str = ""
    form: str = "iso"


class ToolFile(Strict, frozen=True, kw_only=True):
    """The mapping of one tool's files.

    columns   their column = our name, or `name@unit`; "-" leaves it out
    derived   our name (or `name@unit`) = expression
    units     path to a unit that the file states = the unit that is expected
    says      circumstance (circumstances.py) = expression
    arrivals  the tool's word for how requests arrive = ours
    unsaid    facts that the tool's files do not contain
    like      another tool's file, whose tables these extend
    """

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
    name: str = ""  # the file's name


def read_tool(path: Path) -> ToolFile:
    """Errors: AutoscoutError (exit 2) naming the file and the key."""
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
    return msgspec.structs.replace(found, name=path.stem)


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
    """The user's tools come first, then those that need the most keys. Errors: AutoscoutError (exit 2) for a tool file
    that cannot be read."""
    return (*(read_tool(path) for path in sorted((kb.parent / "readers").glob("*.toml"))), *shipped_tools())
