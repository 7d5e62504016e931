"""Creates a job from the user's present launch line: preset, model and batch from its flags, and devices."""

import contextlib
import math
import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from autoscout.job.model_folder import of_name
from autoscout.job.names import as_name
from autoscout.job.words import listed
from autoscout.line import nested, settings_files
from autoscout.line.containers import named_programs
from autoscout.line.flags import as_switch, setting, value_of
from autoscout.line.launch_line import Line
from autoscout.line.line_devices import devices, of_one_node
from autoscout.line.recognition import by_flags_alone, logs_like, recognised
from autoscout.space.language.template import as_text, of_a_line
from autoscout.targets.command.preset import Preset, Served, preset
from autoscout.targets.command.reading import GUESSED_STEP
from autoscout.targets.command.rendered import ValueOf, apart_from_accelerate, of_accelerate, values_of
from autoscout.targets.command.same_batch import apart, samples_by_name, samples_of_a_step, says_whole
from autoscout.targets.command.starting_up import not_starting
from autoscout.targets.command.trained_columns import model_and_length
from autoscout.targets.command.trainer_settings import in_a_container, with_copies, with_settings
from autoscout.targets.command.under_load import by_experiments, canonical, devices_of, model_of, problem, unknown
from autoscout.targets.guessed_load import GUESSED, REVIEW_LOAD, REVIEW_PROMISE
from autoscout.targets.target import target
from kb.records import AutoscoutError, Value

# Flags of an unknown script that seem worth tuning, judged by their names.
_TUNABLE = re.compile(r"^--(.*(micro|batch|bsz|workers|prefetch|bucket|accum)|(.*[-_])?m?bs$)", re.IGNORECASE)
_NOT = re.compile(r"global|eval|valid|test|[-_.]val[-_]|ramp|analyz|preprocess|gpus|nodes$", re.IGNORECASE)
_SETTING = re.compile(r"[A-Za-z_+][\w.]*=")
_STEPS = (0.5, 1, 2)
_NO_WAIT = "--no-wait"
_SWITCHES = ("tied", "gated", "bias")  # fields of [model] that are true or false


