"""Verbs that observe running programs: trace (makes a job's traffic from a server's), when (checks a winner)."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from kb.refusal import AutoscoutError
from tui.options import PATH, common, kb_path, note, session_names

if TYPE_CHECKING:
    from autoscout.deploy.watch_load import LogWatch, ServerWatch
    from autoscout.deploy.when import StillRight
    from autoscout.importing.served_load import ServedLoad

_CODES = {"still right": 0, "probably not": 1, "not known": 4}
_FOR = click.option("--for", "duration", metavar="TIME", default="60s", show_default=True, help="How long to observe.")


@click.command()
@click.argument("server", metavar="URL")
@_FOR
@click.option("--out", metavar="FILE.toml", type=PATH, help="Write the [traffic] to this file instead of printing it.")
@common
def trace(server: str, duration: str, out: Path | None, kb: Path | None, as_json: bool) -> None:
    """Make a job's [traffic] from a running vLLM: how many requests arrive, with which lengths, and which share of
    prompts in common.

    URL is the server's, such as http://localhost:8000; its /metrics are read twice.
    """
    import msgspec

    from autoscout.importing.served_load import traffic_of
    from autoscout.job.toml_text import toml
    from tui.printing.document import document

    load = _load(server, duration)
    traffic = traffic_of(load)
    note(f"{load.requests} requests in {load.seconds:.0f} s; {load.running:.0f} running, {load.waiting:.0f} waiting")
    if load.waiting > load.running:
        note("more requests wait than run, so the measured rate is below the rate of arrivals")
    if as_json:
        document(load)
        return
    text = toml({"traffic": msgspec.to_builtins(traffic)})
    if out:
        out.write_text(text)
    else:
        click.echo(text, nl=False)


@click.command()
@click.argument("session", shell_complete=session_names)
@click.argument("source", metavar="URL|LOG")
@_FOR
@click.option("--watch", is_flag=True, help="Keep looking until Ctrl-C, and print each change of the answer.")
@click.option("--openmetrics", metavar="FILE", type=PATH, help="With --watch: also write the state to this file.")
@common
def when(
    session: str, source: str, duration: str, watch: bool, openmetrics: Path | None, kb: Path | None, as_json: bool
) -> None:
    """Is a session's winner still right? Looks at a running vLLM (URL) or a training job's log, and changes nothing.

    --watch looks every five seconds; the answer changes without a reason at most once a week on average.

    Exit code 0: still right; 1: probably not; 4: not known.
    """
    from autoscout.deploy import when as looked
    from autoscout.deploy.watch_load import LogWatch, ServerWatch
    from autoscout.job.duration import seconds
    from tui.printing.document import document

    if openmetrics and not watch:
        raise click.UsageError("--openmetrics needs --watch")
    path = kb_path(kb)
    winner = looked.winner_of(path, session)
    served = source.startswith(("http://", "https://"))
    if watch:
        looks = ServerWatch(winner, path, seconds(duration)) if served else LogWatch(winner)
        _watched(session, looks, source, openmetrics, as_json)
    found = looked.of_load(winner, _load(source, duration), path) if served else looked.of_log(winner, _log(source))
    if as_json:
        document(found)
    else:
        click.echo(found.sentence)
    raise SystemExit(_CODES[found.kind])


def _watched(session: str, watch: "ServerWatch | LogWatch", source: str, file: Path | None, as_json: bool) -> NoReturn:
    """Watches until Ctrl-C. After the first answer, failed reads and writes are reported once and retried."""
    from autoscout.deploy.watch_load import EVERY_S
    from tui.printing.document import document
    from tui.printing.openmetrics import written

    restarts, said = 0, ""
    while True:
        try:
            if told := _looked(watch, source):
                document(told) if as_json else click.echo(told.sentence)
            if file:
                written(watch, session, file)
            said = ""
        except AutoscoutError as error:
            if not watch.answer:
                raise
            if not said:
                note(f"{error}; trying again")
            said = str(error)
        if watch.restarts > restarts:
            restarts = watch.restarts
            note("the server or the log restarted; the answer does not change, and watching continues")
        time.sleep(EVERY_S)


def _looked(watch: "ServerWatch | LogWatch", source: str) -> "StillRight | None":
    from autoscout.deploy.watch_load import ServerWatch
    from autoscout.importing.served_load import reading
    from autoscout.targets.command.watched_run import logged

    if isinstance(watch, ServerWatch):
        url = _metrics(source)
        return watch.see(reading(_read(url), url), time.monotonic())
    return watch.see(logged(watch.winner.job, _log(source)).iterations_s)


def _log(source: str) -> Path:
    if not Path(source).is_file():
        raise AutoscoutError(f"{source} is neither a URL nor a file; give http://HOST:PORT or the job's log file", 2)
    return Path(source)


def _metrics(server: str) -> str:
    return server.rstrip("/").removesuffix("/metrics") + "/metrics"


def _load(server: str, duration: str) -> "ServedLoad":
    from autoscout.importing.served_load import load_between, reading
    from autoscout.job.duration import seconds

    url = _metrics(server)
    began, first = time.monotonic(), reading(_read(url), url)
    time.sleep(seconds(duration))
    last = reading(_read(url), url)
    return load_between(first, last, time.monotonic() - began)


def _read(url: str) -> str:
    import urllib.request

    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.read().decode(errors="replace")
    except (OSError, ValueError) as error:
        raise AutoscoutError(f"{url}: cannot be read ({error}); give the server as http://HOST:PORT", 1) from error
