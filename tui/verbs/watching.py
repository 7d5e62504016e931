"""Verbs that show or control a session: watch, steer, stop."""

import json
import os
import signal
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kb.order_words import MEANING
from kb.refusal import AutoscoutError
from tui.options import common, kb_path, note, session_names
from tui.session.begun import ANEW, running, searched
from tui.text import pastable

if TYPE_CHECKING:
    from tui.session.follow import Follower
    from tui.session.remote import Remote


@click.command()
@click.argument("session", required=False, shell_complete=session_names)
@click.option("--plain", is_flag=True, help="Print lines instead of screens.")
@click.option("-v", "--verbose", is_flag=True, help="With --plain: also print the search's own steps.")
@click.option("--ascii", "ascii_only", is_flag=True, help="Use only ASCII characters.")
@click.option("--events", is_flag=True, help="Print raw events, for the screens of another host.")
@click.option(
    "--there", default="autoscout", metavar="COMMAND", help="Command that starts autoscout on HOST.", show_default=True
)
@common
def watch(
    session: str | None,
    plain: bool,
    verbose: bool,
    ascii_only: bool,
    events: bool,
    there: str,
    kb: Path | None,
    as_json: bool,
) -> None:
    """Open the screens on a session: running, finished, a recorded journal (FILE.jsonl), or one on another host
    (USER@HOST:SESSION, over ssh; only its events are sent). Without a name: the running one, else the newest.

    Exit code 1 if the connection to a host is lost before its session is over; what arrived is kept."""
    from tui.session import follow, remote

    path = kb_path(kb)
    if session and (found := remote.place(session)):
        _elsewhere(remote.Remote(*found, there), path, plain, verbose, ascii_only, as_json)
        return
    journal = follow.journal_of(path, session or _newest(path))
    if not journal.exists():
        raise AutoscoutError(f"{journal}: no such journal; `autoscout sessions` lists the sessions", 2)
    if as_json:
        import msgspec

        from tui.session import state

        follower = follow.Follower(journal)
        click.echo(msgspec.json.encode(state.fold(follower.everything())))
    elif events:
        for line in remote.lines(follow.Follower(journal), journal.parent.name):
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
    elif plain or not on_screen():
        if not _plainly(follow.Follower(journal), verbose):
            problem = "the file contains no session; name a journal.jsonl that AutoScout wrote"
            raise AutoscoutError(f"{journal}: {problem}", 2)
    else:
        show(journal, path, ascii_only)


def _elsewhere(follower: "Remote", kb: Path, plain: bool, verbose: bool, ascii_only: bool, as_json: bool) -> None:
    """Shows a session on another host. Errors: AutoscoutError if the connection is lost."""
    try:
        if as_json:
            import msgspec

            from tui.session import state

            click.echo(msgspec.json.encode(state.fold(follower.everything())))
        elif plain or not on_screen():
            _plainly(follower, verbose)
        else:
            open_on(follower, kb, ascii_only)
    finally:
        follower.close()
    if follower.gone:
        raise AutoscoutError(follower.gone)


_ORDERS = "\n".join(
    textwrap.fill(f"{what:<8} {meaning}", 76, subsequent_indent=" " * 9) for what, meaning in MEANING.items()
)


@click.command(epilog=f"\b\n{_ORDERS}")
@click.argument("session", shell_complete=session_names)
@click.argument("what", metavar="ORDER", type=click.Choice(list(MEANING)))
@click.argument("values", metavar="[NAME=VALUE]...", nargs=-1)
@click.option("--why", default="", metavar="TEXT", help="The reason for a proposal; `best --evidence` shows it.")
@common
def steer(session: str, what: str, values: tuple[str, ...], why: str, kb: Path | None, as_json: bool) -> None:
    """Give an order to a running session; it takes effect before its next experiment."""
    from kb.orders import give, parsed

    order = parsed(what, list(values), f"verb, pid {os.getpid()}", why)
    folder = running(kb_path(kb), session)
    if what != "stop" and searched(folder):
        raise AutoscoutError(
            f"the search of {session} has ended, so it takes no orders; its finalists are being measured again; {ANEW}",
            1,
        )
    give(folder, order)
    _report(f"{session}: {what} was requested; autoscout watch {session} shows when it is done", as_json, session, what)


@click.command()
@click.argument("session", shell_complete=session_names)
@click.option("--now", is_flag=True, help="End the running experiment too, without a result; resuming stays possible.")
@common
def stop(session: str, now: bool, kb: Path | None, as_json: bool) -> None:
    """Ask a running session to end: the search stops, and the finalists are re-measured. What was measured is kept."""
    from kb import lock
    from kb.orders import Order, give

    folder = running(kb_path(kb), session)
    if now:
        pid = lock.holder(folder / "owner.lock")
        if pid is None:
            raise AutoscoutError(f"session {session} has not recorded its process yet; try again in a second")
        os.kill(pid, signal.SIGTERM)
        _report(f"{session}: process {pid} is ending; what was measured is kept", as_json, session, "now")
    else:
        give(folder, Order(what="stop", by=f"verb, pid {os.getpid()}"))
        _report(
            f"{session}: ends after the running experiment, then re-measures the finalists", as_json, session, "stop"
        )


def _report(sentence: str, as_json: bool, session: str, what: str) -> None:
    click.echo(json.dumps({"session": session, "asked": what}) if as_json else pastable(sentence))


def on_screen() -> bool:
    """Whether screens can be drawn, for which stderr must be a terminal with cursor addressing (not TERM=dumb)."""
    ours = sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()
    return ours and (os.environ.get("TERM") or "dumb") != "dumb"


def show(journal: Path, kb: Path, ascii_only: bool = False) -> None:
    from tui.session.follow import Follower

    open_on(Follower(journal), kb, ascii_only)


def open_on(follower: "Follower | Remote", kb: Path, ascii_only: bool) -> None:
    from tui import ascii
    from tui.app import watch as open_screens

    open_screens(follower, kb, ascii_only or ascii.needed())


def go_home() -> None:
    from kb.store import default_path
    from tui.home import home

    home(default_path().absolute(), Path.cwd(), "utf" not in (sys.stdout.encoding or "").lower())


def _plainly(follower: "Follower | Remote", verbose: bool) -> bool:
    """Prints the session's progress until it ends or its process has ended; returns whether there was a session."""
    from kb.journal import SessionEnded, SessionStarted
    from tui.printing.plain import Progress
    from tui.session.headlines import verdict_lines
    from tui.session.standing import REASONS

    progress = None
    while True:
        over = follower.over()
        events = follower.more()
        for event in events:
            if isinstance(event, SessionStarted):
                progress = Progress(event.job, event.session, click.echo, verbose)
            if progress is not None:
                progress.see(event)
            if isinstance(event, SessionEnded):
                for line in verdict_lines(progress.state) if progress else []:
                    click.echo(line)
                note(f"the session ended: {REASONS.get(event.reason, event.reason)}")
        if not events:
            if over:
                return progress is not None
            time.sleep(0.5)


def _newest(kb: Path) -> str:
    from kb import store

    folder = store.sessions_folder(kb)
    journals = sorted(folder.glob("*/journal.jsonl"), key=lambda p: p.stat().st_mtime) if folder.is_dir() else []
    if not journals:
        raise AutoscoutError(f"there are no sessions next to {kb}; `autoscout tune JOB.toml` starts one", 2)
    live = [j for j in journals if store.is_running(j.parent)]
    return (live or journals)[-1].parent.name
