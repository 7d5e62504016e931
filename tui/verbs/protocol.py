"""The verb mcp, which serves agents."""

from pathlib import Path

import click

from tui.options import PATH, common, kb_path, note


@click.command()
@click.option("--jobs", "folder", type=PATH, default=".", show_default=True, help="Folder of job files for agents.")
@click.option(
    "--device-time",
    default="0s",
    show_default=True,
    help="Limit on devices × time a day of all sessions that agents begin, such as 2h; 0s: agents cannot begin any.",
)
@click.option("--http", "port", type=click.IntRange(1, 65535), help="Serve on 127.0.0.1 at this port, not on stdio.")
@click.option("--guide", is_flag=True, help="Print what a coding agent has to know, for an AGENTS.md, and exit.")
@common
def mcp(folder: Path, device_time: str, port: int | None, guide: bool, kb: Path | None, as_json: bool) -> None:
    """Serve the Model Context Protocol to agents, which query, propose, and start sessions within limits.

    The job files define what may run, so agents should not be able to write to their folder. Each call is logged as a
    line of agents.jsonl next to the knowledge base. `steer SESSION hold` stops a session from trying further proposals.
    """
    import json

    from autoscout.job.duration import seconds
    from kb.records import AutoscoutError
    from tui.agents import resources
    from tui.agents.allowance import AgentLimits

    if guide:
        text = resources.guide().read_text(encoding="utf-8")
        click.echo(json.dumps({"guide": text}) if as_json else text, nl=as_json)
        return
    if not folder.is_dir():
        raise click.UsageError(f"--jobs {folder}: there is no such folder; name a folder of job files for agents")
    limits = AgentLimits(folder=folder.resolve(), kb=kb_path(kb).absolute(), device_s=seconds(device_time))
    try:
        from tui.agents import serving
    except ImportError as error:
        raise AutoscoutError("mcp needs the package mcp: pip install 'autoscout[mcp]'") from error
    if port is None:
        serving.over_stdio(limits)
        return
    token = _token(limits.kb.parent / "agents.token")
    note(f"http://127.0.0.1:{port}/mcp serves clients with the token in {limits.kb.parent / 'agents.token'}")
    serving.over_http(limits, port, token)


def _token(path: Path) -> str:
    """The token in a file next to the knowledge base that only its owner can read; created if there is none."""
    import os
    import secrets

    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(32))
    return path.read_text().strip()
