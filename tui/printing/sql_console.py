"""A line-based SQL prompt with history, which `autoscout sql` opens on a terminal."""

import contextlib
import time
from pathlib import Path

import click

from kb import query
from kb.query_formats import render
from kb.records import AutoscoutError
from tui.session.remembered import state_folder

_HELP = """\
A query ends with ';' (or an empty line). Queries only read. Ctrl-C ends a running query, Ctrl-D the console.
  .views             the views and what they are about: docs/knowledge-base.md
  .columns VIEW      the columns of a view
  .format FORMAT     table, csv, json or markdown
  .limit N           show at most N rows"""


def run(kb: Path, limit: int, form: str) -> None:
    _with_history()
    click.echo(f"{kb}: read-only; .help lists commands, Ctrl-D quits", err=True)
    while (text := _read()) is not None:
        word, _, rest = text.partition(" ")
        try:
            match word:
                case "":
                    continue
                case ".help":
                    click.echo(_HELP)
                case ".views":
                    click.echo(answer(kb, "SELECT view_name AS view FROM duckdb_views() WHERE NOT internal", 100, form))
                case ".columns":
                    click.echo(answer(kb, f'DESCRIBE "{rest.strip()}"', 200, form))
                case ".format":
                    render(query.Table([], [], [], False), rest.strip())
                    form = rest.strip()
                case ".limit":
                    limit = max(int(rest), 1)
                case _ if word.startswith("."):
                    raise AutoscoutError(f"there is no command {word}; .help lists them")
                case _:
                    click.echo(answer(kb, text, limit, form))
        except AutoscoutError as error:
            click.echo(str(error), err=True)
        except ValueError:
            click.echo(f"'{rest}' is not a number", err=True)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)


def answer(kb: Path, sql: str, limit: int, form: str) -> str:
    began = time.perf_counter()
    table = query.run(kb, sql, limit=limit)
    rendered = render(table, form)
    click.echo(timing(len(table.rows), table.truncated, time.perf_counter() - began), err=True)
    return rendered if isinstance(rendered, str) else "parquet needs --out FILE"


def timing(rows: int, truncated: bool, seconds: float) -> str:
    more = f", only the first {rows}; --limit shows more" if truncated else ""
    return f"{rows} row{'' if rows == 1 else 's'} in {seconds:.3f} s{more}"


def _read() -> str | None:
    """Reads one query or command; None at the end of input."""
    lines: list[str] = []
    while True:
        try:
            line = input("sql> " if not lines else "...> ")
        except EOFError:
            return None
        except KeyboardInterrupt:
            click.echo("", err=True)
            return ""
        if not lines and line.strip().startswith("."):
            return line.strip()
        lines.append(line)
        if line.rstrip().endswith(";") or not line.strip():
            return "\n".join(lines).strip()


def _with_history() -> None:
    with contextlib.suppress(ImportError, OSError):
        import atexit
        import readline

        path = state_folder() / "sql-history"
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.exists():
            readline.read_history_file(path)
        readline.set_history_length(1000)
        atexit.register(readline.write_history_file, path)
