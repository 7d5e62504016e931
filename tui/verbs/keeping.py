"""Verbs that look at what runs: trace makes a job's traffic of it, when says whether a winner is still right."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kb.refusal import AutoscoutError
from tui.options import PATH, common, kb_path, note, session_names

if TYPE_CHECKING:
    from autoscout.importing.served_load import ServedLoad

_CODES = {"still right": 0, "probably not": 1, "not known": 4}
_FOR = click.option("--for", "duration", metavar="TIME", default="60s", show_default=True, help="How long to look.")


@click.command()
@click.argument("server", metavar="URL")
@_FOR
@click.option("--out", metavar="FILE.toml", type=PATH, help="Write it there; otherwise it is printed.")
@common
def trace(server: str, duration: str, out: Path | None, kb: Path | None, as_json: bool) -> None:
    """A job's [traffic] from a running vLLM: how many requests arrive, of which lengths, with what in common.

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
        note("more requests wait than run: the rate is what the server finishes, and more arrive")
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
@common
def when(session: str, source: str, duration: str, kb: Path | None, as_json: bool) -> None:
    """Is a session's winner still right? Looks at a running vLLM (URL) or a training job's log, and changes nothing.

    Exit code 0: still right; 1: probably not; 4: not known.
    """
    from autoscout.deploy import when as looked
    from tui.printing.document import document

    path = kb_path(kb)
    winner = looked.winner_of(path, session)
    if source.startswith(("http://", "https://")):
        found = looked.of_load(winner, _load(source, duration), path)
    else:
        log = Path(source)
        if not log.is_file():
            raise AutoscoutError(f"{source}: is neither a URL nor a log that can be read", 2)
        found = looked.of_log(winner, log)
    if as_json:
        document(found)
    else:
        click.echo(found.sentence)
    raise SystemExit(_CODES[found.kind])


def _load(server: str, duration: str) -> "ServedLoad":
    from autoscout.importing.served_load import load_between, reading
    from autoscout.job.duration import seconds

    url = server.rstrip("/").removesuffix("/metrics") + "/metrics"
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
        raise AutoscoutError(f"{url}: cannot be read ({error}); name the server as http://HOST:PORT", 1) from error
