"""Parses a user's ds_config like DeepSpeed: JSON with comments and trailing commas. Each mistake is reported in a
sentence. DeepSpeed silently ignores unknown top-level names. Here, an unknown name that resembles a known one is an
error, because it is probably misspelled and would have no effect."""

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from autoscout.line.kinds import arguments
from kb import door
from kb.records import AutoscoutError

Config = dict[str, Any]
# _SECTIONS: top-level names that line/arguments/deepspeed.csv lacks (DeepSpeed 0.19.8: runtime/config.py and its
# callees, autotuning/config.py). ZERO: all names of the section zero_optimization (runtime/zero/config.py).
_SECTIONS = (
    *("optimizer", "scheduler", "bfloat16", "amp", "torch_autocast", "autotuning", "sparse_gradients"),
    *("activation_checkpointing", "flops_profiler", "tensorboard", "wandb", "csv_monitor", "comet", "aio"),
    *("checkpoint", "data_types", "pipeline", "data_efficiency", "curriculum_learning", "compression_training"),
    *("elasticity", "nebula", "sparse_attention", "progressive_layer_drop", "eigenvalue", "quantize_training"),
    *("weight_quantization", "timers", "expert_parallel", "sequence_parallel_size", "data_parallel_size", "log_level"),
    *("graph_harvesting", "seed", "datastates_ckpt", "domino", "monitor_config", "moe", "zero_stage", "arg_mappings"),
    "mp_size",
)
TOP = {*_SECTIONS, *(name.partition(".")[0] for name in arguments("deepspeed") if not name.startswith("--"))}
ZERO = (
    *("stage", "contiguous_gradients", "reduce_scatter", "reduce_bucket_size", "allgather_partitions", "overlap_comm"),
    *("allgather_bucket_size", "load_from_fp32_weights", "elastic_checkpoint", "offload_param", "offload_optimizer"),
    *("zenflow", "sub_group_size", "cpu_offload_param", "cpu_offload_use_pin_memory", "cpu_offload", "leaf_module"),
    *("stage3_prefetch_bucket_size", "stage3_param_persistence_threshold", "stage3_max_live_parameters"),
    *("stage3_max_reuse_distance", "stage3_gather_16bit_weights_on_model_save", "stage3_module_granularity_threshold"),
    *("stage3_model_persistence_threshold", "stage3_gather_fp16_weights_on_model_save", "stage3_allgather_sequential"),
    *("stage3_use_all_reduce_for_fetch_params", "use_multi_rank_bucket_allreduce", "ignore_unused_parameters"),
    *("legacy_stage1", "round_robin_gradients", "parameter_alignment", "zero_hpz_partition_size", "mics_shard_size"),
    *("mics_hierarchical_params_gather", "zero_quantized_weights", "zero_quantized_nontrainable_weights"),
    *("zero_quantized_gradients", "memory_efficient_linear", "pipeline_loading_checkpoint", "override_module_apply"),
    *("log_trace_cache_warnings", "enable_sanity_checks", "save_muon_momentum_buffer_in_memory", "compute_grad_norm"),
)
# DeepSpeed also accepts stage 3's settings without the prefix stage3_.
_ALIASES = {name.removeprefix("stage3_"): name for name in ZERO if name.startswith("stage3_")}
_STRING = r'"(?:[^"\\]|\\.)*"'
_COMMENT = re.compile(rf"({_STRING})|//[^\n]*|\#[^\n]*|/\*.*?\*/", re.DOTALL)
_TRAILING = re.compile(rf"({_STRING})|,(?=\s*[}}\]])")


def read(path: Path) -> Config:
    """Reads a ds_config file. Errors: AutoscoutError (exit 2) naming the file and the problem."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "the file is not text"
        raise AutoscoutError(f"{path}: cannot be read as a ds_config ({why})", 2) from error
    config = parsed(text, str(path))
    for problem in contradictions(config):
        raise AutoscoutError(f"{path}: {problem}", 2)
    if zero := config.get("zero_optimization"):
        config["zero_optimization"] = {_ALIASES.get(name, name): value for name, value in zero.items()}
    return config


def parsed(text: str, where: str) -> Config:
    """Parses a ds_config. `where`: the file's name for messages. Errors: AutoscoutError (exit 2)."""
    bare = _COMMENT.sub(lambda found: found[1] or "", text)
    bare = _TRAILING.sub(lambda found: found[1] or "", bare)
    try:
        config = door.parsed_json(bare, lambda pairs: _once(pairs, where))
    except ValueError as error:
        raise AutoscoutError(f"{where}: the file is not JSON ({error})", 2) from error
    if not isinstance(config, dict):
        raise AutoscoutError(f"{where}: the file must be an object with DeepSpeed's settings", 2)
    return config


def contradictions(config: Config) -> Iterator[str]:
    """Yields a sentence for each setting that DeepSpeed would reject or silently ignore."""
    try:
        json.dumps(config, allow_nan=False)
    except ValueError:
        yield "NaN and Infinity are not numbers in JSON; write a finite number"
    for name in ("fp16", "bf16"):
        if not isinstance(config.get(name) or {}, dict):
            yield f"{name} must be an object with settings"
    for where, known, section in (("", TOP, config), ("zero_optimization.", ZERO, config.get("zero_optimization"))):
        if section is not None and not isinstance(section, dict):
            yield f"{where.rstrip('.')} must be an object with settings"
            continue
        for name in section or ():
            near = [] if name.startswith("_") else difflib.get_close_matches(name, known, n=1, cutoff=0.75)
            if name not in known and not (where and name in _ALIASES) and (where or near):
                hint = f"; did you mean '{near[0]}'?" if near else f"; known: {', '.join(ZERO[:8])}, …"
                yield f"DeepSpeed has no setting '{where}{name}'{hint}"


def passed_over(config: Config) -> list[str]:
    """Returns the top-level names that DeepSpeed ignores, although the user's script may use them."""
    return [name for name in config if name not in TOP]


def at(config: Mapping[str, Any], path: str) -> Any:
    """Returns the value at a dotted path; None if there is none."""
    found: Any = config
    for key in path.split("."):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def put(config: Config, path: str, value: Any) -> None:
    """Sets the value at a dotted path, creating missing parent objects. None deletes the entry."""
    *before, last = path.split(".")
    inner = config
    for key in before:
        known = inner.get(key)
        inner[key] = inner = dict(known) if isinstance(known, dict) else {}
    if value is None:
        inner.pop(last, None)
    else:
        inner[last] = value


def _once(pairs: list[tuple[str, Any]], where: str) -> Config:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise AutoscoutError(f"{where}: '{twice}' is given twice, which DeepSpeed refuses; remove one of them", 2)
    return found
