"""Code that all verbs share: common options, paths of the knowledge base and of the job file, notes, and signals."""

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
    """A path that must not be empty; "" (from an unset variable, for example) would mean the current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("it is empty; give a path", param, ctx)
        return super().convert(value, param, ctx)


class _KbFile(GivenPath):
    """The path of a file: it must not be an existing folder or end with a slash."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if str(value).endswith("/") or Path(value).is_dir():
            self.fail(f"{value} is a folder; give a file, such as {Path(value) / 'kb.duckdb'}", param, ctx)
        return super().convert(value, param, ctx)


class NumberRange(click.FloatRange):
    """A range that refuses nan, which click's comparisons would accept."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        return self.fail(f"{value} is not a number", param, ctx) if math.isnan(found) else found


READ = "autoscout.job"  # key in click's context.meta: how errors about the job begin, and what replaces that
PATH = GivenPath(path_type=Path)


def common(command: F) -> F:
    command = click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")(command)
    kb = click.option("--kb", "kb", type=_KbFile(path_type=Path), envvar="AUTOSCOUT_KB", help="Knowledge base file.")
    return kb(command)


def given_kb() -> str:
    """The option --kb as the user gave it, for commands that are printed; "" if it was not given."""
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
    """The knowledge base for verbs that only read; it must exist, so that a mistyped --kb does not look empty."""
    if given is not None and not given.exists():
        raise click.UsageError(f"{given}: there is no knowledge base; `autoscout tune` creates one")
    return kb_path(given)


def kb_if_any(given: Path | None) -> Path:
    """The knowledge base for verbs that also work without one; prints a note if the given one does not exist."""
    if given is not None and not given.exists():
        note(f"{given}: there is no knowledge base, so there are no measurements")
    return kb_path(given)


def session_names(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """For shell completion: names of sessions that begin with `begun`, newest first; [] without a knowledge base."""
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


def load_job(
    path: Path,
    profiles: int | None = None,
    wall: str | None = None,
    device_time: str | None = None,
    segmented: bool = False,
) -> Any:
    from autoscout.job.load import with_budget
    from autoscout.targets.jobs import load_job

    job = with_budget(load_job(path, segmented), profiles, wall, device_time)
    click.get_current_context().meta[READ] = (f"job {job.name}: ", f"{path}: ")
    return job


def names_job(what: str) -> bool:
    """Whether an argument names a job (a file, or a job that is shipped with AutoScout), not a session."""
    from autoscout.job import shipped

    return what.endswith(".toml") or what in shipped.jobs()


class KeptJob(NamedTuple):
    path: Path  # a file next to the knowledge base, in which each secret is replaced by ‹secret›
    whole: Path  # a file in memory with the secrets, which exists only as long as this process


def keep_job(kb: Path, text: bytes, begins: str = "") -> KeptJob:
    """Writes a job file without a name (from a pipe, for example) next to the knowledge base, so that its session can
    be resumed. Its name is a hash of the text with the prefix `begins`."""
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
    note(f"{path} has {secrets.HIDDEN} in place of each secret, so also pass the original job file to --resume")
    return KeptJob(path, Path(f"/proc/{os.getpid()}/fd/{whole}"))


def stop_on_signals(stop: Any) -> None:
    """Sets signal handlers: Ctrl-C or SIGUSR1 (which Slurm can send before the time limit) stops the session after the
    running experiment; a second one, or a termination signal (preemption, scancel), also ends the experiment. An
    ignored SIGHUP (`nohup`) stays ignored."""

    def interrupted(number: int, frame: Any) -> None:
        stop.ask()
        if number in (signal.SIGTERM, signal.SIGHUP):
            stop.ask()
        elif stop.asked == 1:
            note("ending after the running experiment; press Ctrl-C again to end it now")

    for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, interrupted)
