"""`tune ds_config.json --script "train.py …"`, with the input and output files of `deepspeed --autotuning tune|run`."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import click

from kb import dates
from tui.options import PATH, KeptJob, keep_job, note


class Asked(NamedTuple):
    """Options that are valid with a ds_config, but not with a job file."""

    script: str = ""
    gpus: int | None = None
    hostfile: Path | None = None
    python: str = ""
    loss: str = ""
    train: bool = False

    @property
    def given(self) -> bool:
        return self != Asked()


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--train", is_flag=True, help="With a ds_config: train with the winner afterwards."),
        click.option(
            "--loss", default="", metavar="PATTERN", help="With a ds_config: the pattern of the loss in the output."
        ),
        click.option("--python", default="", help="With a ds_config: the interpreter that has DeepSpeed."),
        click.option("--hostfile", type=PATH, help="With a ds_config: hosts and their slots."),
        click.option("--gpus", type=click.IntRange(1), help="With a ds_config: GPUs (or CPU ranks) of this machine."),
        click.option("--script", default="", metavar='"train.py …"', help="With a ds_config: the script that uses it."),
    ):
        command = option(command)
    return command


def job_file(config: Path, asked: Asked, kb: Path) -> KeptJob:
    """Writes the job of a ds_config to a file next to the knowledge base. The same job always gets the same file, so
    that sessions can be resumed. Errors: AutoscoutError (exit 2)."""
    from autoscout.machine.devices_here import here
    from autoscout.targets.deepspeed import config_space, ds_config
    from autoscout.targets.deepspeed.command_line import job_of

    try:
        script = shlex.split(asked.script)
    except ValueError as error:
        raise click.UsageError(f"--script: {error}") from error
    kind, count = here()
    how = (script, kind, asked.gpus or count or 2, asked.hostfile, asked.python, asked.loss)
    made = job_of(config, *how)
    for text in made.get("notes", []):
        note(text)
    job = _kept(made, config, kb)
    if config_space.wants_model_info(ds_config.read(config)):
        job = _kept(job_of(config, *how, completed=_profiled(job.whole, config)), config, kb)
    note(f"the job file is {job.path}")
    return job


def _kept(made: dict[str, Any], config: Path, kb: Path) -> KeptJob:
    from autoscout.job.toml_text import toml

    notes = made.pop("notes", [])
    return keep_job(kb, toml(made, [f"made of {config}", *notes]).encode(), f"{made['name']}-")


def _profiled(job_file: Path, config: Path) -> Path:
    """A copy of the ds_config with the model's size, which DeepSpeed determines in one forward pass."""
    from autoscout.targets.deepspeed import artefacts, ds_config, profiler
    from autoscout.targets.jobs import JobSpace, load_job

    job = load_job(job_file)
    folder = artefacts.prepared(job, Path.cwd())[1] / profiler.INFO
    known = folder / "model_info.json"
    if not known.is_file():
        note("counting the model's parameters and activations in a separate run")
        profiler.model_info(job, JobSpace.of_job(job).reference, folder, job.launch.timeout_s)
    found = ds_config.read(config)
    section = {**found["autotuning"], "model_info": json.loads(known.read_text())}
    completed = job_file.with_name(f"{job_file.stem}-ds_config.json")
    completed.write_text(json.dumps({**found, "autotuning": section}))
    return completed


def strategy(config: Path) -> str:
    """The strategy for the tuner_type of a ds_config; "" if it has none."""
    from autoscout.targets.deepspeed.command_line import strategy_of

    return strategy_of(config)


def leave(kb: Path, session: str, began: float, train: bool) -> None:
    """Writes folders exps and results as DeepSpeed does. `train`: whether to launch the winner afterwards."""
    import subprocess

    from autoscout.deploy.recommendation import best_of_session
    from autoscout.targets.command.arguments import export_place
    from autoscout.targets.command.profiler import over_hosts
    from autoscout.targets.command.surroundings import variables
    from autoscout.targets.deepspeed import artefacts
    from autoscout.targets.deepspeed.arguments import started
    from kb import journal as journals
    from kb.store import journalled

    past = journals.events(journalled(kb, session) / "journal.jsonl")
    job = next(e for e in past if isinstance(e, journals.SessionStarted)).job
    measured = [e.measurement for e in past if isinstance(e, journals.ExperimentEnded | journals.Answered)]
    best_id = best_of_session(kb, session).best.configuration
    best = next((m for m in reversed(measured) if m.configuration.knobs == best_id and m.status == "ok"), None)
    results = artefacts.write(job, Path.cwd(), measured, best, dates.now() - began)
    note(f"wrote results to {results}, including {artefacts.OPTIMAL} and cmd_optimal.txt")
    if train and best is not None:
        line = (results / "cmd_optimal.txt").read_text()
        note(f"training with the winner: {line.strip()}")
        run, words = started(job, best.configuration, export_place(job)), shlex.split(line)
        if job.cluster.hosts:
            run = over_hosts(job, best.configuration, started, results)
            words = run.words
        there = variables(job, run)  # environment variables, as in experiments
        done = subprocess.run(words, cwd=job.launch.path or None, env=there, check=False)
        raise SystemExit(done.returncode)


def prepare(job: Any) -> None:
    """Creates the folders exps and results before anything is measured; with `overwrite`, empties them."""
    from autoscout.targets.deepspeed.artefacts import prepared

    prepared(job, Path.cwd())
