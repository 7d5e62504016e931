"""Verbs about this machine: doctor."""

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
