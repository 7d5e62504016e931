"""The `autotuning` section of a ds_config, with the user's settings for DeepSpeed's autotuner.

Defaults are those of DeepSpeed's code (autotuning/constants.py, 0.19.8), except for `overwrite`, which is false so that
no measurement is lost. (DeepSpeed's README states different defaults for `overwrite` and `tuner_type`.)"""

import difflib
import math
from pathlib import Path
from typing import Any, Literal

import msgspec

from autoscout.line.launch_line import Line
from autoscout.targets.deepspeed import ds_config
from autoscout.targets.deepspeed.ds_config import Config
from kb.records import AutoscoutError, Value

Metric = Literal["throughput", "latency", "flops", "FLOPS_per_gpu"]
Tuner = Literal["gridsearch", "random", "model_based"]
# DeepSpeed's metric → a job's objective. (DeepSpeed's own tuner maximizes all four, even latency.)
OBJECTIVES = {
    "throughput": {"maximize": "samples_per_s"},
    "latency": {"minimize": "step_time_s"},
    "flops": {"maximize": "flops_per_gpu"},
    "FLOPS_per_gpu": {"maximize": "flops_per_gpu"},
}
STRATEGIES = {"gridsearch": "deepspeed-grid", "random": "deepspeed-random", "model_based": "deepspeed-model"}


class Autotuning(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`metric_path`, `model_info_path`: ignored, because the engine writes to the experiment's folder."""

    enabled: bool = False
    fast: bool = True
    results_dir: str = "autotuning_results"
    exps_dir: str = "autotuning_exps"
    overwrite: bool = False
    start_profile_step: int = 3
    end_profile_step: int = 5
    metric: Metric = "throughput"
    metric_path: str | None = None
    model_info_path: str | None = None
    tuner_type: Tuner | None = None
    tuner_early_stopping: int = 5
    tuner_num_trials: int = 50
    arg_mappings: dict[str, str] | None = None
    max_train_batch_size: int | None = None
    min_train_batch_size: int = 1
    min_train_micro_batch_size_per_gpu: int = 1
    max_train_micro_batch_size_per_gpu: int = 1024
    num_tuning_micro_batch_sizes: int = 3
    mp_size: int = 1
    model_info: dict[str, Any] | None = None
    zero_optimization: dict[str, Any] | None = None


# AutoTP (automatic tensor parallelism): ranks of a group process the same samples (runtime/engine.py: dp_world_size)
AUTO_TP = "tensor_parallel.autotp_size"


def settings(config: Config, where: str = "ds_config") -> Autotuning:
    """Returns the section's settings. `mp_size` is set to the degree of AutoTP if DeepSpeed itself splits the model.

    Errors: AutoscoutError (exit 2) naming the setting."""
    section = config.get("autotuning") or {}
    if not isinstance(section, dict):
        raise AutoscoutError(f"{where}: autotuning must be an object with settings", 2)
    known = [field.name for field in msgspec.structs.fields(Autotuning)]
    for name in section:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            raise AutoscoutError(f"{where}: DeepSpeed's autotuning has no setting '{name}'{hint}", 2)
    try:
        found = msgspec.convert(section, Autotuning)
    except msgspec.ValidationError as error:
        raise AutoscoutError(f"{where}: autotuning: {error}", 2) from error
    for name in ("num_params", "activation_mem_per_gpu"):
        value = (found.model_info or {}).get(name) or 0
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise AutoscoutError(f"{where}: autotuning: model_info.{name} = {value!r} is not a number", 2)
    least, most = found.min_train_micro_batch_size_per_gpu, found.max_train_micro_batch_size_per_gpu
    if not 0 < least <= most:
        raise AutoscoutError(f"{where}: autotuning: micro batches from {least} to {most} are an empty range", 2)
    if found.mp_size < 1 or found.num_tuning_micro_batch_sizes < 1 or found.end_profile_step < found.start_profile_step:
        raise AutoscoutError(
            f"{where}: autotuning: mp_size and num_tuning_micro_batch_sizes must be at least 1, and end_profile_step "
            "must not be before start_profile_step",
            2,
        )
    sharing = ds_config.at(config, AUTO_TP)
    return msgspec.structs.replace(found, mp_size=sharing) if type(sharing) is int and sharing > 1 else found


def mapped(line: Line, mappings: dict[str, str], values: dict[str, Value]) -> Line:
    """Returns the command line with `values` set by their flags in `mappings` (name in the ds_config → flag). Existing
    flags are changed, missing ones appended; a value "auto" is not set, because the script chooses it."""
    for name, flag in mappings.items():
        value = values.get(name.strip())
        if value is not None and value != "auto":
            line = line.with_(flag.strip(), str(value))
    return line


def folders(found: Autotuning, working: Path) -> tuple[Path, Path]:
    """Returns (exps_dir, results_dir), relative to the command's working directory."""
    return working / found.exps_dir, working / found.results_dir
