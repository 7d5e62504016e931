"""A launch line, parsed once: its words, the values of its flags, its environment and its allocation."""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from autoscout.line.flags import NUMBER, plain, switch, value_of, written
from autoscout.line.shell_words import assigned
from autoscout.space.language.template import PLACEHOLDER
from kb.records import AutoscoutError, Value

Flags = Mapping[str, Sequence[str]]  # flag → its words; empty for a switch
_ASSIGNMENT = re.compile(r"^\w+=")


class Batch(NamedTuple):
    """What a batch script or allocation provides. `nodes`: 0 if only a variable gives the number. `each`: devices of a
    node, 0 if it has an unknown number of them. `kind`: the site's name for them, "" if the lines do not say.
    `by_tasks`: the lines give tasks instead of devices, and a launcher such as torchrun is one task. `tasks`: how many
    start on each node, 0 if unknown."""

    nodes: int
    each: int
    kind: str = ""
    by_tasks: bool = False
    tasks: int = 0


class Line(msgspec.Struct, frozen=True, dict=True):
    """`words`: as the program gets them; a job's placeholders stay whole. `environment`: the variables set for it.
    `allocation`: what a scheduler or a container provides. `place`: the folder that it runs in. `for_shell`: only a
    shell can run it, because it has variables, pipes, redirections or several commands."""

    words: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    allocation: Batch | None = None
    place: Path = Path()
    for_shell: bool = False

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The words without leading folders."""
        return tuple(Path(word).name for word in self.words)

    @property
    def first(self) -> str:
        """The name of the program that it starts; "" for an empty line."""
        return self.names[0] if self.words else ""

    @cached_property
    def launcher(self) -> "Line":
        """The part before its Python script; the whole line without such a script."""
        at = next((i for i, word in enumerate(self.words) if word.endswith(".py")), len(self.words))
        return self.of(self.words[:at])

    @property
    def program(self) -> "Line":
        """Its Python script and the script's arguments; empty without such a script."""
        return self.of(self.words[len(self.launcher.words) :])

    @cached_property
    def settings_files(self) -> list[str]:
        """The YAML files that it names, as separate words or as values of flags."""
        return [word.rpartition("=")[2] for word in self.words if word.endswith((".yaml", ".yml"))]

    @cached_property
    def flags(self) -> dict[str, list[str]]:
        """The words after each flag; of a repeated flag the last one counts."""
        return _flags(self.words)

    @cached_property
    def alike(self) -> dict[str, list[str]]:
        """Like `flags`, with a second entry, with underscores, for each name with hyphens; a Trainer accepts both."""
        return {f"--{name[2:].replace('-', '_')}": v for name, v in self.flags.items() if name[:2] == "--"} | self.flags

    def after(self, script: str) -> dict[str, list[str]]:
        """Like `flags`, for the flags after a file of this name, which may be inside the text of a `bash -c`; {}
        without that file.

        Errors: AutoscoutError (exit 2) for an unclosed quote in that text."""
        return _after(self.words, script)

    def value(self, flag: str) -> Value | None:
        """The value of a flag, or of a word name=value: True for a flag without a value, None if it is not given."""
        on, off = switch(flag)
        if off and off in self.words:
            return False
        at = self._places.get(plain(on.rstrip("=")))
        if at is None:
            return None
        _, equals, text = self.words[at].partition("=")
        return value_of(text) if equals else value_of(self.words[at + 1]) if self._has_value(at) else True

    def first_value(self, flags: Iterable[str]) -> Value | None:
        """The value of the first of these flags that is given."""
        return next((value for flag in flags if (value := self.value(flag)) is not None), None)

    def number(self, flags: Iterable[str]) -> int:
        """The first positive number among the values of these flags; 0 if there is none."""
        values = (self.value(flag) for flag in flags)
        return next((n for n in values if isinstance(n, int) and not isinstance(n, bool) and n > 0), 0)

    def with_(self, flag: str, value: Value | None) -> "Line":
        """The line with a flag's value replaced in place, or appended. None or False removes the flag. A value that it
        already has keeps the line's spelling."""
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
        if plain(given) == name:  # keeps the line's spelling of the flag
            on = given + on[len(name) :]
        new = written(on, off, value)
        if equals and len(new) == 2:
            new = [f"{new[0]}={new[1]}"]
        return self.of([*self.words[:at], *new, *self.words[at + 1 + follows :]])

    def without(self, flag: str) -> "Line":
        return self.with_(flag, None)

    def of(self, words: Iterable[str]) -> "Line":
        """A copy with other words."""
        return msgspec.structs.replace(self, words=tuple(words))

    def __str__(self) -> str:
        """The line as a shell would read it."""
        return shlex.join(self.words)

    @cached_property
    def _places(self) -> dict[str, int]:
        return {plain(word.partition("=")[0]): i for i, word in enumerate(self.words)}

    def _has_value(self, at: int) -> bool:
        """Whether the word after this flag is its value."""
        after = "".join(self.words[at + 1 : at + 2])
        return bool(after) and (not after.startswith("-") or NUMBER.fullmatch(after) is not None)


def given(words: Iterable[str], place: Path, variables: Mapping[str, str], allocation: Batch | None = None) -> Line:
    """A line as a user starts it in a folder; its first words may set variables."""
    first, own = assigned([*words])
    return Line(tuple(own), {**variables, **first}, allocation, place)


@lru_cache(maxsize=256)
def read(text: str, where: str) -> Line:
    """Parses a line of a job file, which may have placeholders; "" gives an empty line. A line that begins with a flag
    continues the previous one, as after a backslash.

    Errors: AutoscoutError (exit 2) for an unclosed quote."""
    places: list[str] = []

    def put_by(found: re.Match[str]) -> str:  # hides expressions, with their spaces and operators, from shell parsing
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
    """The words of a text. Errors: AutoscoutError (exit 2) for an unclosed quote, with the text before it."""
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
