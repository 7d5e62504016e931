"""What the lines of frameworks look like, as data: one file a framework in frameworks/, and in the folder of that name
beside the knowledge base, where a person adds one. The same file says what is tuned of it (targets/command/preset.py).
"""

import importlib.resources
import re
from functools import cache
from pathlib import Path
from typing import Any, Literal

from msgspec.structs import fields

from autoscout.job.strict import converted, read_toml
from autoscout.line.flags import plain
from autoscout.line.launch_line import Line
from kb.records import Strict, Task
from kb.store import default_path


class Framework(Strict, frozen=True, kw_only=True):
    """`recognises`: words that only its lines have: a script, a module, or a program with its verb (`axolotl train`).
    `known_by`: patterns of flags, each of which a line has whose script has a name of its own; `unlike`: flags of other
    programs with such names; `has`: settings of the file of a line whose script may have any name, and `folder`: flags
    that name the folder of such files. `overrides`: settings are in a YAML file, and key=value words after it override
    them. `launches`: further programs and verbs of it that start a run.

    Of its devices: `starts_ranks`: its program starts a node's ranks as torchrun does, `by_accelerate`: by way of
    accelerate; `ranks_need`: the variable without which it does so only where it sees several GPUs. `reaches_all`: one
    start of it reaches all nodes. `node_devices` and `nodes`: settings of its own that say how many a node has, and how
    many nodes; `usual_devices`: of a node where nothing says it; `one_device`: how names of recipes for one device end.
    `gpus`: whether it runs "usually" or "only" on them."""

    about: str = ""
    task: Task = "pretrain"
    recognises: list[str] = []
    launches: list[str] = []
    known_by: list[str] = []
    unlike: list[str] = []
    has: list[str] = []
    folder: list[str] = []
    overrides: bool = False
    starts_ranks: bool = False
    by_accelerate: bool = False
    ranks_need: str = ""
    reaches_all: bool = False
    node_devices: list[str] = []
    nodes: list[str] = []
    usual_devices: int = 0
    one_device: str = ""
    gpus: Literal["", "usually", "only"] = ""

    @property
    def programs(self) -> set[str]:
        """Those of its own, without what a Python starts: its scripts and modules."""
        return {text.split()[0] for text in (*self.recognises, *self.launches) if "." not in text}


def own_folder() -> Path:
    """A person's frameworks: beside the knowledge base."""
    return default_path().parent / "frameworks"


@cache
def contents() -> dict[str, tuple[Path, dict[str, Any]]]:
    """Files and what they say, by name; a person's own stand for shipped ones. Errors: AutoscoutError (exit 2)."""
    folders = (Path(str(importlib.resources.files("autoscout.line"))) / "frameworks", own_folder())
    paths = {path.stem: path for folder in folders for path in sorted(folder.glob("*.toml"))}
    return {name: (path, read_toml(path, "framework")) for name, path in sorted(paths.items())}


@cache
def frameworks() -> dict[str, Framework]:
    """By name. Errors: AutoscoutError (exit 2) for a file that is no framework."""
    known = {field.name for field in fields(Framework)}
    return {
        name: converted(path, {key: value for key, value in said.items() if key in known}, Framework)
        for name, (path, said) in contents().items()
    }


@cache
def verbs() -> dict[str, tuple[set[str], bool]]:
    """Programs that start frameworks → (the words by which they start a run, none where all do; whether they train)."""
    found: dict[str, tuple[set[str], bool]] = {}
    for each in frameworks().values():
        for program, *verb in (text.split() for text in (*each.recognises, *each.launches)):
            if program in each.programs:
                found.setdefault(program, (set(), each.task != "serve"))[0].update(verb[:1])
    return found


def recognised(line: Line) -> str:
    """The framework of a line; "" if there is none."""
    from autoscout.line import settings_files  # YAML, which a first frame need not wait for

    tails = [word.rsplit("/", 1)[-1] for word in line.words]
    text = f" {' '.join(tails)} "
    flags = {plain(flag) for flag in line.flags if flag.startswith("--")}
    possible = {name: known for name, known in frameworks().items() if not {*known.unlike} & flags}
    called = (
        name
        for name, known in possible.items()
        if any(words in tails or (" " in words and f" {words} " in text) for words in known.recognises)
    )
    alike = (
        name
        for name, known in possible.items()
        if known.known_by and all(any(re.fullmatch(p, flag) for flag in flags) for p in known.known_by)
    )
    name = next(called, "")
    if not name or (possible[name].overrides and not line.settings_files):
        name = next(alike, name)  # whose settings are flags, without a file that they would override
    if name:
        return name
    return next((n for n, k in possible.items() if k.has and settings_files.have(line, k.folder, k.has)), "")
