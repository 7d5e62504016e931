"""Verbs that run experiments or show sessions: tune, profile, best, sessions."""

import contextlib
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from kb import dates
from tui.options import (
    PATH,
    KeptJob,
    common,
    existing_kb,
    kb_path,
    keep_job,
    load_job,
    names_job,
    note,
    session_names,
    stop_on_signals,
)
from tui.session.begun import ANEW, give_hints, searched, start_in_background
from tui.text import pastable
from tui.verbs import of_ds_config, watching

_NO_JOB = """give a job file, or --resume SESSION. These work as they stand:

  autoscout tune smallest-cpu-replay                  a session in seconds, on recorded experiments
  autoscout init config.json --out job.toml           a job of your own, then: autoscout tune job.toml
  autoscout                                           the same, on screens"""


@click.command()
@click.argument("job_file", metavar="JOB.toml|ds_config.json", required=False, type=PATH)
@of_ds_config.options
@click.option("--profiles", type=int, help="Number of experiments of the search (default: the job's budget).")
@click.option("--wall", help="Wall-clock limit of the search and its rounds: 90s, 20m, 2h.")
@click.option("--device-time", help="Limit on devices × time of the search's experiments: 64h.")
@click.option(
    "--strategy",
    metavar="NAME",
    default="autoscout",
    show_default=True,
    help="Search strategy: autoscout, paper, random, or another that `bench` compares, also from installed packages.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**32 - 1),
    default=0,
    show_default=True,
    help="Seed of the search: the same seed gives the same decisions.",
)
@click.option(
    "--warm-start",
    metavar="auto|off|SESSION[:PARTS]",
    default="auto",
    show_default=True,
    help="What to use from the knowledge base: from all similar jobs, nothing, or one session; PARTS limits it, for "
    "example auto:rows,failures (configurations, rows, points, orderings, failures).",
)
@click.option(
    "--fidelity",
    type=click.Choice(["adaptive", "profile", "simulate"]),
    default="adaptive",
    show_default=True,
    help="adaptive: use simulators while they are right; profile: only experiments; simulate: only simulators.",
)
@click.option("--no-tui", is_flag=True, help="Plain progress lines, also on a terminal.")
@click.option("-v", "--verbose", is_flag=True, help="Also print the search's own steps, such as checks of simulators.")
@click.option("--detach", is_flag=True, help="Start the session in the background, and print its name for `watch`.")
@click.option(
    "--resume",
    metavar="SESSION",
    shell_complete=session_names,
    help="Continue an interrupted session, or undecided final rounds with a longer --wall.",
)
@click.option(
    "--hints",
    metavar="FILE",
    type=PATH,
    help="File of configurations to try as long as they do well, such as: tp=2 mbs=4  # why",
)
@click.option("--dry-run", is_flag=True, help="Show what would be done, and run nothing.")
@click.option(
    "--as",
    "form",
    type=click.Choice(["slurm", "jobset"]),
    help="Only print a script for sbatch, or a Kubernetes JobSet, that runs the session elsewhere.",
)
@click.option("--named", hidden=True, default="", help="The session's name, chosen by the process that starts it.")
@common
def tune(
    job_file: Path | None,
    profiles: int | None,
    wall: str | None,
    device_time: str | None,
    strategy: str,
    seed: int,
    warm_start: str,
    fidelity: str,
    no_tui: bool,
    verbose: bool,
    detach: bool,
    resume: str | None,
    hints: Path | None,
    dry_run: bool,
    form: str | None,
    named: str,
    kb: Path | None,
    as_json: bool,
    **ds_options: Any,
) -> None:
    """Run a tuning session that ends with a measured winner."""
    from autoscout.job.load import is_pipe, with_budget
    from autoscout.tuning import session
    from kb import store
    from kb.records import AutoscoutError
    from tui.printing import report

    path = kb_path(kb)
    kept = job_file
    if job_file is not None and is_pipe(job_file):
        kept, job_file = _piped(job_file, path)
    began, asked = dates.now(), of_ds_config.Asked(**ds_options)
    of_config = job_file is not None and job_file.suffix == ".json"
    if asked.given and not of_config:
        raise click.UsageError("--script, --gpus, --hostfile, --python, --loss and --train need a ds_config.json")
    if of_config and job_file is not None:
        if detach:
            raise click.UsageError(
                "--detach needs a job file; `autoscout tune ds_config.json --dry-run` makes one and prints its path"
            )
        if click.get_current_context().get_parameter_source("strategy") == click.core.ParameterSource.DEFAULT:
            strategy = of_ds_config.strategy(job_file) or strategy
        (kept, job_file), no_tui = of_ds_config.job_file(job_file, asked, path), True
    if resume is not None:
        stored = store.session_started(path, resume).job
        job = with_budget(session.with_secrets(stored, _checked_job(job_file, stored)), profiles, wall)
        if profiles is not None and searched(store.journalled(path, resume)):
            raise click.UsageError(f"the search of {resume} has ended, so --profiles has no effect; {ANEW}")
    elif job_file is None:
        raise click.UsageError(_NO_JOB)
    else:
        job = session.with_secrets(load_job(job_file, profiles, wall, device_time), None)
        session.usable(strategy)
    if hints is not None and resume is not None:
        raise click.UsageError(
            "--hints needs a new session; `autoscout steer SESSION propose` proposes to a running session"
        )
    if dry_run:
        report.dry_run(job, as_json)
        return
    if form is not None:
        from autoscout.deploy.session_script import script

        if kept is None or of_config:
            raise click.UsageError("--as needs a job file")
        options = _as_given("form", "kb", "no_tui", "verbose", "job_file", "detach", "as_json")
        text = script(form, job, kept, path, options)
        click.echo(json.dumps({"form": form, "script": text}) if as_json else text, nl=as_json)
        return
    if of_config:
        of_ds_config.prepare(job)
    if hints is not None and not named:
        named = give_hints(path, job, hints)
    if detach or (watching.on_screen() and not no_tui and not as_json):
        _in_background(job, resume, path, detach, as_json, named)
        return
    options = session.SessionOptions(strategy=strategy, seed=seed, fidelity=fidelity, warm_start=warm_start)  # type: ignore[arg-type]
    try:
        result = _in_front(job, options, resume, named, kb, as_json, verbose, profiles, wall or "")
    except AutoscoutError as error:
        helps = [] if error.exit_code == 3 else _what_helps(job, kept or "JOB.toml", fidelity)
        if not helps:
            raise
        raise AutoscoutError("; ".join([str(error), *helps]), error.exit_code) from error
    report.tuned(path, result, as_json)
    if of_config:
        of_ds_config.leave(path, result.session, began, asked.train)
    if not store.has_all(path, result.session):
        note("not all of this session is in the knowledge base; `autoscout kb check` lists what is missing, and why")
        raise SystemExit(1)


