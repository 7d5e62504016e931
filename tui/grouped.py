"""A --help that groups the commands (verbs) by the user's goal."""

import re
from typing import Any

import click

from kb.refusal import AutoscoutError
from tui.options import READ

_WIDE = 62  # width of a verb's description, so that a line fits into 80 columns


class Verbs(click.Group):
    """`headings`: heading → names of its verbs, in order; if empty, all verbs are in one list."""

    headings: dict[str, list[str]] = {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for names in self.headings.values() for name in names] or super().list_commands(ctx)

    def invoke(self, ctx: click.Context) -> Any:
        """Errors about a job begin with its name; here this is replaced by the path of the job file that was read."""
        try:
            return super().invoke(ctx)
        except AutoscoutError as error:
            named, file = ctx.meta.get(READ, ("", ""))
            if not (named and str(error).startswith(named)):
                raise
            raise AutoscoutError(file + str(error).removeprefix(named), error.exit_code) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        wide = max(len(name) for name in self.list_commands(ctx))
        for heading, names in (self.headings or {"Commands": self.list_commands(ctx)}).items():
            rows = [(name.ljust(wide), brief(self.commands[name])) for name in names]
            with formatter.section(heading):
                formatter.write_dl(rows)


def brief(command: click.Command) -> str:
    """The start of a command's help that fits on a line, ending with a sentence, a clause or a question."""
    text = re.sub(r"\s+", " ", command.short_help or command.help or "").strip()
    for clause in (r"[.:;](?= |$)| \(", r",(?= )", r"(?<=\?)(?= )"):
        ends = [found.start() for found in re.finditer(clause, text) if found.start() <= _WIDE]
        if ends:
            return text[: ends[-1]]
    return text[:_WIDE].rstrip()
