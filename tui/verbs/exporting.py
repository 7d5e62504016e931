"""Verbs that hand the result on: export."""

from pathlib import Path

import click

from tui.options import common, existing_kb, note


@click.command()
@click.argument("session")
@click.option("--format", "form", default="command", show_default=True, help="command, json, yaml, slurm, k8s …")
@click.option("--config", "knobs", metavar="KNOB=VALUE", multiple=True, help="Another configuration than the winner.")
@click.option("--check", is_flag=True, help="Start it here first, once, and ask it something (serving jobs).")
@common
def export(session: str, form: str, knobs: tuple[str, ...], check: bool, kb: Path | None, as_json: bool) -> None:
    """Print the launch of a session's winner, ready to run with your data: shell, JSON, YAML or a Slurm script."""
    from autoscout.deploy import export as exporting

    form = "json" if as_json else form
    job, found = exporting.of_session(existing_kb(kb), session, list(knobs))
    text = exporting.written(job, found, form)
    if check:
        seconds = exporting.checked(job, found, form)
        note(f"started here: ready after {seconds:.0f} s, and it answers")
    click.echo(text, nl=False)
