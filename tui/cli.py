"""The command line: one command per verb. Heavy imports happen inside the verbs, so that --help is instant."""

import contextlib
import os
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="autoscout")
def cli() -> None:
    """Finds the best configuration of an LLM training job by running it, and remembers every measurement."""


def _common(command: F) -> F:
    """Options that every verb takes."""
    command = click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")(command)
    return click.option("--kb", "kb", type=click.Path(path_type=Path), help="Knowledge base file.")(command)


def _kb(given: Path | None) -> Path:
    from kb.store import default_path

    if given is not None and given.name == "":
        raise click.UsageError("--kb is empty; give a file, such as kb.duckdb")
    return given or default_path()


def _existing_kb(given: Path | None) -> Path:
    """For verbs that only read: a mistyped name must not answer from an empty knowledge base."""
    path = _kb(given)
    if given is not None and not path.exists():
        raise click.UsageError(f"{path}: there is no knowledge base; `autoscout tune` creates one")
    return path


def _note(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody reads it any more
        click.echo(f"autoscout: {text}", err=True)


@cli.command()
@click.argument("job_file", metavar="JOB.toml", required=False, type=click.Path(path_type=Path))
@click.option("--profiles", type=int, help="Experiments of the search (default: the job's budget).")
@click.option("--wall", help="Wall-clock limit of the search: 90s, 20m, 2h.")
@click.option("--strategy", type=click.Choice(["autoscout", "paper", "random"]), default="autoscout", show_default=True)
@click.option("--seed", type=int, default=0, show_default=True, help="Same seed, same decisions.")
@click.option(
    "--warm-start",
    type=click.Choice(["auto", "off"]),
    default="auto",
    show_default=True,
    help="Whether the knowledge base is used.",
)
@click.option(
    "--fidelity",
    type=click.Choice(["adaptive", "profile", "simulate"]),
    default="adaptive",
    show_default=True,
    help="Simulators while they are right, only experiments, or only simulators.",
)
@click.option("--no-tui", is_flag=True, help="Plain progress lines, also on a terminal.")
@click.option("--resume", metavar="SESSION", help="Go on with a session that was interrupted.")
@click.option("--dry-run", is_flag=True, help="Say what would be done and run nothing.")
@_common
def tune(
    job_file: Path | None,
    profiles: int | None,
    wall: str | None,
    strategy: str,
    seed: int,
    warm_start: str,
    fidelity: str,
    no_tui: bool,
    resume: str | None,
    dry_run: bool,
    kb: Path | None,
    as_json: bool,
) -> None:
    """Run a tuning session and end on a measured winner."""
    from autoscout import loop, session
    from kb import journal as journals
    from tui import plain, report

    path = _kb(kb)
    past = []
    if resume is not None:
        started = session.session_started(path, resume)
        past = journals.events(session.session_folder(path, resume) / "journal.jsonl")
        job = started.job
        _check_resumed(job_file, job)
    elif job_file is None:
        raise click.UsageError("give a job file, or --resume SESSION")
    else:
        job = _job(job_file, profiles, wall)
    if dry_run:
        report.dry_run(job, as_json)
        return
    stop = loop.Stop()
    _stop_on_signals(stop)
    progress = plain.Progress(job, resume or "", _lines(sys.stderr if as_json else sys.stdout))
    progress.replay(past)
    try:
        if resume is not None:
            result = session.resume(resume, path, progress.see, _note, stop)
        else:
            options = session.Options(strategy=strategy, seed=seed, fidelity=fidelity, warm_start=warm_start)  # type: ignore[arg-type]
            result = session.tune(job, path, options, progress.see, _note, stop)
    except loop.Interrupted:
        _note(f"interrupted; everything measured is kept, go on with: {_resume_line(progress.session, kb)}")
        raise SystemExit(130) from None
    report.tuned(path, result, as_json)


@cli.command()
@click.argument("job_file", metavar="JOB.toml", type=click.Path(path_type=Path))
@click.argument("assignments", metavar="[KNOB=VALUE]...", nargs=-1)
@_common
def profile(job_file: Path, assignments: tuple[str, ...], kb: Path | None, as_json: bool) -> None:
    """Run one experiment, measured and stored; knobs not given follow the expert default."""
    from autoscout import loop, session
    from tui import report

    job = _job(job_file)
    stop = loop.Stop()
    _stop_on_signals(stop)
    try:
        measurement = session.profile_one(job, _kb(kb), list(assignments), _note, stop)
    except loop.Interrupted:
        _note("interrupted; nothing was stored")
        raise SystemExit(130) from None
    report.measurement(job, measurement, as_json)
    if measurement.status != "ok":
        raise SystemExit(1)


@cli.command()
@click.argument("job_file", metavar="JOB.toml", type=click.Path(path_type=Path))
@click.argument("assignments", metavar="[KNOB=VALUE]...", nargs=-1)
@_common
def explain(job_file: Path, assignments: tuple[str, ...], kb: Path | None, as_json: bool) -> None:
    """Say whether a configuration is valid, by which rule it is not, and the nearest one that is."""
    from autoscout.rivals.expert import expert_default
    from autoscout.space import explain as explaining
    from autoscout.space.graph import Space
    from tui import report

    space = Space.of_job(_job(job_file))
    explanation = explaining.explain(space, explaining.parse(space, assignments), expert_default(space))
    report.explanation(space, explanation, as_json)


@cli.command()
@click.argument("job_file", metavar="JOB.toml", type=click.Path(path_type=Path))
@click.option("--count", is_flag=True, help="Only the number of valid configurations.")
@click.option("--list", "listed", metavar="N", type=click.IntRange(min=0), help="The first N valid configurations.")
@_common
def space(job_file: Path, count: bool, listed: int | None, kb: Path | None, as_json: bool) -> None:
    """Show the knobs of a job, what activates what, and how many configurations are valid."""
    from autoscout.space.graph import Space
    from tui import report

    job = _job(job_file)
    report.space(job, Space.of_job(job), count, listed, as_json)


@cli.command()
@click.argument("what", metavar="JOB.toml|SESSION")
@_common
def best(what: str, kb: Path | None, as_json: bool) -> None:
    """Show the winner beside the expert default: knob differences, gain, and how it was measured."""
    from autoscout import best as bests
    from tui import report

    path = _existing_kb(kb)
    found = bests.best_of_job(path, _job(Path(what))) if what.endswith(".toml") else bests.best_of_session(path, what)
    report.best(found, as_json)


@cli.command()
@_common
def sessions(kb: Path | None, as_json: bool) -> None:
    """List the sessions, newest last."""
    from kb import store
    from tui import report

    path = _existing_kb(kb)
    for problem in store.ingest_all(path)[1]:
        _note(problem)
    report.sessions(store.session_rows(path), as_json)


@cli.command()
@click.argument("query", metavar="SELECT …")
@click.option("--format", "form", type=click.Choice(["table", "csv", "json", "parquet", "markdown"]), default="table")
@click.option("--limit", type=click.IntRange(min=1), default=1000, show_default=True, help="Rows at most.")
@click.option("--out", type=click.Path(path_type=Path), help="Write to a file instead of stdout.")
@_common
def sql(query: str, form: str, limit: int, out: Path | None, kb: Path | None, as_json: bool) -> None:
    """Ask the knowledge base in SQL, read-only. Views: runs, best, failures, sessions, decisions, checks, orderings."""
    from kb import query as queries

    table = queries.run(_existing_kb(kb), query, limit=limit)
    rendered = queries.render(table, "json" if as_json else form)
    if out is not None:
        out.write_bytes(rendered if isinstance(rendered, bytes) else rendered.encode())
    elif isinstance(rendered, bytes):
        sys.stdout.buffer.write(rendered)
    else:
        click.echo(rendered)
    if table.truncated:
        _note(f"only the first {limit} rows; --limit shows more")


@cli.command()
@click.argument("job_file", metavar="[JOB.toml]", required=False, type=click.Path(path_type=Path))
@_common
def doctor(job_file: Path | None, kb: Path | None, as_json: bool) -> None:
    """Say what this machine can profile, what is missing and how to get it."""
    from autoscout.doctor import examine
    from tui import report

    report.doctor(examine(_kb(kb), _job(job_file) if job_file else None), as_json)


def _resume_line(session: str, kb: Path | None) -> str:
    return shlex.join(["autoscout", "tune", "--resume", session, *(["--kb", str(kb)] if kb else [])])


def _check_resumed(job_file: Path | None, job: Any) -> None:
    """A resumed session goes on with the job and the options that it was started with."""
    context = click.get_current_context()
    for name in ("profiles", "wall", "strategy", "seed", "warm_start", "fidelity"):
        if context.get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE:
            option = name.replace("_", "-")
            raise click.UsageError(f"--{option} cannot be changed by --resume; start the job anew with it")
    if job_file is not None and _job(job_file).id != job.id:
        raise click.UsageError(f"{job_file} is not the job of that session")


def _lines(stream: Any) -> Callable[[str], None]:
    """Writes lines; when nobody reads them any more (a closed pipe, a lost terminal) the session goes on silently."""

    def write(line: str) -> None:
        try:
            print(line, file=stream, flush=True)
        except OSError as error:
            _note(f"nobody takes the progress lines any more ({error.strerror}); the session goes on")
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())

    return write


def _job(path: Path, profiles: int | None = None, wall: str | None = None) -> Any:
    from autoscout.job import load_job, with_budget

    job = load_job(path)
    return with_budget(job, profiles, wall) if profiles is not None or wall is not None else job


def _stop_on_signals(stop: Any) -> None:
    """Ctrl-C once: end after the running experiment. Twice, or a termination signal: end it too, at once."""

    def interrupted(number: int, frame: Any) -> None:
        stop.ask()
        if number != signal.SIGINT:
            stop.ask()
        elif stop.asked == 1:
            _note("ending after the running experiment; press Ctrl-C again to end it now")

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupted)


def main() -> None:
    """Entry point: every failure is one sentence on stderr and a documented exit code."""
    from kb.records import AutoscoutError

    try:
        code = cli.main(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except AutoscoutError as error:
        _note(str(error))
        sys.exit(error.exit_code)
    except OSError as error:
        _note(f"{error.filename or 'output'}: {error.strerror}")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if os.environ.get("AUTOSCOUT_DEBUG"):
            raise
        _note(f"internal error, please report it: {type(error).__name__}: {error} (AUTOSCOUT_DEBUG=1 shows where)")
        sys.exit(1)


if __name__ == "__main__":
    main()
