"""How to recognise the launch lines of frameworks, as data: one file per framework, in frameworks/ and in a folder of
that name next to the knowledge base, where users can add more. The same file declares what can be tuned
(targets/command/preset.py).
"""

import fnmatch
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
    """`recognises`: words that only this framework's lines have: a script, a module, or a program with its verb
    (`axolotl train`). `known_by`: patterns of flags that identify a line whose script may have any name; all must
    match. `unread`: the same for a script that is not here, whose imports cannot be read. `unlike`: flags, or patterns
    of scripts' names, of other programs with similar flags. `has`: settings whose presence in the line's file
    identifies it, whatever the script's name. `folder`: flags that name the folder of such files. `overrides`: settings
    are in a YAML file, and key=value words after it override them. `launches`: further programs and verbs that start a
    run.

    Devices. `starts_ranks`: its program starts a node's ranks, as torchrun does. `by_accelerate`: it does so through
    accelerate. `ranks_need`: the variable without which it starts ranks only if it sees several GPUs. `reaches_all`:
    one start reaches all nodes. `node_devices` and `nodes`: its settings for the devices of a node and the number of
    nodes. `usual_devices`: devices of a node if nothing states them. `one_device`: the suffix of recipes for one
    device. `gpus`: whether it runs "usually" or "only" on GPUs."""

    about: str = ""
    task: Task = "pretrain"
    recognises: list[str] = []
    launches: list[str] = []
    known_by: list[str] = []
    unread: list[str] = []
    imports: list[str] = []
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
        """Its own programs, without scripts and modules that Python starts."""
        return {text.split()[0] for text in (*self.recognises, *self.launches) if "." not in text}


def own_folder() -> Path:
    """The user's own frameworks, next to the knowledge base."""
    return default_path().parent / "frameworks"


@cache
def contents() -> dict[str, tuple[Path, dict[str, Any]]]:
    """Files and their contents, by name; the user's own replace shipped ones. Errors: AutoscoutError (exit 2)."""
    folders = (Path(str(importlib.resources.files("autoscout.line"))) / "frameworks", own_folder())
    paths = {path.stem: path for folder in folders for path in sorted(folder.glob("*.toml"))}
    return {name: (path, read_toml(path, "framework")) for name, path in sorted(paths.items())}


@cache
def frameworks() -> dict[str, Framework]:
    """Frameworks by name. Errors: AutoscoutError (exit 2) for a file that does not describe a framework."""
    known = {field.name for field in fields(Framework)}
    return {
        name: converted(path, {key: value for key, value in found.items() if key in known}, Framework)
        for name, (path, found) in contents().items()
    }


@cache
def verbs() -> dict[str, tuple[set[str], bool]]:
    """Programs that start frameworks → (the words with which they start a run, empty if any does; whether they
    train)."""
    found: dict[str, tuple[set[str], bool]] = {}
    for each in frameworks().values():
        for program, *verb in (text.split() for text in (*each.recognises, *each.launches)):
            if program in each.programs:
                found.setdefault(program, (set(), each.task != "serve"))[0].update(verb[:1])
    return found


def recognised(line: Line) -> str:
    """The framework of a line; "" if there is none."""
    from autoscout.line import settings_files  # imports YAML, for which the first screen must not wait

    tails = [word.rsplit("/", 1)[-1] for word in line.words]
    text = f" {' '.join(tails)} "
    flags = {plain(flag) for flag in line.flags if flag.startswith("--")}
    words = {*tails, *flags}
    possible = {
        name: known
        for name, known in frameworks().items()
        if not any(fnmatch.filter(words, other) for other in known.unlike)
    }
    called = (
        name
        for name, known in possible.items()
        if any(words in tails or (" " in words and f" {words} " in text) for words in known.recognises)
    )
    alike = (
        name
        for name, known in possible.items()
        if known.known_by and (_all_match(known.known_by, flags) or _parses(line, known))
    )
    unread = (name for name, known in possible.items() if _unread(line, known, flags))
    name = next(called, "")
    if not name or (possible[name].overrides and not line.settings_files):
        name = next(alike, name)  # the variant whose settings are flags, not a file
    if name:
        return name
    return next(
        (n for n, k in possible.items() if k.has and settings_files.have(line, k.folder, k.has)), next(unread, "")
    )


def _all_match(patterns: list[str], flags: set[str]) -> bool:
    return all(any(re.fullmatch(pattern, flag) for flag in flags) for pattern in patterns)


def by_flags_alone(line: Line, name: str) -> bool:
    """Whether only flags show that a line is this framework's: its script, which may have a parser of its own, is not
    here."""
    flags = {plain(flag) for flag in line.flags if flag.startswith("--")}
    known = frameworks()[name]
    return _unread(line, known, flags) and not _all_match(known.known_by, flags)


def _unread(line: Line, known: Framework, flags: set[str]) -> bool:
    script = next(iter(line.program.words), "")
    return bool(known.unread) and script.endswith(".py") and _source(line) is None and _all_match(known.unread, flags)


def _parses(line: Line, known: Framework) -> bool:
    """Whether the script reads the framework's flags from its command line, judged by what it imports; a script that
    gets a settings file reads that instead."""
    if not known.imports or any(word.endswith((".yaml", ".yml", ".json")) for word in line.program.words[1:2]):
        return False
    source = _source(line)
    return source is not None and all(re.search(rf"\b{word}\b", source) for word in known.imports)


def _source(line: Line) -> str | None:
    """The text of the line's Python script; None if it is not here."""
    try:
        return (line.place / line.program.words[0]).read_text(errors="replace") if line.program.words else None
    except OSError:
        return None
