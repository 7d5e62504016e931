"""Converts a job and a configuration to a command: the user's command with the configuration's ds_config. Experiments
and exports use the same conversion.

The ds_config is a file in the experiment's folder. It is passed as base64 instead if a shell or a launcher over ssh
would split its path, or if the command has {ds_config_base64}. (DeepSpeed accepts both.)"""

import base64
import json
import re
from pathlib import Path
from typing import Any

import msgspec

from autoscout.line import nested
from autoscout.line.launch_line import Line
from autoscout.running.cluster.devices import device_kind
from autoscout.space.language.template import filled as fill
from autoscout.targets.command import arguments as command
from autoscout.targets.command.arguments import EXPORT_FOLDER, Place, Started
from autoscout.targets.deepspeed import ds_config, modelled
from autoscout.targets.deepspeed.autotuning import mapped, settings
from autoscout.targets.deepspeed.config_space import (
    BATCH,
    STAGE,
    batch_of,
    config_of,
    leaves_auto,
    read_config,
    scalar_of,
    takes_auto,
)
from autoscout.targets.deepspeed.ds_config import Config
from autoscout.targets.deepspeed.tuning_space import HUGGING_FACE, MICRO, STEPS, filled, names_in, replaced, template
from autoscout.targets.jobs import declared
from autoscout.targets.launch import Launch
from kb.records import AutoscoutError, Configuration, Job, MetricSource, Rendered, Value

_HERE, _ASKED = "@ds-config@", "{ds_config_base64}"
_PLAIN = re.compile(r"[\w@%+=:,./-]*")
ENGINES = "{folder}/metrics.json"  # written by DeepSpeed's engine for its autotuner
_EACH_STEP = {"steps_per_print": 1, "log_level": "info"}
_OFFLOADS = ("offload_optimizer", "offload_param")