def job_of(line: Line) -> dict[str, Any]:
    """Returns a job file's content for a line, plus the keys `devices` (devices of each node, 0 if unknown),
    `samples_each` (samples per step and device, 0 if global_batch is known), `ranks_each` (ranks that process the same
    samples) and `notes` (what the user should check)."""
    name = recognised(line)
    known = preset(name) if name else Preset()
    unread = in_a_container(line, known)
    if unread and known.batch:  # the file is in a container and cannot be read, but it may set the batch size
        known = replace(known, batch=replace(known.batch, by_itself=True))
    line, settings = with_settings(line, known, unread)
    line, copies, inside = with_copies(line, known)
    found: dict[str, Any] = {"name": _name(line, known, name), "task": known.task, "target": "command"}
    notes: list[str] = []
    line = _waiting(_without_choices(line, known, notes), notes)
    now = values_of(line, of_accelerate(line) | inside)
    notes += apart_from_accelerate(line, known.batch.flag if known.batch else "")
    for section, fields in _read(now, settings, known, notes).items():
        found[section] = fields
    with contextlib.suppress(AutoscoutError):  # raised for a model that cannot be predicted
        model, of_model = target(known.engine).model_of_line(line) if known.engine else ({}, [])
        if model and "seq_len" in found.get("traffic", {}):  # a training without a sequence length cannot be predicted
            found["model"] = model
            notes += of_model
    launched = _by_deepspeed(line, now, known)
    asked = devices(launched)
    each = _product(now, settings, known.devices) or _product(now, settings, known.world) // len(asked.counts)
    counts = asked.counts if all(asked.counts) else [each] * len(asked.counts)
    found["devices"] = counts
    if samples := samples_of_a_step(now, known, counts):
        found.setdefault("traffic", {})["global_batch"] = samples
    packed = known.batch is not None and settings.get(known.batch.packed_by) == "true"
    goal, metric = ("maximize", "tokens_per_s") if packed else known.objective.split()
    found["objective"] = {goal: metric}
    places, of_nodes = of_one_node(launched, len(counts))
    notes += [*asked.notes, *of_nodes, *not_starting(line, known, sum(counts))]
    if unread:
        notes.append(
            f"launch.current: {unread} is in the container, so AutoScout cannot read it; write its settings as "
            "flags of the launch line"
        )
    launch: dict[str, Any] = {"script": name} if name else {}
    launch["current"] = of_a_line(str(line))
    if copies:
        launch["render"] = copies
    kept: dict[str, Any] = {}
    if known.batch and known.batch.changed_by and not samples_of_a_step(now, known, [1]):
        changing = {
            knob.name: now(knob.sets) or knob.default
            for knob in known.knob
            if knob.name in known.batch.changed_by or knob.layer == "parallelism"
        }
        kept = {name: value for name, value in changing.items() if value is not None and not isinstance(value, str)}
        notes.append(
            "traffic.global_batch: write the samples of a step over all devices, because the line does not give "
            f"{known.batch.flag} as a number; until then space.fix keeps {listed(kept) or 'what changes them'}"
        )
    if known.batch and known.batch.value != "{global_batch}":
        found["samples_each"] = 0 if samples else samples_of_a_step(now, known, [1])
        found["ranks_each"] = apart(now, known)
    found["launch"] = launch
    if packed and known.batch:
        notes.append(
            f"objective: with {known.batch.packed_by} a step takes as many samples as fit, so only tokens per second "
            "can be compared"
        )
    if places:
        launch["environment"] = places
        found["cluster"] = {"hosts": "hostfile"}
    if known.served is not None:
        found |= _served(line, known, known.served, launch, notes)
    else:
        has = [knob.name for knob in known.knob if now(knob.sets) in knob.asks]
        others = _with_todays(now, known)
        space = {"allow": has, "knob": others, "fix": kept}
        found |= {"space": {name: what for name, what in space.items() if what}} if any(space.values()) else {}
    if known.trained is not None and not unread:
        trained = model_and_length(line, known, notes)
        if trained:
            found["model"] = trained.pop("model")
            found["traffic"] = {**trained, **found.get("traffic", {})}
    if not name and (server := unknown(line)):
        raise AutoscoutError(
            f"'{server}' starts a server, which does not end by itself; give a script that starts the server, waits "
            "for it and then runs a load tool (docs/your-own-script.md)",
            2,
        )
    if name and by_flags_alone(line, name):
        notes.append(
            f"launch.script: the flags are those of {name}, but {line.program.first} is not on this machine and cannot "
            "be read; if it parses its flags itself, run `autoscout init` on a machine that has it"
        )
    if not name:
        metrics: dict[str, Any] = {"step_time_s": {"between": GUESSED_STEP}}
        launch["metrics"] = metrics
        if framework := logs_like(line):
            metrics["loss"] = msgspec.to_builtins(preset(framework).metrics["loss"])
            notes.append(
                f"launch.metrics.loss: the script prints the log of {framework}; let it log every step, so that the "
                "losses of the first steps are compared"
            )
        found["space"] = _same_samples(_guessed(line), line, notes)
        notes += [
            (
                f"launch.current: {name}, whose settings could be tuned, is not on this machine; run `autoscout "
                "init` on the machine that has it"
            )
            for name in line.settings_files
            if not os.path.isfile(name)
        ]
        notes.append(
            "launch.metrics: give a pattern for the log line that ends a step, such as step_time_ms = '… ([\\d.]+) ms'"
        )
        if pairs := [word for word in line.words if _SETTING.match(word)]:
            notes.append(
                f"space.knob: the line's key=value settings ({', '.join(pairs[:3])} …) are neither read nor tuned; to "
                "tune one that changes only the speed, not what is trained, declare a knob with sets = 'KEY='"
            )
        if not found["space"]["knob"]:
            notes.append("space.knob: declare what may be changed, such as a flag of your script and its values")
    if not known.overrides and _needs_ds_config(line):
        notes.append(
            "target: the line's ds_config (--deepspeed_config FILE.json) is not on this machine; with it, ZeRO "
            "stage, micro batch and offloading could be tuned and predicted: run `autoscout init` on a machine "
            "that has the file"
        )
    found["notes"] = notes
    return found


def _needs_ds_config(line: Line) -> bool:
    """Whether a line is started by DeepSpeed or names a ds_config, unlike one of ms-swift's own (--deepspeed zero3)."""
    named = [line.value(flag) for flag in ("--deepspeed", "--deepspeed_config")]
    return "deepspeed" in named_programs(line) or any(name is True or str(name).endswith(".json") for name in named)


def _waiting(line: Line, notes: list[str]) -> Line:
    """Returns the line without the flag with which a command submits a job and returns at once. An experiment ends when
    its command ends, so the command must wait for the job."""
    submits = line.words.index("--") if "--" in line.words else 0
    if _NO_WAIT not in line.words[:submits]:
        return line
    notes.append(f"launch.current: {_NO_WAIT} is left out, because an experiment ends when its command does")
    return line.of(word for i, word in enumerate(line.words) if i > submits or word != _NO_WAIT)


