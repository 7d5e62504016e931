"""Flags of a command line: reading a value, and replacing it."""

import re
import shlex

from autoscout.line.template import PLACEHOLDER, as_text
from kb.records import AutoscoutError, Value

_NUMBER = re.compile(r"^-?\d+(\.\d+)?([eE][+-]?\d+)?$")
_ASSIGNMENT = re.compile(r"^\w+=")


def words_of(command: str, where: str) -> list[str] | None:
    """A command as words; None if it needs a shell: pipes, variables, several commands, redirections. A line that
    begins with a flag continues the one before it, as after a backslash.

    Errors: AutoscoutError (exit 2) for an open quote."""
    places: list[str] = []

    def put_by(found: re.Match[str]) -> str:  # hides expressions, whose spaces and signs are not shell syntax
        places.append(found[0])
        return f"\ue000{len(places) - 1}\ue001"

    text = PLACEHOLDER.sub(put_by, re.sub(r"\\\s*\n|\n(?=\s*-)", " ", command).strip())
    try:
        lexer = shlex.shlex(text, posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split = True
        lexer.commenters = ""
        tokens = list(lexer)
        words = shlex.split(text)
    except ValueError as error:
        raise AutoscoutError(f"{where}: {error}", 2) from error
    if not words:
        raise AutoscoutError(f"{where} is empty", 2)
    unquoted = re.sub(r"'[^']*'", "", text)
    operators = any(token and set(token) <= set("|&;<>") for token in tokens)
    needs_shell = operators or re.search(r"[$`]", unquoted) or "\n" in unquoted or _ASSIGNMENT.match(words[0])
    if needs_shell:
        return None
    return [re.sub("\ue000(\\d+)\ue001", lambda found: places[int(found[1])], word) for word in words]


def is_flag(sets: str) -> bool:
    """Whether a knob's `sets` is a word of the command: --a-flag, or name= as in name=value."""
    return sets.startswith("-") or re.fullmatch(r"[\w.]+=", sets) is not None


def switch(flag: str) -> tuple[str, str]:
    """ "--overlap/--no-overlap" → the flag for on, and the flag for off ("" if there is none)."""
    on, _, off = flag.partition("/")
    return on, off


def said(words: list[str], flag: str) -> Value | None:
    """A flag's value in a command line: True for a flag without a value, None if it is not given."""
    on, off = switch(flag)
    name = on.rstrip("=")
    if off and off in words:
        return False
    for i in range(len(words) - 1, -1, -1):  # the last one counts
        given, equals, text = words[i].partition("=")
        if alike(given, name):
            return value_of(text) if equals else value_of(words[i + 1]) if _follows(words, i) else True
    return None


def _follows(words: list[str], at: int) -> bool:
    """Whether the word after this flag is its value."""
    after = words[at + 1] if at + 1 < len(words) else ""
    return bool(after) and (not after.startswith("-") or _NUMBER.match(after) is not None)


def value_of(text: str) -> Value:
    """The text as a knob's value."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if _NUMBER.match(text):
        return int(text) if re.fullmatch(r"-?\d+", text) else float(text)
    return text


def with_flag(words: list[str], flag: str, value: Value | None) -> list[str]:
    """The line with a flag's value replaced in place, else appended; None or False: without the flag. A value that it
    has already stays as the line spells it."""
    now = said(words, flag)
    if now == value and type(now) is type(value):
        return words
    on, off = switch(flag)
    name = on.rstrip("=")
    places = [i for i, w in enumerate(words) if (off and w == off) or alike(w.partition("=")[0], name)]
    if not places:
        return [*words, *_written(on, off, value)]
    place = places[-1]  # the last one counts
    given, equals, _ = words[place].partition("=")
    if alike(given, name):  # as the line spells it
        on = given + on[len(name) :]
    new = _written(on, off, value)
    follows = words[place] == on.rstrip("=") and _follows(words, place)
    if equals and len(new) == 2:
        new = [f"{new[0]}={new[1]}"]
    return [*words[:place], *new, *words[place + 1 + follows :]]


def alike(given: str, name: str) -> bool:
    """Whether they are one flag: the parsers of the Hugging Face scripts take --a-flag for --a_flag."""
    return given == name or (name.startswith("--") and given.replace("_", "-") == name.replace("_", "-"))


def _written(on: str, off: str, value: Value | None) -> list[str]:
    if on.endswith("="):
        return [] if value is None else [f"{on}{as_text(value)}"]
    if isinstance(value, bool):
        return [on] if value else [off] if off else []
    return [] if value is None else [on, as_text(value)]
