"""Verbs about the knowledge base: sql, kb, similar, import."""

import os
import sys
import time
from pathlib import Path

import click

from kb.refusal import AutoscoutError
from tui.grouped import Verbs
from tui.options import (
    PATH,
    GivenPath,
    NumberRange,
    common,
    existing_kb,
    kb_path,
    load_job,
    names_job,
    note,
    session_names,
)

_ENDINGS = {".csv": "csv", ".json": "json", ".parquet": "parquet", ".md": "markdown"}


@click.command()
@click.argument("query", metavar="[SELECT …]", required=False)
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", *_ENDINGS.values()]),
    help="Format of the answer. Default: FILE's ending, else table.",
)
@click.option("--limit", type=click.IntRange(min=1), default=1000, show_default=True, help="Largest number of rows.")
@click.option("--offset", type=click.IntRange(min=0), default=0, help="Rows to skip at the beginning.")
@click.option("--out", metavar="FILE", type=PATH, help="Write to a file instead of stdout.")
@click.option(
    "--seconds", type=NumberRange(min=0.1, max=1e6), default=60.0, show_default=True, help="Time limit in seconds."
)
@click.option(
    "--memory-mib", type=click.IntRange(min=64, max=2**24), default=1024, show_default=True, help="Memory limit."
)
@common
def sql(
    query: str | None,
    form: str | None,
    limit: int,
    offset: int,
    out: Path | None,
    seconds: float,
    memory_mib: int,
    kb: Path | None,
    as_json: bool,
) -> None:
    """Ask the knowledge base in SQL, read-only; without a query a console opens, or standard input is read.

    Views: runs, ranks, best, results, results_anew, failures, incidents, knob_effects, sessions, imports, sources,
    periods, decisions, grids, arms, checks, simulator_accuracy, simulator_fits, orderings, warm_starts, gates, shadows,
    parts, models, clusters, versions, objectives, authors, device_hours.
    """
    from kb import store
    from kb.query import run
    from kb.query_formats import render
    from tui.printing import sql_console

    ending = out.suffix.lower() if out else ""
    if not form and not as_json and ending not in ("", ".txt", *_ENDINGS):
        raise click.UsageError(f"--out {out}: the ending must be {', '.join(_ENDINGS)} or .txt; or give --format")
    form = "json" if as_json else form or _ENDINGS.get(ending, "table")
    path = existing_kb(kb)
    for problem in store.bring_in(path):
        note(problem)
    if query is None and sys.stdin.isatty():
        sql_console.run(path, limit, form)
        return
    query = sys.stdin.read() if query in (None, "-") else query
    if not query or not query.strip():
        raise click.UsageError("give a query, such as 'FROM runs'; without a query, sql needs a terminal")
    began = time.perf_counter()
    table = run(path, query, limit, offset, seconds=seconds, memory_mib=memory_mib)
    rendered = render(table, form)
    if out is not None:
        out.write_bytes(rendered if isinstance(rendered, bytes) else rendered.encode())
    elif isinstance(rendered, bytes):
        sys.stdout.buffer.write(rendered)
    else:
        click.echo(rendered)
    note(sql_console.timing(len(table.rows), table.truncated, time.perf_counter() - began))


@click.command()
@click.argument("what", metavar="JOB.toml|SESSION")
@click.option("--accept", metavar="JOB", help="From now on use that past job for warm starts, however different it is.")
@click.option("--reject", metavar="JOB", help="From now on do not use that past job, however similar it is.")
@click.option("--count", type=click.IntRange(min=1), default=5, show_default=True, help="Largest number of past jobs.")
@common
def similar(what: str, accept: str | None, reject: str | None, count: int, kb: Path | None, as_json: bool) -> None:
    """Show the most similar past jobs, how they differ, and what a new session would take over; accept or reject one by
    its name or id."""
    from autoscout.space.attributes import memory_gib
    from autoscout.targets.jobs import JobSpace
    from autoscout.tuning import warm_start
    from kb import choices
    from kb import similar as similarity
    from tui.printing import kb_report
    from tui.session.follow import job_of

    path = existing_kb(kb)
    job = load_job(Path(what)) if names_job(what) else job_of(path, what)
    found = similarity.similar(path, job, memory_gib, count=count, on_note=note)
    for name in (accept, reject):
        if name is not None:
            there = [a.job.id for a in found if name in (a.job.name, a.job.id)]
            if not there:
                raise AutoscoutError(f"'{name}' is not among the {len(found)} nearest jobs; --count shows more", 2)
            choices.choose(path, job.id, there[0], name is accept, f"verb, pid {os.getpid()}")
    carried = warm_start.gather(path, job, JobSpace.of_job(job))
    kb_report.similar(job, found, carried, choices.choices(path, job.id), as_json)