@click.command()
@click.argument("job_file", metavar="JOB.toml", type=PATH)
@click.argument("assignments", metavar="[KNOB=VALUE]...", nargs=-1)
@common
def profile(job_file: Path, assignments: tuple[str, ...], kb: Path | None, as_json: bool) -> None:
    """Run one experiment, measured and stored; omitted knobs keep the reference's values."""
    from autoscout.tuning import loop, session
    from tui.printing import report

    job = load_job(job_file)
    stop = loop.Stop()
    stop_on_signals(stop)
    try:
        measurement = session.profile_one(job, kb_path(kb), list(assignments), note, stop)
    except loop.Interrupted:
        note("interrupted; nothing was stored")
        raise SystemExit(130) from None
    report.measurement(job, measurement, as_json)
    if measurement.status != "ok":
        raise SystemExit(1)


@click.command()
@click.argument("what", metavar="JOB.toml|SESSION", shell_complete=session_names)
@click.option(
    "--report",
    metavar="FILE.html",
    type=PATH,
    help="Write all of a session, or of a recorded journal (FILE.jsonl), to one HTML file that can be sent.",
)
@click.option(
    "--evidence", is_flag=True, help="Also show each measurement, person, machine and simulator behind the result."
)
@common
def best(what: str, report: Path | None, evidence: bool, kb: Path | None, as_json: bool) -> None:
    """Compare the winner with the reference: knob differences, gain, and how it was measured."""
    from autoscout.deploy import recommendation as bests
    from kb.lineage import lineage
    from kb.records import Configuration
    from tui.printing import report as printed
    from tui.session.follow import job_of

    path = existing_kb(kb)
    if report is not None:
        _write_report(path, what, report, as_json)
        return
    found = bests.best_of_job(path, load_job(Path(what))) if names_job(what) else bests.best_of_session(path, what)
    rests = None
    if evidence:
        job = load_job(Path(what)) if names_job(what) else job_of(path, what)
        compared = [Configuration(m.configuration).id for m in (found.best, found.default) if m is not None]
        rests = lineage(path, job.id, found.context, found.metric, compared)
    printed.best(found, rests, as_json)


