"""A parsed launch line: its shell words, the values of its flags, its environment and its Slurm allocation."""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from autoscout.line.flags import NUMBER, plain, switch, value_of, written
from autoscout.line.shell_words import assigned
from autoscout.space.language.template import PLACEHOLDER
from kb.records import AutoscoutError, Value

Flags = Mapping[str, Sequence[str]]  # flag → its values; an empty sequence for a switch
_ASSIGNMENT = re.compile(r"^\w+=")


class Batch(NamedTuple):
    """The resources that a batch script, an srun or a container requests.

    `nodes`: number of nodes, 0 if it is a variable. `each`: GPUs per node, 0 if unknown. `kind`: the site's name for
    the GPU model, "" if not given. `by_tasks`: whether only tasks are requested, not GPUs; `each` is then the number of
    tasks per node. (A launcher such as torchrun is a single task.) `tasks`: tasks per node, 0 if unknown."""

    nodes: int
    each: int
    kind: str = ""
    by_tasks: bool = False
    tasks: int = 0


class Line(msgspec.Struct, frozen=True, dict=True):
    """A launch line. `words`: the shell words of the command, which may have placeholders of a job file. `environment`:
    variables set for the command. `allocation`: the resources from a scheduler or a container. `place`: the working
    directory. `for_shell`: whether the line needs a shell, because it has variables, pipes, redirections or several
    commands. `writes`: name → content of files that its script writes before it."""

    words: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    allocation: Batch | None = None
    place: Path = Path()
    for_shell: bool = False
    writes: dict[str, str] = {}

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The words, with only the file name of each path."""
        return tuple(Path(word).name for word in self.words)

    @property
    def first(self) -> str:
        """The name of the program that the line starts; "" for an empty line."""
        return self.names[0] if self.words else ""

    @cached_property
    def launcher(self) -> "Line":
        """The words before the Python script; the whole line if there is none."""
        at = next((i for i, word in enumerate(self.words) if word.endswith(".py")), len(self.words))
        return self.of(self.words[:at])

    @property
    def program(self) -> "Line":
        """The Python script and its arguments; an empty line if there is none."""
        return self.of(self.words[len(self.launcher.words) :])

    @cached_property
    def settings_files(self) -> list[str]:
        """The YAML files that the line names, as separate words or as values of flags."""
        return [word.rpartition("=")[2] for word in self.words if word.endswith((".yaml", ".yml"))]

    @cached_property
    def flags(self) -> dict[str, list[str]]:
        """Flag → its values. The last occurrence of a repeated flag counts."""
        return _flags(self.words)

    @cached_property
    def alike(self) -> dict[str, list[str]]:
        """Like `flags`, but names with hyphens are also included with underscores, because Hugging Face's Trainer
        accepts both spellings."""
        return {f"--{name[2:].replace('-', '_')}": v for name, v in self.flags.items() if name[:2] == "--"} | self.flags

    def after(self, script: str) -> dict[str, list[str]]:
        """Like `flags`, but only for the flags after the first word that names this file, possibly inside the text of a
        `bash -c`. {} if no word names it.

        Errors: AutoscoutError (exit 2) for an unclosed quote in that text."""
        return _after(self.words, script)

    def value(self, flag: str) -> Value | None:
        """Returns the value of a flag, or of a word name=value. True for a flag without a value, None if the line does
        not have the flag."""
        on, off = switch(flag)
        if off and off in self.words:
            return False
        at = self._places.get(plain(on.rstrip("=")))
        if at is None:
            return None
        _, equals, text = self.words[at].partition("=")
        return value_of(text) if equals else value_of(self.words[at + 1]) if self._has_value(at) else True

    def first_value(self, flags: Iterable[str]) -> Value | None:
        """Returns the value of the first of these flags that the line has; None if it has none of them."""
        return next((value for flag in flags if (value := self.value(flag)) is not None), None)

    def number(self, flags: Iterable[str]) -> int:
        """Returns the first positive integer among the values of these flags; 0 if there is none."""
        values = (self.value(flag) for flag in flags)
        return next((n for n in values if isinstance(n, int) and not isinstance(n, bool) and n > 0), 0)

    def with_(self, flag: str, value: Value | None) -> "Line":
        """Returns the line with this value for a flag, replaced in place or appended. None or False removes the flag.
        The line is unchanged if the flag has this value already, even if it is spelled differently."""
        now = self.value(flag)
        if now == value and type(now) is type(value):
            return self
        on, off = switch(flag)
        name = plain(on.rstrip("="))
        at = max(self._places.get(name, -1), self._places.get(plain(off), -1) if off else -1)
        if at < 0:
            return self.of([*self.words, *written(on, off, value)])
        given, equals, _ = self.words[at].partition("=")
        follows = not equals and given != off and self._has_value(at)
        if plain(given) == name:  # the same flag, perhaps with a different spelling, which is kept
            on = given + on[len(name) :]
        new = written(on, off, value)
        if equals and len(new) == 2:
            new = [f"{new[0]}={new[1]}"]
        return self.of([*self.words[:at], *new, *self.words[at + 1 + follows :]])

    def without(self, flag: str) -> "Line":
        return self.with_(flag, None)

    def text_of(self, file: str) -> str:
        """Returns the content of a file that the line names. Errors: OSError, UnicodeDecodeError."""
        return self.writes[file] if file in self.writes else Path(file).read_text(encoding="utf-8-sig")

    def of(self, words: Iterable[str]) -> "Line":
        """Returns a copy with these words and the same environment."""
        return msgspec.structs.replace(self, words=tuple(words))

    def __str__(self) -> str:
        """The line as a shell command."""
        return shlex.join(self.words)

    @cached_property
    def _places(self) -> dict[str, int]:
        return {plain(word.partition("=")[0]): i for i, word in enumerate(self.words)}

    def _has_value(self, at: int) -> bool:
        """Whether the word after this flag is its value."""
        after = "".join(self.words[at + 1 : at + 2])
        return bool(after) and (not after.startswith("-") or NUMBER.fullmatch(after) is not None)


def given(
    words: Iterable[str],
    place: Path,
    variables: Mapping[str, str],
    allocation: Batch | None = None,
    writes: Mapping[str, str] = MappingProxyType({}),
) -> Line:
    """Creates a line from the words that a user runs in the folder `place`. Initial words NAME=VALUE set variables.
    `writes`: the files that the line's script writes before it."""
    first, own = assigned([*words])
    return Line(tuple(own), {**variables, **first}, allocation, place, writes={**writes})


