"""Verbs about this machine and the jobs for it: doctor, targets, init, check."""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from tui.options import PATH, common, kb_path, load_job, note


@click.command()
@click.argument("job_file", metavar="[JOB.toml]", required=False, type=PATH)
@click.option("--exclude", type=PATH, help="Write the sick hosts to this file, for the scheduler.")
@common
def doctor(job_file: Path | None, exclude: Path | None, kb: Path | None, as_json: bool) -> None:
    """Show what this machine, or a job's hosts, can run, what is missing and how to get it."""
    from autoscout.machine.doctor import examine
    from tui.printing import machine_report

    job = load_job(job_file) if job_file else None
    if job is None or not job.cluster.hosts:
        machine_report.doctor(examine(kb_path(kb), job), as_json)
        return
    from autoscout.machine import cluster_health

    health = cluster_health.smoke(job)
    if exclude is not None:
        exclude.write_text(cluster_health.excluded(job, list(health.sick)))
        note(f"{len(health.sick)} of {len(health.sick) + len(health.healthy)} hosts are sick ({health.seconds:.0f} s)")
    machine_report.doctor([*examine(kb_path(kb), job), *cluster_health.findings(job, health)], as_json)


@click.command()
@click.argument("job_file", metavar="[JOB.toml]", required=False, type=PATH)
@click.option(
    "--audit", "audited", is_flag=True, help="Compare the arguments that the engine accepts with our catalog."
)
@click.option("--draft", metavar="--FLAG", multiple=True, help="Print a catalog row for a flag that no knob sets.")
@common
def targets(job_file: Path | None, audited: bool, draft: tuple[str, ...], kb: Path | None, as_json: bool) -> None:
    """List what can be tuned here: each target with its installed versions, and what is missing.

    With --audit or --draft, compares the engine of a job (without a job: Megatron-core in this interpreter) with our
    catalog, without a GPU. Exit code 1: the engine refuses or changes arguments that we would pass."""
    from autoscout.targets.target import names, target, target_of
    from tui.printing import audit_report, machine_report

    if audited or draft:
        job = load_job(job_file) if job_file else None
        engine = target_of(job) if job else target("megatron")
        found = engine.audit(job)
        if draft:
            click.echo(engine.draft(found, draft), nl=False)
        else:
            audit_report.audit(found, as_json)
        return
    if job_file:
        raise click.UsageError("targets uses JOB.toml only with --audit or --draft; add one of them, or omit JOB.toml")
    machine_report.targets([target(name) for name in names()], as_json)


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("given", metavar="[FROM | -- COMMAND…]", nargs=-1, type=click.UNPROCESSED)
@click.option("--out", type=PATH, help="File to write (default: standard output).")
@click.option(
    "--target", "engine", metavar="NAME", default="", help="Target of the job; megatron tunes the model of the line."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def init(given: tuple[str, ...], out: Path | None, engine: str, as_json: bool) -> None:
    """Write a job file from a launch line, a script or sbatch file with one, a Hugging Face config.json, or
    a model's name. Without any, on a terminal: from your answers to three questions.

    \b
    autoscout init -- torchrun … pretrain_gpt.py … | autoscout tune -

    A line of pretrain_gpt.py is tuned as it is; with --target megatron all Megatron-core knobs are tuned and predicted.
    """
    from autoscout.machine.starting import job_file
    from tui.text import program, with_job

    if not given and not engine and not as_json and sys.stdin.isatty():
        name, text, notes = _asked()
        out = out or Path(f"{name}.toml")
    elif not given:
        raise click.UsageError(
            "pass the command that you run today after --, or a file: a script, an sbatch file or config.json"
        )
    else:
        if given[0].startswith("-"):
            raise click.NoSuchOption(given[0])
        text, notes = job_file(list(given), Path.cwd(), engine)
    if out is not None:
        if out.exists():
            raise click.UsageError(f"{out} exists; choose another name")
        out.write_text(text)
    for line in notes:
        note(with_job(line, str(out or "JOB.toml"), shlex.quote(given[0]) if len(given) == 1 else ""))
    if as_json:
        click.echo(json.dumps({"job": text, "notes": notes}))
    elif out is None:
        click.echo(text, nl=False)
    else:
        note(f"wrote {out}; next: {program()} check {out}")


def _asked() -> tuple[str, str, list[str]]:
    """Asks three questions and returns (name, text, notes) of a job. Repeats a question until its answer is valid."""
    from autoscout.machine.new_job import JobAnswers, drafted
    from kb.refusal import AutoscoutError

    def draft(source: str, devices: str = "", wall: str = "1h") -> Any:
        """The draft of a job; if an answer is invalid, prints the reason and returns None."""
        count, _, kind = devices.partition(" ")
        if devices and not (count.isdigit() and int(count) and kind.strip()):
            return note(f"'{devices}' is not a number and a kind of device, such as: 8 h100")
        try:
            return drafted(JobAnswers(source=source, device=kind.strip(), count=int(count or 0), wall=wall), Path.cwd())
        except AutoscoutError as error:
            return note(str(error))

    while not (found := draft(source := click.prompt("What do you run today? A line, script, config.json or model"))):
        pass
    node = found.job["cluster"]["nodes"][0]
    usual = f"{node['count']} {node['device']}"
    while not (found := draft(source, devices := click.prompt("Devices of a node", default=usual))):
        pass
    while not (found := draft(source, devices, click.prompt("How long may the search take?", default="1h"))):
        pass
    return found.name, found.text, found.notes


@click.command()
@click.argument("job_file", metavar="JOB.toml", type=PATH)
@common
def check(job_file: Path, kb: Path | None, as_json: bool) -> None:
    """Check a job before anything is spent: interpreter, devices, memory, noise, minutes."""
    from autoscout.machine.preflight import preflight
    from tui.printing import machine_report
    from tui.text import program

    job = load_job(job_file, segmented=True)
    machine_report.doctor(preflight(job, kb_path(kb)), as_json, str(job_file))
    if not as_json:
        file = shlex.quote(str(job_file))
        click.echo(f"next: {program()} {f'predict {file} --best 5' if job.traffic.segments else f'tune {file}'}")
