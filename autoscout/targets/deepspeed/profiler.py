"""Experiments on a user's DeepSpeed script. Each experiment has its own ds_config. After the run, the settings that
DeepSpeed prints are compared with this ds_config, because a script may ignore it."""

import json
import os
import re
from pathlib import Path
from typing import Any

import msgspec

from autoscout.running import processes
from autoscout.running.supervised import run as supervised_run
from autoscout.targets.command import surroundings
from autoscout.targets.command.arguments import Place
from autoscout.targets.command.failures import classify
from autoscout.targets.command.preset import preset_of
from autoscout.targets.command.profiler import CommandProfiler
from autoscout.targets.deepspeed import ds_config
from autoscout.targets.deepspeed.arguments import mappings, started
from autoscout.targets.deepspeed.autotuning import mapped
from autoscout.targets.deepspeed.config_space import BATCH, STAGE
from autoscout.targets.deepspeed.tuning_space import MICRO, STEPS
from kb import door
from kb.records import AutoscoutError, Configuration, Job, Measurement, Value

# matches the settings that DeepSpeed's engine prints at its start
_PRINTED = re.compile(r"json = (\{.*?\n\})", re.DOTALL)
_PREFIX = re.compile(r"^\[[^\n\]]*\] \[[A-Z]+\] \[[^\]]*\] ?", re.MULTILINE)
_COMPILED = "TORCH_EXTENSIONS_DIR"
_SEARCHED_BYTES = 2**22  # maximum number of bytes of a log that are searched
_COMPARED = (MICRO, STEPS, STAGE)
INFO = "profile_model_info"


def profiler(job: Job) -> CommandProfiler:
    given = job.launch.environment.get(_COMPILED) or os.environ.get(_COMPILED) or "~/.cache/torch_extensions"
    return CommandProfiler(job, started, lambda found, folder: judged(found, folder, Path(given).expanduser()))


def judged(found: Measurement, folder: Path, compiled: Path) -> Measurement:
    """Returns the measurement, marked as invalid if the script ignored its ds_config. If the run was ended while
    DeepSpeed compiled an operator, also removes the compilation lock, because every later run would wait for it
    forever."""
    if found.status == "timeout" and (locks := unfinished(found, compiled)):
        for lock in locks:
            lock.unlink(missing_ok=True)
        why = (
            f"launch.timeout_s expired while DeepSpeed compiled its operator {locks[0].parent.name}, which "
            "happens only once: raise launch.timeout_s, or run the command once yourself; the lock left in "
            f"{locks[0].parent} was removed"
        )
        return msgspec.structs.replace(found, status="infrastructure", evidence=why)
    if found.status == "ok" and (why := ignored(folder)):
        found = msgspec.structs.replace(found, status="invalid", evidence=why, metrics={})
    return found


def unfinished(found: Measurement, compiled: Path) -> list[Path]:
    """Returns the locks of operators that a run began to compile. `compiled`: torch's folder for compiled operators."""
    # torch's default folder has a subfolder per Python version
    locks = [*compiled.glob("*/lock"), *compiled.glob("*/*/lock")]
    return [lock for lock in locks if lock.stat().st_mtime >= found.at - found.cost_s]


def ignored(folder: Path) -> str:
    """Returns a sentence on how DeepSpeed's printed ds_config differs from the given one; "" if they are equal."""
    given = next((path for path in folder.glob("*.json") if _is_config(path)), None)
    try:
        text = (folder / "output.log").read_bytes()[:_SEARCHED_BYTES].decode(errors="replace")
        wanted = json.loads(given.read_text()) if given else {}
    except (OSError, ValueError):
        return ""
    printed = _PRINTED.search(_PREFIX.sub("", text))
    if printed is None or not wanted:
        return ""
    try:
        trained = json.loads(printed[1])
    except ValueError:
        return ""
    for path in _COMPARED:
        asked, does = ds_config.at(wanted, path), ds_config.at(trained, path)
        if asked is not None and does != asked:
            return (
                f"the script trains with {path} = {json.dumps(does)}, but AutoScout set {json.dumps(asked)}: the "
                "script ignores the ds_config of its command line; pass that ds_config to deepspeed.initialize"
            )
    return ""


def model_info(job: Job, configuration: Configuration, folder: Path, limit_s: float) -> dict[str, Any]:
    """Returns the model's number of parameters and its activation memory (bytes per sample). DeepSpeed's engine counts
    them in a forward pass with micro batch 1 at stage 3, which needs the least memory. Errors: AutoscoutError (exit 1)
    if the forward pass fails."""
    place = Place(folder=str(folder.resolve()), port=str(processes.free_port()), iterations="1")
    run = started(job, configuration, place)
    path, text = next((name, text) for name, text in run.files.items() if name.endswith(".json"))
    config = json.loads(text)
    written = folder / "model_info.json"
    zero = {n: v for n, v in config.get("zero_optimization", {}).items() if n.startswith("offload_")}
    batch: dict[str, Value] = {MICRO: 1, STEPS: 1, BATCH: job.devices}
    config |= {**batch, "zero_optimization": {**zero, "stage": 3}, "memory_breakdown": False}
    config["autotuning"] = {"enabled": True, "model_info_path": str(written.resolve()), "model_info": {"profile": True}}
    folder.mkdir(parents=True, exist_ok=True)
    written.unlink(missing_ok=True)
    Path(path).write_text(json.dumps(config))
    variables = surroundings.variables(job, run)
    ended = supervised_run(
        [*mapped(run.line, mappings(job, run.line), batch).words],
        variables,
        Path(job.launch.path or "."),
        folder,
        limit_s,
        lambda: False,
        lambda piece: None,
        lambda: "the model is known" if written.is_file() and written.stat().st_size else "",
    )
    try:
        return door.parsed_json(written.read_text())
    except (OSError, ValueError) as error:
        known, lacking = preset_of(job).failure, f"it wrote no {written.name}"
        why = classify(ended, folder / "output.log", known, limit_s, 0, lacking, False)[1]
        raise AutoscoutError(f"{INFO}: the model did not run under DeepSpeed: {why}") from error


def _is_config(path: Path) -> bool:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and ("zero_optimization" in found or MICRO in found or "train_batch_size" in found)
