"""The manual page in troff, generated from the verbs and the table of keys: `man ./autoscout.1`."""

import re
from collections.abc import Iterator

import click

from tui import actions
from tui.grouped import Verbs, brief

_CODES = (
    ("0", "done"),
    ("1", "it ran and failed; the sentence on standard error gives the reason"),
    ("2", "wrong usage or bad input"),
    ("3", "nothing feasible, or an invalid configuration"),
    ("130", "interrupted; everything measured is kept"),
    ("141", "the program that reads the output exited, as head does; tune continues without it"),
)
_FILES = (
    ("$AUTOSCOUT_KB", "the knowledge base; by default autoscout/kb.duckdb in the XDG data directory"),
    ("sessions/", "next to it: a folder per session with its journal, the only source of truth"),
)
_ENVIRONMENT = (
    ("AUTOSCOUT_KB", "the knowledge base"),
    ("AUTOSCOUT_THEME", "dark, light or colour-blind-safe"),
    ("NO_COLOR", "no colour anywhere"),
    ("AUTOSCOUT_DEBUG", "show where an internal error occurred"),
)


def page(root: click.Context) -> str:
    group = root.command
    if not isinstance(group, Verbs):
        raise TypeError("not the group of verbs")
    return "\n".join(_lines(root, group)) + "\n"


def _lines(root: click.Context, group: Verbs) -> Iterator[str]:
    yield '.TH AUTOSCOUT 1 "" "AutoScout" "User Commands"'
    yield from (".SH NAME", r"autoscout \- find the best configuration of a training or serving job by running it")
    yield from (".SH SYNOPSIS", r".B autoscout", r"[\fIVERB\fR [\fIOPTIONS\fR] \fIARGUMENTS\fR]")
    yield from (".SH DESCRIPTION", _text(group.help or ""))
    for heading, names in group.headings.items():
        yield f".SH {_text(heading).upper()}"
        for name in names:
            yield from _verb(root, group.commands[name])
    yield ".SH KEYS OF THE SCREENS"
    for a in (*actions.HOME, *actions.WIZARD, *actions.ACTIONS):
        yield from (".TP", f".B {_text(actions.keys_of(a))}", _text(a.says + (f" ({a.verb})" if a.verb else "")))
    for title, rows in (("EXIT STATUS", _CODES), ("ENVIRONMENT", _ENVIRONMENT), ("FILES", _FILES)):
        yield f".SH {title}"
        for name, what in rows:
            yield from (".TP", f".B {_text(name)}", _text(what))


def _verb(root: click.Context, command: click.Command) -> Iterator[str]:
    context = click.Context(command, info_name=command.name, parent=root)
    words = [f"autoscout {command.name}", *command.collect_usage_pieces(context)]
    yield from (f".SS {_text(' '.join(words))}", _text(command.help or ""))
    members = command.commands.values() if isinstance(command, click.Group) else ()
    for member in members:
        yield from (".TP", f".B {_text(str(member.name))}", _text(brief(member)))
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and record[1] and "--help" not in record[0]:
            yield from (".TP", f".B {_text(record[0])}", _text(record[1]))


def _text(text: str) -> str:
    r"""One paragraph escaped for troff: \ and - are escaped, and no line begins with a dot."""
    joined = re.sub(r"\s+", " ", text.replace("\b", " ")).strip()
    written = joined.replace("\\", r"\e").replace("-", r"\-")
    written = "".join(c if c.isascii() else rf"\[u{ord(c):04X}]" for c in written)
    return rf"\&{written}" if written[:1] in (".", "'") else written