def _write_report(kb: Path, what: str, file: Path, as_json: bool) -> None:
    from kb import journal as journals
    from kb.records import AutoscoutError
    from tui.printing.html_report import page
    from tui.session.follow import journal_of
    from tui.session.state import fold

    if names_job(what):
        raise click.UsageError("a report needs one session; `autoscout sessions` lists them")
    journal = journal_of(kb, what)
    state = fold(journals.events(journal, plain=True))
    if state.job is None:
        raise AutoscoutError(f"{journal}: the file contains no session; name a journal.jsonl that AutoScout wrote", 2)
    file.write_text(page(state))
    if as_json:
        click.echo(json.dumps({"report": str(file)}))
    else:
        note(f"wrote {file}")


@click.command()
@common
def sessions(kb: Path | None, as_json: bool) -> None:
    """List the sessions, newest last."""
    from kb import store
    from tui.printing import report

    path = existing_kb(kb)
    for problem in store.ingest_all(path)[1]:
        note(problem)
    report.sessions(store.session_rows(path), as_json)


def _piped(given: Path, kb: Path) -> KeptJob:
    """Saves a job file from a pipe next to the knowledge base, so that the session can be resumed later."""
    from autoscout.job.load import from_here

    text = sys.stdin.buffer.read() if given == Path("-") else given.read_bytes()
    if not text.strip():
        raise click.UsageError("nothing arrived on standard input; `autoscout init -- COMMAND` writes a job file")
    kept = keep_job(kb, from_here(text))
    sys.argv = [str(kept.whole) if word == str(given) else word for word in sys.argv]
    return kept


def _as_given(*without: str) -> list[str]:
    """The options on the command line as words, except those in `without`."""
    context, words = click.get_current_context(), []
    for option in context.command.params:
        name = option.name or ""
        if name not in without and context.get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE:
            words += [option.opts[0], *([] if getattr(option, "is_flag", False) else [str(context.params[name])])]
    return words


def _in_front(
    job: Any,
    options: Any,
    resume: str | None,
    named: str,
    kb: Path | None,
    as_json: bool,
    verbose: bool,
    profiles: int | None,
    wall: str,
) -> Any:
    """Runs the session in this process, with lines of progress, and returns its result. `options`: of a new session;
    `profiles`, `wall`: new limits of a resumed session."""
    from autoscout.tuning import loop, session
    from kb import journal as journals
    from kb import orders, store
    from tui.printing import plain
    from tui.printing.status_line import StatusLine

    path, stop = kb_path(kb), loop.Stop()
    stop_on_signals(stop)
    lines = StatusLine(sys.stderr if as_json else sys.stdout)
    progress = plain.Progress(job, resume or "", lines.write, verbose, lines.show if lines.can else None)

    def on_note(text: str) -> None:
        lines.clear()
        note(text)

    try:
        if resume is None:
            return session.tune(job, path, options, progress.see, on_note, stop, named)
        folder = store.journalled(path, resume)
        progress.replay(past := journals.events(folder / "journal.jsonl"))
        if profiles is not None:
            orders.give(folder, orders.parsed("budget", [str(profiles)], "tune --resume"))
        result = session.resume(resume, path, progress.see, on_note, stop, job, wall)
        if wall and result.experiments == sum(isinstance(e, journals.ExperimentStarted) for e in past):
            on_note(
                f"--wall has no effect, as no time limit ended this session; to prove its gain: autoscout gate {resume}"
            )
        return result
    except loop.Interrupted:
        note(f"interrupted; everything measured is kept, continue with: {_resume_line(progress.session, kb)}")
        raise SystemExit(130) from None
    finally:
        lines.clear()


