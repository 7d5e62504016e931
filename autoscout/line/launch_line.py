"""A launch line that is read once: its words, what its flags say, and what is around it."""

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

Flags = Mapping[str, Sequence[str]]  # flag → its words, none for a switch
_ASSIGNMENT = re.compile(r"^\w+=")


class Batch(NamedTuple):
    """`each`: devices of a node, 0 if only that there are some is known. `kind`: theirs as the site calls it, "" if the
    lines do not say. `by_tasks`: they say no devices, but tasks, of which a launcher such as torchrun is one; `tasks`:
    how many start on each node, 0 if they do not say. `nodes`: 0 where only a variable says them."""

    nodes: int
    each: int
    kind: str = ""
    by_tasks: bool = False
    tasks: int = 0


class Line(msgspec.Struct, frozen=True, dict=True):
    """`words`: as the program gets them; placeholders of a job are whole. `environment`: the variables that are set for
    it. `allocation`: what a scheduler or a container gives it. `place`: the folder that it runs in. `for_shell`: only a
    shell can run it, since it has variables, pipes, redirections or several commands."""

    words: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    allocation: Batch | None = None
    place: Path = Path()
    for_shell: bool = False

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The words without the folders before them."""
        return tuple(Path(word).name for word in self.words)

    @property
    def first(self) -> str:
        """The name of what it starts; "" of an empty line."""
        return self.names[0] if self.words else ""

    @cached_property
    def launcher(self) -> "Line":
        """What comes before its script of Python; all of it, where it has none."""
        at = next((i for i, word in enumerate(self.words) if word.endswith(".py")), len(self.words))
        return self.of(self.words[:at])

    @property
    def program(self) -> "Line":
        """Its script of Python and what that is given; nothing, where it has none."""
        return self.of(self.words[len(self.launcher.words) :])

    @cached_property
    def settings_files(self) -> list[str]:
        """The YAML files that it names, by themselves or as the value of a flag."""
        return [word.rpartition("=")[2] for word in self.words if word.endswith((".yaml", ".yml"))]

    @cached_property
    def flags(self) -> dict[str, list[str]]:
        """The words after each flag; of a repeated flag the last one counts."""
        return _flags(self.words)

    @cached_property
    def alike(self) -> dict[str, list[str]]:
        """As `flags`, those with hyphens by the names with underscores, too, which a Trainer takes for the same."""
        return {f"--{name[2:].replace('-', '_')}": v for name, v in self.flags.items() if name[:2] == "--"} | self.flags

    def after(self, script: str) -> dict[str, list[str]]:
        """As `flags`, of those after a file of this name, which may stand in the text of a `bash -c`; {} without it.

        Errors: AutoscoutError (exit 2) for an open quote in that text."""
        return _after(self.words, script)

    def said(self, flag: str) -> Value | None:
        """A flag's value, also of name=: True for a flag without a value, None if it is not given."""
        on, off = switch(flag)
        if off and off in self.words:
            return False
        at = self._places.get(plain(on.rstrip("=")))
        if at is None:
            return None
        _, equals, text = self.words[at].partition("=")
        return value_of(text) if equals else value_of(self.words[at + 1]) if self._has_value(at) else True

    def first_said(self, flags: Iterable[str]) -> Value | None:
        """What the first of these flags says that says anything."""
        return next((value for flag in flags if (value := self.said(flag)) is not None), None)

    def number(self, flags: Iterable[str]) -> int:
        """The positive number that the first of these flags says; 0 if none does."""
        values = (self.said(flag) for flag in flags)
        return next((n for n in values if isinstance(n, int) and not isinstance(n, bool) and n > 0), 0)

    def with_(self, flag: str, value: Value | None) -> "Line":
        """With a flag's value replaced in place, else appended; None or False: without the flag. A value that it has
        already stays as the line spells it."""
        now = self.said(flag)
        if now == value and type(now) is type(value):
            return self
        on, off = switch(flag)
        name = plain(on.rstrip("="))
        at = max(self._places.get(name, -1), self._places.get(plain(off), -1) if off else -1)
        if at < 0:
            return self.of([*self.words, *written(on, off, value)])
        given, equals, _ = self.words[at].partition("=")
        follows = not equals and given != off and self._has_value(at)
        if plain(given) == name:  # as the line spells it
            on = given + on[len(name) :]
        new = written(on, off, value)
        if equals and len(new) == 2:
            new = [f"{new[0]}={new[1]}"]
        return self.of([*self.words[:at], *new, *self.words[at + 1 + follows :]])

    def without(self, flag: str) -> "Line":
        return self.with_(flag, None)

    def of(self, words: Iterable[str]) -> "Line":
        """With other words in the same place."""
        return msgspec.structs.replace(self, words=tuple(words))

    def __str__(self) -> str:
        """As a shell reads it."""
        return shlex.join(self.words)

    @cached_property
    def _places(self) -> dict[str, int]:
        return {plain(word.partition("=")[0]): i for i, word in enumerate(self.words)}

    def _has_value(self, at: int) -> bool:
        """Whether the word after this flag is its value."""
        after = "".join(self.words[at + 1 : at + 2])
        return bool(after) and (not after.startswith("-") or NUMBER.fullmatch(after) is not None)


def given(words: Iterable[str], place: Path, variables: Mapping[str, str], allocation: Batch | None = None) -> Line:
    """As a person starts it in a folder; its first words may set variables."""
    first, own = assigned([*words])
    return Line(tuple(own), {**variables, **first}, allocation, place)


@lru_cache(maxsize=256)
def read(text: str, where: str) -> Line:
    """A line of a job file, as text with placeholders; nothing in "". A line that begins with a flag continues the one
    before it, as after a backslash.

    Errors: AutoscoutError (exit 2) for an open quote."""
    places: list[str] = []

    def put_by(found: re.Match[str]) -> str:  # hides expressions, whose spaces and signs are not shell syntax
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
    """The words of a text. Errors: AutoscoutError (exit 2) for an open quote, with what was read before it."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters = True, ""
    found: list[str] = []
    try:
        for word in lexer:
            found.append(word)
    except ValueError as error:
        read_part = f"; it was read up to '{shlex.join(found)[-60:]}', and not what follows" if found else ""
        raise AutoscoutError(f"{where}: {error}{read_part}", 2) from error
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