@click.command("import")
@click.argument("source", metavar="TABLE", type=PATH)
@click.option("--job", "job_file", required=True, metavar="JOB.toml", type=PATH)
@click.option(
    "--map",
    "maps",
    metavar="COLUMN=NAME",
    multiple=True,
    help="The meaning of a column: a knob, a metric, status, cost_s …; - ignores it, + keeps it.",
)
@click.option("--set", "sets", metavar="KNOB=VALUE", multiple=True, help="The value of a knob in all rows.")
@click.option(
    "--unit",
    "units",
    metavar="COLUMN=UNIT",
    multiple=True,
    help="A column's unit: ns, us, ms, s, min, h; bytes, mib, gib …",
)
@click.option("--reader", help="Reader of the file (default: detected).")
@click.option("--dry-run", is_flag=True, help="Say what would be imported, and store nothing.")
@common
def import_(
    source: Path,
    job_file: Path,
    maps: tuple[str, ...],
    sets: tuple[str, ...],
    units: tuple[str, ...],
    reader: str | None,
    dry_run: bool,
    kb: Path | None,
    as_json: bool,
) -> None:
    """Import measurements made elsewhere: a table, a tool's file, or everything in a folder that can be read (CSV,
    Parquet, results of benchmarks, tuners, trainers and their logs). `kb forget --import ID` undoes it."""
    from autoscout.importing import bring_in
    from tui.printing import kb_report

    job = load_job(job_file)
    given = bring_in.ImportOptions(maps, sets, units, reader or "", dry_run)
    kb_report.brought(bring_in.bring_in_all(kb_path(kb), source, job, given), source.is_dir(), dry_run, as_json)


@click.group("kb", cls=Verbs)
def kb_() -> None:
    """Manage the knowledge base: size, integrity, sharing, copies, forgetting."""


@kb_.command()
@common
def info(kb: Path | None, as_json: bool) -> None:
    """Show sizes, counts and versions of the knowledge base."""
    from kb import care
    from tui.printing import kb_report

    kb_report.info(care.info(existing_kb(kb)), as_json)


@kb_.command()
@click.option("--secrets", is_flag=True, help="Only look for keys, tokens and passwords that were stored.")
@common
def check(secrets: bool, kb: Path | None, as_json: bool) -> None:
    """Check integrity: checksums, references, hashes, journals, imports. Exit code 1 if something is wrong."""
    from kb import care
    from tui.printing import kb_report

    path = existing_kb(kb)
    findings = care.check_secrets(path) if secrets else care.check(path)
    kb_report.findings(findings, as_json)
    if not all(finding.ok for finding in findings):
        raise SystemExit(1)


@kb_.command()
@common
def redact(kb: Path | None, as_json: bool) -> None:
    """Remove secrets (keys, tokens, passwords) that `kb check --secrets` finds from journals, logs and rows."""
    from kb import redact as redacting
    from tui.printing import kb_report

    done = redacting.remove(existing_kb(kb))
    for text in done.left:
        note(text)
    sentence = f"{len(done.files)} files and the rows of {len(done.sessions)} sessions no longer contain secrets"
    document = {"files": done.files, "sessions": done.sessions, "left": done.left}
    kb_report.say(document, sentence, as_json)
    if done.left:
        raise SystemExit(1)


@kb_.command()
@click.argument("journals", metavar="[JOURNAL]...", nargs=-1, type=PATH)
@common
def ingest(journals: tuple[Path, ...], kb: Path | None, as_json: bool) -> None:
    """Store new events of journals. Without a JOURNAL, it stores those of all journals of this knowledge base, and new
    imports. Stored events are skipped. The exit code is not 0 if something could not be stored."""
    from kb import store
    from tui.printing import kb_report

    path, code = kb_path(kb), 1
    new, problems = (0, []) if journals else store.ingest_all(path)
    for journal in journals:
        try:
            new += store.ingest(path, journal)
        except AutoscoutError as error:  # the other journals are still imported
            problems.append(str(error))
            code = error.exit_code
    for problem in problems:
        note(problem)
    kb_report.say({"new": new, "problems": problems}, f"{new} new measurements", as_json)
    if problems:
        raise SystemExit(code)


@kb_.command()
@click.argument("lake", metavar="FOLDER|postgres://…", type=GivenPath())
@click.option("--data", type=PATH, help="With postgres: the shared folder for the data files.")
@click.option("--sign", "key", type=PATH, envvar="AUTOSCOUT_SIGN_KEY", help="An ssh key that signs your files.")
@common
def push(lake: str, data: Path | None, key: Path | None, kb: Path | None, as_json: bool) -> None:
    """Add sessions and imports to a lake (a shared folder) that lacks them. Entries in a lake never change."""
    from kb.sharing import places
    from tui.printing import kb_report

    kb_report.moved(places.push(existing_kb(kb), lake, data, key), "put into", lake, as_json)


