"""Serving jobs of the presets' engines for a model that another engine serves now."""

import shlex
from collections.abc import Iterator

from autoscout.job.words import listed
from autoscout.line.recognition import frameworks
from autoscout.targets.command.preset import Served, preset, preset_of
from autoscout.targets.command.under_load import model_of, not_running_on
from autoscout.targets.current_launch import line_of
from autoscout.targets.model_of_server import FORMATS, ServedModel, with_engine
from kb.records import Job


def served(job: Job) -> ServedModel | None:
    """Returns the model in the line of a preset's server. Errors: AutoscoutError (exit 2) if the line names none."""
    known = preset_of(job).served
    if known is None or not job.launch.current:
        return None
    line = line_of(job)
    said = {column: line.value(flag) for flag, column in known.columns.items() if column in FORMATS}
    formats = {column: value for column, value in said.items() if isinstance(value, str) and value != "auto"}
    return ServedModel(name=model_of(line, known), engine=job.launch.script, formats=formats)


def servers_of(job: Job, model: ServedModel) -> Iterator[tuple[str, Job | str]]:
    """Yields (engine, a job that serves the model with it, or the reason why not)."""
    for name in frameworks():
        known = preset(name)
        if known.served is None or not known.served.plain or name == model.engine:
            continue
        if lacks := not_running_on(job, known.served):
            yield name, lacks
            continue
        unset = [value for column, value in model.formats.items() if not _flag(known.served, column, value)]
        if unset:
            yield name, f"has no known flag for {listed(unset)}; compare with a model that is stored in this format"
            continue
        words = shlex.split(known.served.plain.format(model=shlex.quote(model.name)))
        for column, value in model.formats.items():
            words += [_flag(known.served, column, value), value]
        yield name, with_engine(job, "command", shlex.join(words), name)


def _flag(known: Served, column: str, value: str) -> str:
    """Returns the flag that sets a number format; "" if the engine has no flag for it, or not this value."""
    flag = next((flag for flag, name in known.columns.items() if name == column), "")
    return flag if column != "quantization" or value in known.formats else ""
