"""Presets: what is known of a training or serving script of others, as data (presets/*.toml).

Its flags that are worth tuning, what its log says of a step, what its failures look like, and which of its flags an
experiment sets besides (no checkpoints, as many iterations as are measured). `launch.script` names one; `init` finds
it by `recognises`.
"""

import functools
import importlib.resources
from pathlib import Path

from autoscout.job.strict import converted, read_toml
from autoscout.job.words import nearest_name
from autoscout.space.knob import KnobEntry, RuleEntry
from autoscout.targets.checkpoints import CheckpointRule
from autoscout.targets.target import target_of
from kb.records import AutoscoutError, Job, MetricSource, Status, Strict, Task, Value


class FailureText(Strict, frozen=True, kw_only=True):
    """What a failed run of it says, as a pattern, and what that means; `always`: a run says it that has its numbers."""

    says: str
    status: Status
    always: bool = False


class Batch(Strict, frozen=True, kw_only=True):
    """Which knobs change what a step trains on, and the flag that keeps its samples (same_batch.py)."""

    flag: str = ""
    value: str = ""
    changed_by: list[str] = []
    tokens_changed_by: list[str] = []


class SameModel(Strict, frozen=True, kw_only=True):
    """A flag whose value is multiplied by that of the knob `times` before it shapes the model. The product stays as
    in the present command, so that every configuration trains the same model; `default`: where that is silent."""

    flag: str
    times: str
    default: int


class Preset(Strict, frozen=True, kw_only=True):
    """`proven`: what it was run against, and where; "" its log format is only known from its source. `measuring`: flags
    of an experiment that the person's own launch does not get; `soak`: of the long check of an export. `reads`: flag →
    the field of a job that it says (`init`). `checkpoint`: what a running training's depends on. `objective`: what is
    minimized where nobody says anything else."""

    about: str = ""
    task: Task = "pretrain"
    recognises: list[str] = []
    versions: str = ""
    proven: str = ""
    objective: str = "minimize step_time_s"
    environment: dict[str, str] = {}
    measuring: dict[str, Value] = {}
    soak: dict[str, Value] = {}
    reads: dict[str, str] = {}
    batch: Batch | None = None
    same_model: SameModel | None = None
    checkpoint: list[CheckpointRule] = []
    metrics: dict[str, str | MetricSource] = {}
    failure: list[FailureText] = []
    derived: dict[str, str] = {}
    knob: list[KnobEntry] = []
    rule: list[RuleEntry] = []


def preset_of(job: Job) -> Preset:
    """Its target's where the job names none. Errors: AutoscoutError (exit 2) for an unknown name."""
    if not job.launch.script:
        own = target_of(job).preset
        return preset(own) if own else Preset()
    if job.launch.script not in names():
        raise AutoscoutError(f"launch.script = '{job.launch.script}'{nearest_name(job.launch.script, names())}", 2)
    return preset(job.launch.script)


def metrics_of(job: Job) -> dict[str, str | MetricSource]:
    """Of the preset, and the job's own."""
    return {**preset_of(job).metrics, **job.launch.metrics}


def names() -> list[str]:
    return sorted(path.stem for path in _folder().glob("*.toml"))


@functools.cache
def preset(name: str) -> Preset:
    path = _folder() / f"{name}.toml"
    return converted(path, read_toml(path, "preset"), Preset)


def recognised(words: list[str]) -> str:
    """The preset of a command line; "" none."""
    tails = [word.rsplit("/", 1)[-1] for word in words]
    line = " ".join(tails)
    for name in names():
        if any(text in tails or (" " in text and text in line) for text in preset(name).recognises):
            return name
    return ""


def _folder() -> Path:
    return Path(str(importlib.resources.files("autoscout.targets.command"))) / "presets"