@kb_.command()
@click.argument("lake", metavar="FOLDER|postgres://…", type=GivenPath())
@common
def pull(lake: str, kb: Path | None, as_json: bool) -> None:
    """Store sessions and imports of a lake that are not stored here yet; incomplete files are skipped."""
    from kb.sharing import places
    from tui.printing import kb_report

    kb_report.moved(places.pull(kb_path(kb), lake), "taken from", lake, as_json)


@kb_.command()
@click.argument("author", required=False)
@click.argument("level", required=False, type=click.Choice(["answer", "hint", "ignore"]))
@click.option("--key", type=PATH, help="The author's public ssh key: a file that ends with .pub.")
@common
def trust(author: str | None, level: str | None, key: Path | None, kb: Path | None, as_json: bool) -> None:
    """Set how much an author's measurements count; without a name, list the authors. `unsigned`: signed by nobody.

    answer: like your own measurements; hint (the default): only ideas for what to try; ignore: not used.
    """
    from kb.sharing import author_trust as trusting
    from kb.sharing import signatures
    from tui.printing import kb_report

    path = kb_path(kb)
    if author is not None:
        if level is None:
            levels = "answer (like your own), hint (only ideas for what to try) or ignore (not used)"
            raise click.UsageError(f"write after {author} how much its measurements count: {levels}")
        trusting.decide(path, author, level, signatures.public_key(key) if key else "")
    kb_report.authors(trusting.authors(path), as_json)


@kb_.command()
@click.argument("copy", metavar="FILE", type=PATH)
@common
def backup(copy: Path, kb: Path | None, as_json: bool) -> None:
    """Write a complete, compact copy, even while sessions run."""
    from kb import care
    from tui.printing import kb_report

    size = care.back_up(existing_kb(kb), copy)
    kb_report.say({"copy": str(copy), "bytes": size}, f"{copy}: {size / 2**20:.1f} MiB", as_json)


@kb_.command()
@click.argument("copy", metavar="FILE", type=PATH)
@common
def restore(copy: Path, kb: Path | None, as_json: bool) -> None:
    """Replace the knowledge base by a backup, then add what only journals and imports contain; the old file is kept."""
    from kb import care
    from tui.printing import kb_report

    new, aside = care.restore(kb_path(kb), copy)
    kept = f"; the previous file is now {aside}" if aside else ""
    document = {"new": new, "aside": str(aside) if aside else None}
    kb_report.say(document, f"restored; {new} more measurements came from journals and imports{kept}", as_json)


@kb_.command()
@click.argument("sessions", metavar="[SESSION]...", nargs=-1, shell_complete=session_names)
@click.option("--host", help="Forget every session that ran on this host.")
@click.option("--import", "imported", metavar="ID", help="Forget an import; `autoscout sql 'FROM imports'` lists them.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@common
def forget(
    sessions: tuple[str, ...], host: str | None, imported: str | None, yes: bool, kb: Path | None, as_json: bool
) -> None:
    """Remove sessions, an import, or all sessions of a host: rows, journals, folders and files."""
    from kb import forget as forgetting
    from tui.printing import kb_report

    path = existing_kb(kb)
    chosen = [*sessions, *([imported] if imported else [])]
    if host:
        chosen += forgetting.sessions_of_host(path, host)
    if not chosen:
        raise click.UsageError("give a session, --host NAME or --import ID")
    if not yes and sys.stdin.isatty() and not as_json:
        click.confirm(f"Move {', '.join(chosen)} to the trash?", abort=True)
    kb_report.forgotten(forgetting.forget(path, list(dict.fromkeys(chosen))), as_json)


@kb_.command()
@click.argument("sessions", metavar="[SESSION]...", nargs=-1, shell_complete=session_names)
@common
def undelete(sessions: tuple[str, ...], kb: Path | None, as_json: bool) -> None:
    """Restore forgotten sessions and imports from the trash; without a name, list the trash."""
    from kb import forget as forgetting
    from tui.printing import kb_report

    path = existing_kb(kb)
    if not sessions:
        there = forgetting.deleted(path)
        kb_report.say({"deleted": there}, "\n".join(there) or "the trash is empty", as_json)
        return
    done = forgetting.undelete(path, list(dict.fromkeys(sessions)))
    document = {"sessions": done.sessions, "measurements": done.measurements}
    kb_report.say(document, f"{', '.join(done.sessions)}: {done.measurements} measurements are restored", as_json)
