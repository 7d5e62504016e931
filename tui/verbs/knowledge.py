"""Verbs about the knowledge base: sql."""

import sys
from pathlib import Path

import click

from tui.options import common, existing_kb, note


@click.command()
@click.argument("query", metavar="SELECT …")
@click.option("--format", "form", type=click.Choice(["table", "csv", "json", "parquet", "markdown"]), default="table")
@click.option("--limit", type=click.IntRange(min=1), default=1000, show_default=True, help="Rows at most.")
@click.option("--out", type=click.Path(path_type=Path), help="Write to a file instead of stdout.")
@common
def sql(query: str, form: str, limit: int, out: Path | None, kb: Path | None, as_json: bool) -> None:
    """Ask the knowledge base in SQL, read-only. Views: runs, best, failures, sessions, decisions, checks, orderings."""
    from kb import query as queries

    table = queries.run(existing_kb(kb), query, limit=limit)
    rendered = queries.render(table, "json" if as_json else form)
    if out is not None:
        out.write_bytes(rendered if isinstance(rendered, bytes) else rendered.encode())
    elif isinstance(rendered, bytes):
        sys.stdout.buffer.write(rendered)
    else:
        click.echo(rendered)
    if table.truncated:
        note(f"only the first {limit} rows; --limit shows more")
