"""What a tool's files mean, as data: one TOML file a tool in the folder tools/, read by one engine (mapped.py). A
person adds one for `--reader FILE.toml`, or for good in the folder readers/ beside the knowledge base."""

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
    """A version of the tool that the mapping was held against, and how a file of it was made (or where one is)."""

    version: str
    command: str


class Where(Strict, frozen=True, kw_only=True):
    """Where the rows of a file are. `names`: of the file, as shell patterns; `needs`: paths that every file of the tool
    has. JSON may be one object, a list, or an object a line. `rows`: path to the list or table of rows, else the whole
    file is one. `settings`: paths to tables whose values are columns under their own names; `beside`: another file's
    content under a key of the top (JSON, YAML or text), by its path from the file's folder. `steps`: path to what was
    measured at each step, of which columns are the medians (or the means), without the first `warmup` steps. `query`:
    of SQLite, with `json` columns; `repair`: what completes a file that is not finished. `part`: path to the name of
    the study, if a file has several. `only`: columns that are kept of a row's own values, as shell patterns (none
    named: all). `others`: further files of the tool, which say nothing more where it has such as these."""

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
    """`of`: path to the tool's word for how a run ended; `words`: ours for theirs; `left_out`: words of runs that
    are no measurement, and why. `failed`: path to a text that is there only if it failed, and says how. `finished`:
    path to what is there (or true) only once a run has ended."""

    of: str = ""
    words: dict[str, str] = {}
    left_out: dict[str, str] = {}
    failed: str = ""
    finished: str = ""


class RunTimes(Strict, frozen=True, kw_only=True):
    """When a run began and ended: paths, in the `form` iso, iso utc, s, ms or ns (since 1970), or a pattern of
    strptime."""

    began: str = ""
    ended: str = ""
    form: str = "iso"


class ToolFile(Strict, frozen=True, kw_only=True):
    """`columns`: theirs = ours, `name` or `name@unit` ("-": left out); `derived`: ours = expression in our own unit, or
    `name@unit`; `units`: paths to units that a file itself states, and what they are here; `says`: circumstance
    (circumstances.py) = expression; `arrivals`: ours for the tool's words for how requests arrive. `unsaid`: what files
    of the tool do not tell. `like`: another tool's file, whose tables these add to."""

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
    name: str = ""  # of its file


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
            raise AutoscoutError(f"{path}: says.{name} is none of {', '.join(CIRCUMSTANCES)}", 2)
    if found.file.kind == "sqlite" and not found.file.query:
        raise AutoscoutError(f"{path}: file.query is missing: which rows of the database?", 2)
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
    """Those of a person come first, then those that need most. Errors: AutoscoutError (exit 2) for one that cannot be
    read."""
    return (*(read_tool(path) for path in sorted((kb.parent / "readers").glob("*.toml"))), *shipped_tools())
