"""Verbs about this machine: doctor, targets."""

from pathlib import Path

import click

from tui.options import common, kb_path, load_job


@click.command()
@click.argument("job_file", metavar="[JOB.toml]", required=False, type=click.Path(path_type=Path))
@common
def doctor(job_file: Path | None, kb: Path | None, as_json: bool) -> None:
    """Say what this machine can profile, what is missing and how to get it."""
    from autoscout.machine.doctor import examine
    from tui.printing import report

    report.doctor(examine(kb_path(kb), load_job(job_file) if job_file else None), as_json)


@click.command()
@common
def targets(kb: Path | None, as_json: bool) -> None:
    """List what can be tuned here: each target with the versions that are installed, and what is missing."""
    from autoscout.targets.target import names, target
    from tui.printing import report

    report.targets([target(name) for name in names()], as_json)