def _without_choices(line: Line, known: Preset, notes: list[str]) -> Line:
    """Returns the line without settings that let the program choose a knob's value (`auto`). The program may choose a
    different value in each run, so such a line cannot be the reference."""
    for knob in known.knob if known.overrides else ():
        today = line.value(knob.sets)
        numbers = isinstance(knob.values, list) and not any(isinstance(value, bool | str) for value in knob.values)
        if numbers and isinstance(today, str) and "$" not in today:
            line = line.without(knob.sets)
            notes.append(
                f"launch.current: {knob.sets}{today} leaves {knob.name} to the program; {knob.default} is "
                "assumed, so write the value that the program chooses"
            )
    return line


def _with_todays(now: ValueOf, known: Preset) -> list[dict[str, Any]]:
    """Returns the preset's knobs whose value in the line is not among the values to try, with this value added to them.
    An on/off switch keeps the line's spelling."""
    found = []
    for knob in known.knob:
        today = as_switch(now(knob.sets), knob.values)
        if today is None or not isinstance(knob.values, list) or today in knob.values:
            continue
        if isinstance(today, str) and not any(isinstance(value, bool | str) for value in knob.values):
            continue  # a shell variable, or not a number
        alike = {type(value) for value in knob.values} == {type(today)}
        others = [
            v for v in knob.values if alike and v not in knob.asks and as_text(v).lower() != as_text(today).lower()
        ]
        values = sorted([*others, today], key=lambda value: value if isinstance(value, int) else 0)
        entry = {"name": knob.name, "values": values, "sets": knob.sets, "layer": knob.layer, "meaning": knob.meaning}
        acts = {"when": knob.when} if alike and knob.when else {}
        acts |= {"off": knob.off} if acts and knob.off is not None else {}
        found.append({**entry, **acts, "replace": True})
    return found