def _what_helps(job: Any, file: Path | str, fidelity: str) -> list[str]:
    """Commands that work with a job on a machine where its session cannot run, such as a login node."""
    from autoscout.machine.devices_here import here
    from autoscout.running.cluster.devices import device_kind
    from autoscout.targets.jobs import JobSpace
    from autoscout.tuning.best_predicted import predicts
    from kb.refusal import AutoscoutError

    alone = []
    with contextlib.suppress(AutoscoutError):  # the job's space may be the problem
        if predicts(JobSpace.of_job(job)):
            alone = [f"`autoscout predict {file} --best 10` ranks by prediction alone, without devices"]
    if fidelity == "simulate":
        return alone
    runs_here = not job.cluster.hosts and job.launch.launcher != "replay"
    if not runs_here or device_kind(job) == "cpu" or here()[1]:
        return []
    return [
        f"`autoscout tune {file} --as slurm` (or jobset) prints a script that runs the session on machines with GPUs",
        *alone,
    ]


def _in_background(job: Any, resume: str | None, kb: Path, detach: bool, as_json: bool, named: str = "") -> None:
    """Starts the engine as a separate process and, unless `detach` is set, opens the screens on it."""
    from autoscout.tuning.session import new_id

    name = resume or named or new_id(job)
    given = sys.argv[sys.argv.index("tune") + 1 :] if "tune" in sys.argv else []
    arguments = [a for a in given if a not in ("--detach", "--json")]
    if resume is None:
        arguments += ["--named", name]
    journal = start_in_background(arguments, name, kb.absolute())
    if not detach:
        watching.show(journal, kb)
        _after_closing(name, kb)
    elif as_json:
        click.echo(json.dumps({"session": name, "journal": str(journal)}))
    else:
        click.echo(pastable(f"{name} runs in the background; autoscout watch {name} shows it"))


def _after_closing(name: str, kb: Path) -> None:
    """Prints, after the user closed the screens, whether the session is running, how it ended, or that it failed."""
    from autoscout.deploy import recommendation
    from kb import journal as journals
    from kb import store
    from tui.printing import report

    folder = store.session_folder(kb, name)
    if store.is_running(folder):
        note(f"the session continues without its screens; autoscout watch {name} shows it again")
        return
    ended = [e for e in journals.events(folder / "journal.jsonl") if isinstance(e, journals.SessionEnded)]
    if not ended or ended[-1].reason in ("interrupted", "failed"):
        note(f"the session did not end by itself; continue it: {_resume_line(name, kb)}")
        raise SystemExit(1)
    report.best(recommendation.best_of_session(kb, name), None, as_json=False)


def _resume_line(session: str, kb: Path | None) -> str:
    return shlex.join(["autoscout", "tune", "--resume", session, *(["--kb", str(kb)] if kb else [])])


def _checked_job(job_file: Path | None, stored: Any) -> Any:
    """The job of a file, None if there is no file. Errors: AutoscoutError if the command line changes the job or
    options of the session that is resumed."""
    context = click.get_current_context()
    for name in ("device_time", "strategy", "seed", "warm_start", "fidelity"):
        if context.get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE:
            option = name.replace("_", "-")
            raise click.UsageError(f"--{option} cannot be changed by --resume; start the job anew with that option")
    job = load_job(job_file) if job_file is not None else None
    if job is not None and job.id != stored.id:
        raise click.UsageError(f"{job_file} is not the job of the session in --resume; omit the job file")
    return job