def started(job: Job, configuration: Configuration, place: Place) -> Started:
    """Returns the command to run, with its variables and files. Errors: AutoscoutError (exit 2) as in
    command/arguments.py, and for a ds_config that is missing, unreadable or not passed to the script."""
    rendered = config_of(job)
    if rendered is None:
        raise AutoscoutError(
            "there is no ds_config to tune: set launch.render = "
            '[{ from = "ds_config.json", to = "{folder}/ds_config.json" }] and launch.command',
            2,
        )
    others = [r for r in job.launch.render if r is not rendered]
    text = command.command_of(job).replace(_ASKED, _HERE)
    plain = msgspec.structs.replace(job.launch, render=others, command=text)
    run = command.started(msgspec.structs.replace(job, launch=plain), configuration, place)
    config = rendered_config(job, configuration, place)
    text = json.dumps(config, indent=2) + "\n"
    to = fill(rendered.to, {"folder": place.folder}, "launch.render.to")
    encoded = _as_base64(config) if not _PLAIN.fullmatch(to) else to
    line = _with_config(run.line, rendered, job, encoded)
    line = line.of(word.replace(_HERE, _as_base64(config)) for word in line.words)
    if line == run.line:
        raise AutoscoutError(
            f"launch.command does not give {rendered.origin} to the script: write --deepspeed_config {rendered.origin} "
            f"(Hugging Face: --deepspeed {rendered.origin}), or {{ds_config_base64}} where it belongs",
            2,
        )
    values = {name: value for name in (MICRO, STEPS, BATCH) if isinstance(value := config.get(name), int)}
    line = mapped(line, mappings(job, line), {**_scalars(config), **values})
    environment = {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"} if device_kind(job) == "cpu" else {}
    return Started(line=line, environment={**environment, **run.environment}, files={**run.files, to: text})


def rendered_config(job: Job, configuration: Configuration, place: Place | None = None) -> Config:
    """Returns a complete ds_config, without lists or placeholders and with three consistent batch sizes. `place`: where
    an experiment runs; if given, the engine also reports its speed after every step."""
    config = read_config(job)
    found = settings(config)
    knobs = {knob.name: knob for knob in declared(job).knob}
    for knob in knobs.values():
        if not _of_config(knob.sets):
            continue
        value = configuration.knobs.get(knob.name)
        stands = ds_config.at(config, knob.sets)
        if value is not None:
            _put(config, knob.sets, scalar_of(value))
        elif isinstance(stands, list) or stands in ("auto", "all"):
            _put(config, knob.sets, None)
    stage = ds_config.at(config, STAGE) or 0
    if found.enabled and not found.fast and isinstance(stage, int) and 0 <= stage <= 3:
        config = replaced(template(stage, int((found.model_info or {}).get("hidden_size") or 0)), config)
    zero = config.get("zero_optimization")
    if isinstance(zero, dict):
        gone = [n for n in _OFFLOADS if (zero.get(n) or {}).get("device") in (None, "none")]
        config["zero_optimization"] = {n: v for n, v in zero.items() if n not in gone and v is not None}
    config.pop("autotuning", None)
    names = {**configuration.knobs, "gpus": job.devices}
    config = filled(config, {n.lower(): v for n, v in names.items()})
    ranks = max(job.devices // modelled.ranks_of_a_model(job, found.mp_size), 1)
    _agree_on_batch(config, batch_of(job, read_config(job)), ranks)
    if place is not None and place.measuring:
        config |= _EACH_STEP
        if any(isinstance(source, MetricSource) and source.file == ENGINES for source in job.launch.metrics.values()):
            last = job.launch.warmup + job.launch.iterations
            path = ENGINES.replace("{folder}", place.folder)
            steps = {"start_profile_step": max(found.start_profile_step, 2), "end_profile_step": max(last, 3)}
            config["autotuning"] = {"enabled": True, "metric_path": path, **steps}
    return config


def saying_each_step(job: Job, launch: Launch) -> Launch:
    """Returns the launch with a ds_config that makes the engine report its speed after every step."""
    rendered = config_of(job)
    to = fill(rendered.to, {"folder": EXPORT_FOLDER}, "launch.render.to") if rendered else ""
    if to not in launch.files:
        return launch
    content = json.dumps(json.loads(launch.files[to]) | _EACH_STEP, indent=2)
    return msgspec.structs.replace(launch, files={**launch.files, to: content})


def unused(job: Job) -> list[str]:
    """Returns the names of the job file's knobs that neither the command nor the ds_config uses."""
    rendered = config_of(job)
    if rendered is None:
        return []
    others = [r for r in job.launch.render if r is not rendered]
    plain = msgspec.structs.replace(job, launch=msgspec.structs.replace(job.launch, render=others))
    spoken = names_in(read_config(job))
    own = {knob.name for knob in job.space.knob}
    return [n for n in command.unused(plain) if n in own and n.lower() not in spoken and not _sets_config(job, n)]


def _sets_config(job: Job, name: str) -> bool:
    return any(knob.name == name and _of_config(knob.sets) for knob in declared(job).knob)


def _of_config(sets: str) -> bool:
    """Whether `sets` is the path of a ds_config field, not a flag, variable, placeholder or description."""
    return bool(re.fullmatch(r"(json:)?[A-Za-z]\w*(\.\w+)*", sets)) and not sets.startswith("env:")


def _put(config: Config, path: str, value: Any) -> None:
    ds_config.put(config, path.removeprefix("json:"), value)


def _with_config(line: Line, rendered: Rendered, job: Job, replacement: str) -> Line:
    """Returns the command with the path of the ds_config replaced by `replacement`, a path or a ds_config in base64."""
    folder = Path(job.launch.path or ".")
    origin = (folder / rendered.origin).resolve()

    def of(word: str) -> str:
        flag, sign, path = word.partition("=") if word.startswith("--") else ("", "", word)
        if path == rendered.origin or (path.endswith(".json") and (folder / path).resolve() == origin):
            return f"{flag}{sign}{replacement}"
        return word

    return line.of(map(of, line.words))


def mappings(job: Job, line: Line) -> dict[str, str]:
    """Returns name in the ds_config → the script's flag for this setting: the user's arg_mappings if set; else the
    flags of a Hugging Face Trainer, if the command has them or the ds_config has an "auto" (which only a Trainer fills
    in). A Trainer rejects a ds_config that differs from its flags."""
    config = read_config(job)
    given = settings(config).arg_mappings
    if given is not None:
        return given
    trainer = takes_auto(job) and leaves_auto(config)
    return {name: flag for name, flag in HUGGING_FACE.items() if trainer or line.value(flag) is not None}


def _scalars(config: Config) -> dict[str, Value]:
    """Returns the scalars of a ds_config by the last name in their path. If several paths end with the same name, the
    first one counts."""
    found: dict[str, Value] = {}
    for path, value in nested.leaves(config):
        if isinstance(value, bool | int | float | str):
            found.setdefault(path.rpartition(".")[2], value)
    return found


def _agree_on_batch(config: Config, batch: int, ranks: int) -> None:
    """Ensures train_batch_size == micro batch × accumulation × ranks. `ranks`: number of data parallel ranks."""
    micro, steps = config.get(MICRO), config.get(STEPS)
    micro = micro if isinstance(micro, int) else 1
    if batch:
        config[BATCH], config[MICRO], config[STEPS] = batch, micro, max(batch // (micro * ranks), 1)
    elif MICRO in config or STEPS in config:
        steps = steps if isinstance(steps, int) else 1
        config[MICRO], config[STEPS], config[BATCH] = micro, steps, micro * steps * ranks


def _as_base64(config: Config) -> str:
    return base64.urlsafe_b64encode(json.dumps(config).encode()).decode()
