"""Ensures that all configurations of a job train the same model with the same batch. Otherwise, step times would not be
comparable.

A preset names the knobs that change the number of samples per step (`changed_by`), the flag that compensates for this
change, given `traffic.global_batch`, and the knobs that change the number of tokens per sample (`tokens_changed_by`:
packing). For an unknown script, the names of flags are the only hints."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from autoscout.job.words import listed
from autoscout.line.launch_line import Line
from autoscout.space.language.expression import Expression
from autoscout.space.language.template import PLACEHOLDER, filled, names_in
from autoscout.targets.command.preset import Preset, preset_of
from autoscout.targets.command.rendered import ValueOf
from autoscout.targets.current_launch import command_line
from kb.records import Job, Value

# names in a preset's [line] for kinds of parallelism in which several ranks process the same samples
_SHARING = ("cp", "tp")
_TIMES = ("step_time_s", "step_time_ms", "step_time_min_s")
_ACCUMULATES = re.compile("accum", re.IGNORECASE)
_BATCH = re.compile(r"micro|batch|bsz|(^|[-_])m?bs$", re.IGNORECASE)
_NOT_OF_A_STEP = re.compile("workers|prefetch|bucket|eval|valid|test", re.IGNORECASE)
_WHOLE = re.compile(r"global[-_]?(train[-_]?)?(batch|bs)", re.IGNORECASE)


def flag_for(job: Job, line: Line, names: Mapping[str, Any]) -> dict[str, Value]:
    """Returns the preset's flag that keeps the number of samples per step constant, with its value; {} if the job has
    no batch size, or if the command sets the flag itself. `line`: the command as written."""
    batch = preset_of(job).batch
    if batch is None or not job.traffic.global_batch or _kept_by(job, line):
        return {}
    value = filled(batch.value, names, "preset")
    return {batch.flag: int(value) if value.isdigit() else value}


def flag_of_model(job: Job, written: ValueOf, now: Mapping[str, Value], knobs: Mapping[str, Any]) -> dict[str, Value]:
    """Returns the preset's flag (`same_model`) that must change for the configuration to train the same model as the
    command, with its value; {} if none must change. `written`: lookup of the command's settings. `now`: the knobs'
    values in the command."""
    kept = preset_of(job).same_model
    if kept is None or knobs.get(kept.times) is None:
        return {}
    present = written(kept.flag)
    if names_in(str(present)):  # the user's command computes this flag by an expression over the knobs
        return {}
    product = int(present or kept.default) * int(now.get(kept.times, 1))
    value, rest = divmod(product, int(knobs[kept.times]))
    return {} if rest or value == (present or kept.default) else {kept.flag: value}


def batch_problems(job: Job, line: Line, free: Mapping[str, bool]) -> Iterator[str]:
    """Yields a sentence for each reason why step times are not comparable. `line`: the command as written. `free`: knob
    → whether it may change."""
    batch = preset_of(job).batch
    if batch is None:
        return
    changing = [name for name in batch.changed_by if free.get(name)]
    kept = line.for_shell or job.traffic.global_batch or _kept_by(job, line)
    if changing and not kept and job.objective.metric in (*_TIMES, "tokens_per_s", "samples_per_s"):
        yield (
            f"knob '{changing[0]}' changes the number of samples per step, so step times cannot be compared: set "
            f"traffic.global_batch, which AutoScout then keeps with {batch.flag}, or set [space] fix = {{ "
            f"{changing[0]} = … }}"
        )
    filling = [name for name in batch.tokens_changed_by if free.get(name)]
    if filling and job.objective.metric in _TIMES:
        yield (
            f"knob '{filling[0]}' changes the number of tokens per step, so step times cannot be compared: set "
            f"[objective] maximize = 'tokens_per_s', or [space] fix = {{ {filling[0]} = … }}"
        )


def apart(now: ValueOf, known: Preset) -> int:
    """Returns the number of ranks that together process the same samples."""
    knobs = {knob.name: now(knob.sets) or knob.default for knob in known.knob}
    degrees = [knobs.get("tp"), knobs.get("pp"), *(now(known.line[name]) for name in _SHARING if name in known.line)]
    return math.prod(each for each in degrees if isinstance(each, int) and each > 0)


def samples_of_a_step(now: ValueOf, known: Preset, counts: list[int]) -> int:
    """Returns the samples of a step in the current settings; 0 if unknown."""
    if known.batch is None:
        return 0
    if known.batch.whole and isinstance(all_ranks := now(known.batch.whole), int) and all_ranks > 0:
        return all_ranks
    if not all(counts):
        return 0
    knobs = {knob.name: now(knob.sets) or knob.default for knob in known.knob}
    flag = now(known.batch.flag)
    whole, changing = known.batch.value == "{global_batch}", known.batch.changed_by
    both = flag is not None or (whole and all(now(knob.sets) for knob in known.knob if knob.name in changing))
    if isinstance(flag, str) or (known.batch.by_itself and not both):
        return 0
    if whole and isinstance(flag, int) and flag > 0:
        return flag
    if any(isinstance(knobs[name], str) for name in changing):  # a shell variable such as $MBS
        return 0
    dp = knobs.get("dp")  # number of data parallel replicas, if a settings file gives it
    replicas = dp if isinstance(dp, int) else max(sum(counts) // apart(now, known), 1)
    here = math.prod(int(knobs[name] or 1) for name in changing) * replicas
    return here * (flag if isinstance(flag, int) and not whole else 1)


def edited(job: Job, now: ValueOf) -> Iterator[str]:
    """Yields a sentence if the batch size in the launch's files differs from the job's, for example after an edit."""
    known, wanted = preset_of(job), job.traffic.global_batch
    if not (known.files and wanted and job.launch.render and all(each.plain for each in job.launch.render)):
        return
    today = samples_of_a_step(now, known, [node.count for node in job.cluster.nodes])
    if today not in (0, wanted):
        yield (
            f"{listed(each.origin for each in job.launch.render)}: a step has {today} samples on these devices, "
            f"but traffic.global_batch is {wanted}; correct one of the two"
        )


def samples_by_name(flag: str) -> str:
    """Classifies a flag by its name: "batch" (samples per pass), "accumulation" (number of passes per step) or "" (all
    other flags)."""
    if _NOT_OF_A_STEP.search(flag) or _WHOLE.search(flag):
        return ""
    return "accumulation" if _ACCUMULATES.search(flag) else "batch" if _BATCH.search(flag) else ""


def says_whole(line: Line) -> bool:
    """Whether a line gives the global batch, so that the micro batch does not change the samples per step."""
    return any((word.startswith("-") or "=" in word) and _WHOLE.search(word.partition("=")[0]) for word in line.words)


def suspects(job: Job, command: str, free: Mapping[str, str]) -> list[str]:
    """Returns the knobs of a script without a preset whose names suggest that they change a step's samples, if the job
    does not compensate for this. `free`: knob → setting, for knobs that may change."""
    if job.objective.metric not in _TIMES or preset_of(job).batch:
        return []
    kinds = ("accumulation",) if says_whole(command_line(job)) else ("batch", "accumulation")
    texts = [command, *job.launch.environment.values()]
    expressions = [found["inner"] or "" for text in texts for found in PLACEHOLDER.finditer(text)]
    tied = {name for inner in expressions if not inner.isidentifier() for name in names_in("{" + inner + "}")}
    tied |= {name for rule in job.space.rule for name in Expression(rule.holds).names}
    return [n for n, sets in free.items() if n not in tied and (samples_by_name(n) or samples_by_name(sets)) in kinds]


def _kept_by(job: Job, line: Line) -> bool:
    """Whether the number of samples per step stays constant without AutoScout, because the command sets the batch flag
    by an expression over the knobs, or because no knob changes this number."""
    batch = preset_of(job).batch
    assert batch is not None
    value = line.value(batch.flag)
    if value is None:
        return False
    derived = preset_of(job).derived
    follows = {n for name in names_in(batch.value) for n in [name, *_names(name, derived)]} & {*batch.changed_by}
    return not follows or bool(names_in(str(value)))


def _names(name: str, derived: Mapping[str, str]) -> set[str]:
    return set(Expression(derived[name], dict(derived)).names) if name in derived else set()
