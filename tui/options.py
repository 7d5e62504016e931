"""Shared by all verbs: common options, the knowledge base's path, the job file, notes and signals."""

import contextlib
import math
import os
import shlex
import signal
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


class GivenPath(click.Path):
    """A path that must not be empty: an unset variable would otherwise mean the current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("it is empty; give a path", param, ctx)
        return super().convert(value, param, ctx)


class _KbFile(GivenPath):
    """A path that is not a folder and does not end like one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if str(value).endswith("/") or Path(value).is_dir():
            self.fail(f"{value} is a folder; give a file, such as {Path(value) / 'kb.duckdb'}", param, ctx)
        return super().convert(value, param, ctx)


class NumberRange(click.FloatRange):
    """A range that refuses nan, which compares as neither inside nor outside."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        return self.fail(f"{value} is not a number", param, ctx) if math.isnan(found) else found


READ = "autoscout.job"  # context key of the job file that was read; errors about the job begin with its name
PATH = GivenPath(path_type=Path)


def common(command: F) -> F:
    """Adds the options that every verb takes."""
    command = click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")(command)
    kb = click.option("--kb", "kb", type=_KbFile(path_type=Path), envvar="AUTOSCOUT_KB", help="Knowledge base file.")
    return kb(command)


def given_kb() -> str:
    """The option --kb as it was given, for commands that are printed; "" without it."""
    context = click.get_current_context(silent=True)
    while context is not None:
        if context.get_parameter_source("kb") == click.core.ParameterSource.COMMANDLINE:
            return f" --kb {shlex.quote(str(context.params['kb']))}"
        context = context.parent
    return ""


def kb_path(given: Path | None) -> Path:
    from kb.access import with_group
    from kb.store import default_path

    path = given or default_path()
    with_group(path.parent)
    return path


def existing_kb(given: Path | None) -> Path:
    """The knowledge base for verbs that only read: a mistyped --kb or $AUTOSCOUT_KB must not act as an empty one."""
    if given is not None and not given.exists():
        raise click.UsageError(f"{given}: there is no knowledge base; `autoscout tune` creates one")
    return kb_path(given)


def kb_if_any(given: Path | None) -> Path:
    """The knowledge base, for verbs that also answer without one."""
    if given is not None and not given.exists():
        note(f"{given}: there is no knowledge base, so nothing measured is known")
    return kb_path(given)


def session_names(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """Session names that complete the input, newest first; [] without a knowledge base."""
    return [name for name in _sessions(context.params.get("kb")) if name.startswith(begun)]


def every_session(command: Sequence[str]) -> list[str]:
    """The names of all sessions next to the knowledge base of a command line, newest first."""
    given = [after for option, after in pairwise(command) if option == "--kb"] or [os.environ.get("AUTOSCOUT_KB", "")]
    return _sessions(Path(given[0]) if given[0] else None)


def _sessions(kb: Path | None) -> list[str]:
    from kb.store import default_path, sessions_folder

    folder = sessions_folder(kb or default_path())
    found = {journal.parent.name: journal.stat().st_mtime for journal in folder.glob("*/journal.jsonl")}
    return sorted(found, key=found.__getitem__, reverse=True)


def note(text: str) -> None:
    from tui.text import pastable

    with contextlib.suppress(OSError):  # the reader of the output has gone
        click.echo(f"autoscout: {pastable(text)}", err=True)


def load_job(path: Path, profiles: int | None = None, wall: str | None = None, device_time: str | None = None) -> Any:
    from autoscout.job.load import with_budget
    from autoscout.targets.jobs import load_job

    job = with_budget(load_job(path), profiles, wall, device_time)
    click.get_current_context().meta[READ] = (f"job {job.name}: ", f"{path}: ")
    return job


def names_job(what: str) -> bool:
    """Whether this is a job, not a session: a file, or one that comes with AutoScout."""
    from autoscout.job import shipped

    return what.endswith(".toml") or what in shipped.jobs()


class KeptJob(NamedTuple):
    path: Path  # next to the knowledge base, with ‹secret› in place of each secret
    whole: Path  # with the secrets: exists only while this process lives, and never on disk


def keep_job(kb: Path, text: bytes, begins: str = "") -> KeptJob:
    """Writes an unnamed job file next to the knowledge base, under a name that depends only on its text, so that its
    session can be resumed. `begins`: the beginning of the name."""
    import hashlib

    from kb import secrets

    kept = secrets.redacted(text.decode(errors="surrogateescape")).encode(errors="surrogateescape")
    path = kb.parent / "jobs" / f"{begins}{hashlib.sha256(kept).hexdigest()[:12]}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(kept)
    if kept == text:
        return KeptJob(path, path)
    whole = os.memfd_create("job")
    os.write(whole, text)
    note(f"{path} has {secrets.HIDDEN} in place of each secret, so --resume needs the job as it was given here")
    return KeptJob(path, Path(f"/proc/{os.getpid()}/fd/{whole}"))


def stop_on_signals(stop: Any) -> None:
    """On Ctrl-C or SIGUSR1 (which Slurm sends on request before the time limit): end after the running experiment. On a
    second one, or a termination signal (preemption, scancel): end the experiment, too, at once. An ignored hangup stays
    ignored (`nohup`)."""

    def interrupted(number: int, frame: Any) -> None:
        stop.ask()
        if number in (signal.SIGTERM, signal.SIGHUP):
            stop.ask()
        elif stop.asked == 1:
            note("ending after the running experiment; press Ctrl-C again to end it now")

    for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, interrupted)
