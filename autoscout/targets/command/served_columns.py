"""Computes simulator inputs for a server's launch line, from its preset's `[simulated]` and flags without a knob."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from autoscout.line import settings_files
from autoscout.space.attributes import attributes_of
from autoscout.space.knob import KnobEntry
from autoscout.space.language.expression import Expression
from autoscout.targets.command.arguments import today
from autoscout.targets.command.preset import Preset, Served
from autoscout.targets.current_launch import command_line
from autoscout.targets.target import target
from kb.records import AutoscoutError, Job, Value

_STORED = "quantization"


def simulated(job: Job, preset: Preset) -> dict[str, str]:
    """Returns simulator input → expression; {} if `lacking` gives a reason."""
    if lacking(job, preset):
        return {}
    if preset.served is None:
        return preset.simulated
    columns = {name: value for name, value in _from_flags(job, preset.served).items() if name not in preset.derived}
    if _STORED in columns:
        columns[_STORED] = preset.served.formats.get(str(columns[_STORED]), "none")
    if job.model.stored:  # the model's folder takes precedence over the line
        columns.pop(_STORED, None)
    own = {column: repr(value) for column, value in columns.items()}
    return preset.simulated | own | _attention_dp(_settings(job, preset.served))


def derived(job: Job, preset: Preset) -> dict[str, str]:
    """Returns the preset's `derived` names → values from the line. Errors: AutoscoutError (exit 2) for an unclosed
    quote."""
    now = today(job)
    variables = {**command_line(job).environment, **job.launch.environment}

    def of_line(flag: str) -> Value | None:
        return variables.get(flag[4:]) if flag.startswith("env:") else now(flag)

    values = {
        name: next((value for flag in flags.split("|") if (value := of_line(flag)) is not None), None)
        for name, flags in preset.line.items()
    }
    # names whose value is a text instead of a number
    quoted = {name for name, text in preset.derived.items() if text.startswith("'")}
    names = {name: repr(value) for name, value in values.items() if name in quoted and isinstance(value, str)}
    values = {name: int(_not_zero(value)) if isinstance(value, str) else value for name, value in values.items()}
    values |= _from_flags(job, preset.served) if preset.served else {}
    numbers = {
        name: repr(value if isinstance(value, float) else int(value))
        for name, value in values.items()
        if isinstance(value, int | float) and value >= 0
    }
    # the user's own knobs, whose values replace those in the line, and what no line says
    own = {knob.name for knob in job.space.knob} & preset.line.keys() | job.space.derived.keys() - preset.line.keys()
    return {name: names.get(name, numbers.get(name, text)) for name, text in preset.derived.items() if name not in own}


def _not_zero(text: str) -> bool:
    """Whether the text is a name or a fraction, or a whole number other than 0."""
    try:
        return float(text) != 0
    except ValueError:
        return True


def knobs(job: Job, preset: Preset) -> list[KnobEntry]:
    """Returns the preset's knobs, with the engine's defaults on the job's devices."""
    if preset.served is None or not preset.served.defaults:
        return preset.knob
    known = attributes_of(job)
    usual = {name: Expression(text)(known) for name, text in preset.served.defaults.items()}
    return [msgspec.structs.replace(knob, default=usual.get(knob.name, knob.default)) for knob in preset.knob]


def _settings(job: Job, served: Served) -> dict[str, Any]:
    """Returns the merged settings of the files that the line names, if these exist."""
    found = dict[str, Any]()
    line = command_line(job)
    for name in filter(None, map(line.value, served.unread)):
        with contextlib.suppress(AutoscoutError):
            found |= settings_files.read([Path(str(name))])
    return found


def _attention_dp(settings: dict[str, Any]) -> dict[str, str]:
    """Returns TensorRT-LLM's settings for attention data parallelism (LlmArgs, AttentionDpConfig): the number of
    devices that compute attention separately but share experts, and how long a device waits for prompts on the other
    devices."""
    if settings.get("enable_attention_dp") is not True:
        return {}
    degrees, balance = {"tp": "1", "dp": "tp"}, settings.get("attention_dp_config")
    if isinstance(balance, dict) and balance.get("enable_balance") is True:
        waits = balance.get("timeout_iters", 50), balance.get("batching_wait_iters", 10)
        names = ("adp_timeout_iters", "adp_wait_iters")
        degrees |= {name: repr(value) for name, value in zip(names, waits, strict=True) if isinstance(value, int)}
    return degrees


def lacking(job: Job, preset: Preset) -> str:
    """Returns why no prediction is possible, as a clause; "" if predictions are possible."""
    if not preset.simulated:
        return ""
    if not job.model.layers:
        return "the job has no [model] (from = its config.json, or layers, hidden, heads, vocab …)"
    line, unpriced = command_line(job), preset.served.unpriced if preset.served else preset.unpriced
    flag = next((flag for flag in unpriced if line.value(flag) is not None), "")
    stored = _from_flags(job, preset.served).get(_STORED) if preset.served else None
    if (
        preset.served
        and not flag
        and stored is not None
        and not job.model.stored
        and stored not in preset.served.formats
    ):
        flag = f"--quantization {stored}"
    if not flag and preset.engine:
        try:
            target(preset.engine).model_of_line(line)
        except AutoscoutError as error:
            return str(error)
    return f"no simulator models {flag}" if flag else ""


def not_modelled(job: Job, preset: Preset) -> Iterator[str]:
    """Yields the parts of the line that predictions ignore: flags, and settings files."""
    if (served := preset.served) is None:
        return
    line = command_line(job)
    yield from (flag for flag in served.unmodelled if line.value(flag) is not None)
    but = " but attention data parallelism" if _attention_dp(_settings(job, served)) else ""
    yield from (f"what {flag} names{but}" for flag in served.unread if line.value(flag) is not None)


def _from_flags(job: Job, served: Served) -> dict[str, Value]:
    line = command_line(job)
    columns = {column: line.value(flag) for flag, column in served.columns.items()}
    return {column: value for column, value in columns.items() if value is not None}