def _served(line: Line, known: Preset, served: Served, launch: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    """Returns the sections of a job file for tuning a server: name, devices, load, and the knob values that the job
    must allow."""
    line = canonical(line, known, served)
    if why := problem(line, served):
        script = "write a script that starts the server and sends the load, and declare its knobs"
        raise AutoscoutError(f"{why}; {script} (docs/your-own-script.md)", 2)
    given, line = line, by_experiments(line, known)
    if given != line:
        pairs = ((line.words, given.words), (given.words, line.words))
        more, less = (shlex.join(word for word in one if word not in other) for one, other in pairs)
        changes = [f"'{more}' is added"] * bool(more) + [f"'{less}' is left out"] * bool(less)
        notes.append(f"launch.current: each experiment starts a container anew, so {' and '.join(changes)}")
    launch["current"] = str(line)
    notes += [REVIEW_LOAD, REVIEW_PROMISE]
    allowed = {knob.name: line.value(knob.sets) for knob in known.knob if line.value(knob.sets) in knob.asks}
    by_files = _fixed_by_files(line, known, served, notes)
    of_line, by_sets = values_of(line, {}), {k.sets: by_files[k.name] for k in known.knob if k.name in by_files}
    others = _with_todays(lambda sets: by_sets.get(sets, of_line(sets)), known)
    named, fixed = model_of(line, served), {**allowed, **by_files}
    model = of_name(named, notes) if known.simulated else {}
    space = {**({"fix": fixed} if fixed else {}), **({"knob": others} if others else {})}
    return {
        **({"space": space} if space else {}),
        **({"model": model} if model else {}),
        "name": as_name(Path(named).name, "server"),
        "devices": [devices_of(line, served)],
        "elsewhere": bool(known.gpus),
        "traffic": dict(GUESSED),
    }


def _fixed_by_files(line: Line, known: Preset, served: Served, notes: list[str]) -> dict[str, Any]:
    """Returns knob → value for knobs that a settings file sets and flags cannot override; the job must fix these
    values."""
    fixed = {}
    for name in filter(None, map(line.value, served.unread if served.before_flags else ())):
        try:
            settings = settings_files.read([Path(str(name))], line)
        except AutoscoutError:
            notes.append(
                f"space.fix: {name}, which overrides the flags, cannot be read here: fix the knobs that this file sets"
            )
            continue
        decided = {path.partition(".")[0] for path in served.before_flags} & settings.keys()
        knobs = {knob.name: knob for knob in known.knob}
        for path, knob in served.before_flags.items():
            if path.partition(".")[0] in decided:  # a section of the file replaces all of it
                value = nested.at(settings, path)
                fixed[knob] = value if isinstance(value, int | float) else knobs[knob].default
        if decided:
            notes.append(f"space.fix: {name} sets {listed(sorted(decided))} itself, which overrides the line's flags")
    return fixed


def _read(now: ValueOf, settings: Mapping[str, str], known: Preset, notes: list[str]) -> dict[str, dict[str, Any]]:
    """Returns the job fields that the line and its settings file give, by section; [model] only if it is complete."""
    sections: dict[str, dict[str, Any]] = {}
    for sets, field in known.reads.items():
        value = _anywhere(now, settings, sets)
        field, _, by = field.partition(" // ")
        section, _, name = field.partition(".")
        if isinstance(value, int) and isinstance(value, bool) == (name in _SWITCHES):
            sections.setdefault(section, {})[name] = value // int(by) if by else value
    model = {**known.model, **sections.get("model", {})}
    stated = {sets: _anywhere(now, settings, sets) for sets in known.model_where}
    others = [
        s for s, text in known.model_where.items() if stated[s] is not None and not re.search(text, as_text(stated[s]))
    ]
    length = sections.get("traffic", {}).get("seq_len", 0)  # a training without a sequence length cannot be predicted
    if model and (others or not length or not all(model.get(name) for name in ("layers", "hidden", "heads", "vocab"))):
        sections.pop("model", None)
    elif model:
        sections["model"] = model
        if "vocab" in known.model:
            notes.append(
                f"model.vocab: {model['vocab']} is assumed, since only the tokenizer contains the vocabulary's size"
            )
    return sections


def _anywhere(now: ValueOf, settings: Mapping[str, str], sets: str) -> Value | None:
    """Returns the value of a setting in the line, else in the line's settings file, else None."""
    value = now(sets)
    name = setting(sets)
    return value_of(settings[name]) if value is None and name in settings else value


def _by_deepspeed(line: Line, now: ValueOf, known: Preset) -> Line:
    """Returns the line with which DeepSpeed starts the ranks if the settings select DeepSpeed; else the given line."""
    values = {flag: now(sets) for flag, sets in known.deepspeed.items()}
    flags = [word for flag, value in values.items() if value is not None for word in (flag, as_text(value))]
    return line.of(["deepspeed", *flags]) if flags else line


def _product(now: ValueOf, settings: Mapping[str, str], names: list[str]) -> int:
    """Returns the product of the settings that are positive integers; 0 if there are none."""
    values = [_anywhere(now, settings, sets) for sets in names]
    counts = [count for count in values if isinstance(count, int) and count > 0]
    return math.prod(counts) if counts else 0


def _guessed(line: Line) -> list[dict[str, Any]]:
    knobs = []
    for word in line.words:
        flag = word.partition("=")[0]
        value = line.value(flag) if _TUNABLE.match(flag) and not _NOT.search(flag) else None
        if isinstance(value, int) and not isinstance(value, bool):
            values = sorted({int(value * step) for step in _STEPS if value * step == int(value * step)})
            name = re.sub(r"\W", "_", flag.lstrip("-"))
            knobs.append({"name": name, "values": values if value else [0, 2, 4], "sets": flag})
    return knobs


def _same_samples(knobs: list[dict[str, Any]], line: Line, notes: list[str]) -> dict[str, Any]:
    """Returns [space] with these knobs, limited so that the number of samples per step does not change: micro batch and
    accumulation keep their product, and a knob keeps its value if no other setting can compensate for a change. If the
    line gives the global batch, the micro batch may have any value."""
    kinds = {knob["name"]: samples_by_name(knob["sets"]) for knob in knobs}
    batch, times = ([name for name in kinds if kinds[name] == kind] for kind in ("batch", "accumulation"))
    today = {knob["name"]: line.value(knob["sets"]) for knob in knobs}
    if len(batch) == len(times) == 1 and all(today[name] for name in batch + times):
        samples = math.prod(int(today[name] or 1) for name in batch + times)
        reason = f"a step keeps today's {samples} samples per rank, because a step with fewer samples trains on less"
        return {"knob": knobs, "rule": [{"holds": f"{batch[0]} * {times[0]} == {samples}", "reason": reason}]}
    fixed = {name: today[name] for name in (times if says_whole(line) else batch + times)}
    if not fixed:
        return {"knob": knobs}
    notes.append(
        f"space.fix: if {' or '.join(fixed)} changed, the number of samples in a step could change, and fewer samples "
        "would look faster; remove this fix if your script keeps the batch over all ranks, or if you measure samples "
        "per second"
    )
    return {"knob": knobs, "fix": fixed}


def _name(line: Line, known: Preset, preset_name: str) -> str:
    if known.has and line.settings_files:
        return as_name(Path(line.settings_files[0]).stem, "run")  # not the script, which several jobs can share
    if any(word in known.recognises and "/" not in word for word in line.words if not word.endswith((".py", ".sh"))):
        return as_name(preset_name, "run")  # a module; words that end in .py are other files
    script = next((Path(word).stem for word in line.words if word.endswith((".py", ".sh"))), preset_name or "run")
    return as_name(script, "run")
