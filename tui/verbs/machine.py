"""Verbs about this machine: doctor, targets."""

from pathlib import Path

import click

from tui.options import common, kb_path, load_job


@click.command()
@click.argument("job_file", metavar="[JOB.toml]", required=False, type=click.Path(path_type=Path))
@click.option("--prove", is_flag=True, help="Run what the documentation claims of a GPU node, and report what held.")
@click.option("--out", type=click.Path(path_type=Path), default="build/gpu-check", help="Folder of the proof's report.")
@common
def doctor(job_file: Path | None, prove: bool, out: Path, kb: Path | None, as_json: bool) -> None:
    """Say what this machine can profile, what is missing and how to get it."""
    if prove:
        _prove(job_file, out, as_json)
        return
    from autoscout.machine.doctor import examine
    from tui.printing import report

    report.doctor(examine(kb_path(kb), load_job(job_file) if job_file else None), as_json)


def _prove(job_file: Path | None, out: Path, as_json: bool) -> None:
    from autoscout.cluster import slots
    from autoscout.machine import prove_report
    from autoscout.machine.prove import prove
    from tui.options import note
    from tui.printing import report

    with slots.machine(lambda: note("another AutoScout measures on this machine; waiting for it"), lambda: False):
        proof = prove(load_job(job_file) if job_file else None, out / "experiments", note)
    paths = prove_report.write(proof, out)
    report.proof(proof, paths, as_json)


@click.command()
@common
def targets(kb: Path | None, as_json: bool) -> None:
    """List what can be tuned here: each target with the versions that are installed, and what is missing."""
    from autoscout.targets.target import names, target
    from tui.printing import report

    report.targets([target(name) for name in names()], as_json)