@lru_cache(maxsize=256)
def read(text: str, where: str) -> Line:
    """Parses a launch line of a job file, in which placeholders are allowed. A text line that begins with a flag
    continues the previous one, as after a backslash. "" gives an empty line.

    Errors: AutoscoutError (exit 2) for an unclosed quote."""
    places: list[str] = []

    # Replaces each placeholder before shell parsing, because its expression may have spaces and operators.
    def put_by(found: re.Match[str]) -> str:
        places.append(found[0])
        return f"\ue000{len(places) - 1}\ue001"

    text = PLACEHOLDER.sub(put_by, re.sub(r"\\\s*\n|\n(?=\s*-)", " ", text).strip())
    words = split(text, where)
    lexer = shlex.shlex(text, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split, lexer.commenters = True, ""
    unquoted = re.sub(r"'[^']*'", "", text)
    operators = any(token and set(token) <= set("|&;<>") for token in lexer)
    for_shell = operators or re.search(r"[$`]", unquoted) or "\n" in unquoted or _ASSIGNMENT.match("".join(words[:1]))
    words = [re.sub("\ue000(\\d+)\ue001", lambda found: places[int(found[1])], word) for word in words]
    return Line(tuple(words), for_shell=bool(for_shell))


def split(text: str, where: str) -> list[str]:
    """Splits a text into shell words. Errors: AutoscoutError (exit 2) that shows the text before an unclosed quote."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters = True, ""
    found: list[str] = []
    try:
        for word in lexer:
            found.append(word)
    except ValueError as error:
        last = f" after '{shlex.join(found)[-60:]}'" if found else ""
        what = "a quote is opened and never closed" if "quotation" in str(error) else str(error).lower()
        raise AutoscoutError(f"{where}: {what}{last}", 2) from error
    return found


@lru_cache(maxsize=256)
def _after(words: tuple[str, ...], script: str) -> dict[str, list[str]]:
    at = next((i for i, word in enumerate(words) if script in word), None)
    if at is None:
        return {}
    return _flags([*split(words[at].partition(script)[2], "launch.current"), *words[at + 1 :]])


def _flags(words: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    flag = ""
    for word in words:
        if word.startswith("-") and not NUMBER.fullmatch(word):
            flag, equals, value = word.partition("=")
            found[flag] = [value] if equals else []
        elif flag:
            found[flag].append(word)
    return found
