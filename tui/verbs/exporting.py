"""The verb export, which prints the launch of a winner."""

from pathlib import Path

import click

from tui.options import common, existing_kb, load_job, names_job, note, session_names


@click.command()
@click.argument("session", metavar="SESSION|JOB.toml", shell_complete=session_names)
@click.option(
    "--format", "form", default="command", show_default=True, help="command, json, yaml, slurm, k8s, compose, router …"
)
@click.option(
    "--config",
    "knobs",
    metavar="NAME|KNOB=VALUE",
    multiple=True,
    help="Export this configuration instead of the winner.",
)
@click.option("--check", is_flag=True, help="First start the launch here: two iterations, or one answer from a server.")
@click.option(
    "--soak", is_flag=True, help="First run the launch here for 200 iterations, with a checkpoint and an evaluation."
)
@common
def export(
    session: str, form: str, knobs: tuple[str, ...], check: bool, soak: bool, kb: Path | None, as_json: bool
) -> None:
    """Print the launch of a session's winner, ready to run with your data: shell, JSON, YAML or a Slurm script.

    For a job file, print the launch of a configuration that was not measured yet: `--config NAME` takes a name that
    `predict --best` printed; without --config it is the reference.
    """
    from autoscout.deploy import export as exporting

    form = "json" if as_json else form
    if form == "router":
        from autoscout.deploy.serving_by_kind import router

        if knobs or check or soak:
            raise click.UsageError(
                "--format router exports the best of each kind of device; omit --config, --check and --soak"
            )
        click.echo(router(existing_kb(kb), session), nl=False)
        return
    if names_job(session):
        job = load_job(Path(session), segmented=True)
        found = exporting.of_job(job, list(knobs))
        note("this configuration was not measured; `autoscout profile` measures it")
    else:
        job, found = exporting.of_session(existing_kb(kb), session, list(knobs))
    text = exporting.written(job, found, form)
    if check or soak:
        seconds = exporting.checked(job, found, form, soak)
        worked = "the server answered" if job.task == "serve" else f"{200 if soak else 2} iterations were run"
        note(f"started here: {worked} after {seconds:.0f} s")
    click.echo(text, nl=False)
