"""Verbs that hand the result on: export."""

from pathlib import Path
from typing import Any

import click

from tui.options import common, existing_kb


@click.command()
@click.argument("session")
@click.option(
    "--format",
    "form",
    type=click.Choice(["command", "json", "yaml", "slurm", "k8s"]),
    default="command",
    show_default=True,
)
@click.option("--config", "knobs", metavar="KNOB=VALUE", multiple=True, help="Another configuration than the winner.")
@common
def export(session: str, form: Any, knobs: tuple[str, ...], kb: Path | None, as_json: bool) -> None:
    """Print the launch of a session's winner, ready to run with your data: shell, JSON, YAML or a Slurm script."""
    from autoscout import export as exporting

    found = exporting.of_session(existing_kb(kb), session, list(knobs))
    click.echo(exporting.render(found, "json" if as_json else form), nl=False)
