"""Recognizes the framework of a launch line. Each framework is described by a TOML file, in frameworks/ or (for
frameworks that users add) in a folder frameworks/ next to the knowledge base. The same files declare which settings can
be tuned (see targets/command/preset.py)."""

import fnmatch
import importlib.resources
import re
from functools import cache
from pathlib import Path
from typing import Any, Literal

from msgspec.structs import fields

from autoscout.job.strict import converted, read_toml
from autoscout.job.words import nearest_name
from autoscout.line.flags import plain
from autoscout.line.launch_line import Line
from kb.records import AutoscoutError, Strict, Task
from kb.store import default_path

_SETTING = re.compile(r"\+{0,2}([A-Za-z_][\w.]*)=")


class Framework(Strict, frozen=True, kw_only=True):
    """Describes a framework and its launch lines.

    Recognition: `recognises`: words that occur only in this framework's lines, such as a script, a module, or a program
    with its subcommand (`axolotl train`). `known_by`: patterns of flags, and of the names in name=value; a line with
    matches for all of them belongs to the framework, whatever the script's name. `unread`: patterns of flags that
    suffice if the script is missing on this machine. `unlike`: flags of similar programs, or patterns of their scripts'
    names; a line with one of them does not match. `imports`: modules that a script found by `known_by` must import.
    `logs_of`: modules of scripts that print this framework's log, whatever parser they have. `has`: settings that
    identify the framework in a line's YAML file. `folder`: flags for the folder of the YAML files. `overrides`:
    settings are in a YAML file, and arguments key=value override them. `launches`: further programs and subcommands
    that start a run.

    Devices: `starts_ranks`: the program starts all ranks of a node, as torchrun does. `by_accelerate`: the program
    starts ranks by accelerate. `ranks_need`: environment variable without which the program starts several ranks only
    if it sees several GPUs. `reaches_all`: a single call starts all nodes. `node_devices` and `nodes`: settings for the
    devices per node and for the number of nodes. `usual_devices`: default number of devices per node. `one_device`:
    suffix of the names of single-device recipes. `gpus`: whether the framework runs "usually" or "only" on GPUs.
    `roles`: for programs that start several roles on a Ray cluster, the trainer first, role → settings whose product is
    its number of devices. `sharing`: switch → roles that it places on the trainer's devices."""

    about: str = ""
    task: Task = "pretrain"
    recognises: list[str] = []
    launches: list[str] = []
    known_by: list[str] = []
    unread: list[str] = []
    imports: list[str] = []
    logs_of: list[str] = []
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
    roles: dict[str, list[str]] = {}
    sharing: dict[str, list[str]] = {}

    @property
    def programs(self) -> set[str]:
        """The framework's own programs, without scripts and modules (Python starts those)."""
        return {text.split()[0] for text in (*self.recognises, *self.launches) if "." not in text}


def own_folder() -> Path:
    """Returns the folder for frameworks that the user adds."""
    return default_path().parent / "frameworks"


@cache
def contents() -> dict[str, tuple[Path, dict[str, Any]]]:
    """Returns framework → (path, content) of its file. A user's file replaces a shipped file of the same name. A file
    with `like` has the content of another file, in which the settings of its table `spelled` are renamed, and its own.
    Errors: AutoscoutError (exit 2)."""
    folders = (Path(str(importlib.resources.files("autoscout.line"))) / "frameworks", own_folder())
    paths = {path.stem: path for folder in folders for path in sorted(folder.glob("*.toml"))}
    found = {name: (path, read_toml(path, "framework")) for name, path in sorted(paths.items())}
    for name, (path, own) in found.items():
        if (like := own.pop("like", "")) and like not in found:
            raise AutoscoutError(f"{path}: like = '{like}'{nearest_name(like, [*found])}", 2)
        if like:
            found[name] = path, {**_respelled(found[like][1], own.pop("spelled", {})), **own}
    return found


def _respelled(content: Any, names: dict[str, str]) -> Any:
    if isinstance(content, dict):
        return {names.get(key, key): _respelled(value, names) for key, value in content.items()}
    if isinstance(content, list):
        return [_respelled(value, names) for value in content]
    return names.get(content, content) if isinstance(content, str) else content


@cache
def frameworks() -> dict[str, Framework]:
    """Returns name → framework. Errors: AutoscoutError (exit 2) for a file that does not describe a framework."""
    known = {field.name for field in fields(Framework)}
    return {
        name: converted(path, {key: value for key, value in found.items() if key in known}, Framework)
        for name, (path, found) in contents().items()
    }


@cache
def verbs() -> dict[str, tuple[set[str], bool]]:
    """Returns program → (subcommands that start a run, empty if all do; whether the program trains), for all
    frameworks."""
    found: dict[str, tuple[set[str], bool]] = {}
    for each in frameworks().values():
        for program, *verb in (text.split() for text in (*each.recognises, *each.launches)):
            if program in each.programs:
                found.setdefault(program, (set(), each.task != "serve"))[0].update(verb[:1])
    return found


def recognised(line: Line) -> str:
    """Returns the name of the framework that a launch line uses; "" if none is recognized."""
    from autoscout.line import settings_files  # YAML is slow to import and would delay the first screen

    tails = [word.rsplit("/", 1)[-1] for word in line.words]
    text = f" {' '.join(tails)} "
    flags = {plain(flag) for flag in line.flags if flag.startswith("--")}
    flags |= {found[1] for word in line.program.words if (found := _SETTING.match(word))}
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
        # If several frameworks have the same program, prefer the one whose settings are flags of the line.
        name = next(alike, name)
    if name:
        return name
    return next(
        (n for n, k in possible.items() if k.has and settings_files.have(line, k.folder, k.has)), next(unread, "")
    )


def _all_match(patterns: list[str], flags: set[str]) -> bool:
    return all(any(re.fullmatch(pattern, flag) for flag in flags) for pattern in patterns)


def by_flags_alone(line: Line, name: str) -> bool:
    """Whether a line is identified as this framework's by flags alone, because its script, which may have a parser of
    its own, is missing here."""
    flags = {plain(flag) for flag in line.flags if flag.startswith("--")}
    known = frameworks()[name]
    return _unread(line, known, flags) and not _all_match(known.known_by, flags)


def logs_like(line: Line) -> str:
    """The name of the framework whose log the script of an unknown line prints; "" if none is known."""
    source = _source(line) or ""
    known = ((name, each.logs_of) for name, each in frameworks().items() if each.logs_of)
    return next((name for name, words in known if all(re.search(rf"\b{word}\b", source) for word in words)), "")


def _unread(line: Line, known: Framework, flags: set[str]) -> bool:
    script = next(iter(line.program.words), "")
    return bool(known.unread) and script.endswith(".py") and _source(line) is None and _all_match(known.unread, flags)


def _parses(line: Line, known: Framework) -> bool:
    """Whether the line's script imports the modules that the framework's scripts import, and thus parses the
    framework's flags. False if the script's first argument is a settings file, since it then reads no flags."""
    if not known.imports or any(word.endswith((".yaml", ".yml", ".json")) for word in line.program.words[1:2]):
        return False
    source = _source(line)
    return source is not None and all(re.search(rf"\b{word}\b", source) for word in known.imports)


def _source(line: Line) -> str | None:
    """Returns the source of the line's Python script; None if it is not on this machine."""
    try:
        return (line.place / line.program.words[0]).read_text(errors="replace") if line.program.words else None
    except OSError:
        return None
