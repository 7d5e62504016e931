"""Interprets a tuning space like DeepSpeed's autotuner: lists are tuned, other values are fixed.

`$NAME` templates, experiment names and validation follow DeepSpeed's utils.py, but operate on copies. (DeepSpeed
modifies the caller's dictionaries.)"""

import copy
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from autoscout.space.language.template import as_text
from autoscout.targets.deepspeed.ds_config import Config
from kb.records import AutoscoutError

MICRO, STEPS, ZERO = "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "zero_optimization"
# flags of a Hugging Face Trainer
HUGGING_FACE = {MICRO: "--per_device_train_batch_size", STEPS: "--gradient_accumulation_steps"}
_NAME = re.compile(r"\$(\w+)")
# names whose `$NAME` is kept, because DeepSpeed replaces it on the machine that runs the job
_KEPT_NAMES = ("nvme_path",)
BUCKETS = [50_000_000, 500_000_000, 1_000_000_000]
# The tuning spaces in DeepSpeed's autotuning/constants.py, by ZeRO stage.
DEFAULT_SPACES: dict[int, Config] = {
    0: {},
    1: {"reduce_bucket_size": BUCKETS, "allgather_bucket_size": BUCKETS},
    2: {
        "overlap_comm": [True, False],
        "reduce_scatter": [False, True],
        "reduce_bucket_size": BUCKETS,
        "allgather_bucket_size": BUCKETS,
        "contiguous_gradients": [False, True],
    },
    3: {
        "overlap_comm": [True, False],
        "reduce_scatter": [False, True],
        "reduce_bucket_size": BUCKETS,
        "allgather_partitions": [True, False],
        "allgather_bucket_size": BUCKETS,
        "contiguous_gradients": [False, True],
    },
}
_STAGE_2: Config = {
    "allgather_partitions": True,
    "allgather_bucket_size": 500_000_000,
    "overlap_comm": False,
    "reduce_scatter": True,
    "reduce_bucket_size": 500_000_000,
    "contiguous_gradients": False,
}
# The values of settings that are not tuned, from DeepSpeed's config_templates/template_zero{0..3}.json.
TEMPLATES: dict[int, Config] = {
    0: {},
    1: {"reduce_bucket_size": 500_000_000, "allgather_bucket_size": 500_000_000},
    2: _STAGE_2,
    3: {
        **_STAGE_2,
        "stage3_max_live_parameters": 1_000_000_000,
        "stage3_max_reuse_distance": 1_000_000_000,
        "stage3_prefetch_bucket_size": 500_000_000,
        "stage3_param_persistence_threshold": 1_000_000,
        "stage3_gather_16bit_weights_on_model_save": False,
        "sub_group_size": 1_000_000_000_000,
    },
}


def template(stage: int, hidden: int = 0) -> Config:
    """Returns a stage's template. Stage 3's sizes depend on the hidden size, if known."""
    found = copy.deepcopy(TEMPLATES[stage])
    if stage == 3 and hidden:
        found["reduce_bucket_size"] = hidden * hidden
        found["stage3_prefetch_bucket_size"] = int(0.9 * hidden * hidden)
        found["stage3_param_persistence_threshold"] = 10 * hidden
    return {ZERO: {"stage": stage, **found}}


def replaced(config: Config, by: Mapping[str, Any]) -> Config:
    """Returns `config` with values replaced by those of `by`. The value None deletes the name: at the top level if it
    exists there, else in nested objects."""
    found = dict(config)
    for name, value in by.items():
        if value is None:
            found = _without(found, name)
        elif isinstance(value, Mapping):
            inner = found.get(name)
            found[name] = replaced(inner if isinstance(inner, dict) else {}, value)
        else:
            found[name] = copy.deepcopy(value)
    return found


def filled(config: Any, names: Mapping[str, Any]) -> Any:
    """Returns `config` with every `$NAME` replaced by the value of the lower-case name in `names`. A string that is
    only `$NAME` becomes a value of the original type. Errors: AutoscoutError (exit 2) for an unknown name."""
    if isinstance(config, Mapping):
        return {name: filled(value, names) for name, value in config.items()}
    if isinstance(config, list):
        return [filled(value, names) for value in config]
    if not isinstance(config, str):
        return config
    whole = _NAME.fullmatch(config)
    if whole and whole[1].lower() not in _KEPT_NAMES:
        return _named(whole[1], names)
    return _NAME.sub(lambda m: m[0] if m[1].lower() in _KEPT_NAMES else as_text(_named(m[1], names)), config)


def names_in(config: Any) -> set[str]:
    """Returns the names of all `$NAME`s in lower case."""
    if isinstance(config, Mapping | list):
        inner = config.values() if isinstance(config, Mapping) else config
        return set().union(*(names_in(value) for value in inner))
    found = {name.lower() for name in _NAME.findall(config)} if isinstance(config, str) else set()
    return found - {*_KEPT_NAMES}


def refused(config: Mapping[str, Any], brings_optimizer: bool = False) -> str:
    """Returns why DeepSpeed cannot train with this config; "" if it can. Offloading needs one of DeepSpeed's
    optimizers, unless the script's own optimizer can be offloaded (`brings_optimizer`)."""
    zero = config.get(ZERO) or {}
    stage = zero.get("stage", 0)
    if stage == 2 and zero.get("cpu_offload") and zero.get("cpu_offload_params"):
        return "ZeRO stage 2 cannot offload weights; set stage 3, or remove cpu_offload_params"
    devices = [(zero.get(name) or {}).get("device") for name in ("offload_optimizer", "offload_param")]
    if any(device in ("cpu", "nvme") for device in devices) and not (config.get("optimizer") or brings_optimizer):
        return (
            'offloading needs one of DeepSpeed\'s own optimizers: add an "optimizer" section to the ds_config '
            "instead of making the optimizer in the script"
        )
    return ""


def canonical_name(config: Mapping[str, Any], keys: Collection[str], prefix: str = "") -> str:
    """Returns DeepSpeed's name for an experiment: initials and values of the tuned settings, as in
    z2_tmbspg2_gas4_rbs5.0e+08."""
    keys = {*keys, MICRO, STEPS}
    return prefix + ("_".join(_parts(config, keys)) or "exp")


def _parts(config: Mapping[str, Any], keys: Collection[str]) -> Iterator[str]:
    for key, value in config.items():
        if key in ("offload_param", "offload_optimizer"):
            inner = value.items() if isinstance(value, Mapping) else ()
            yield {"offload_param": "op", "offload_optimizer": "oo"}[key]
            yield from [_letters(k) + _in_name(v) for k, v in inner] if value is not None else ["None"]
        elif isinstance(value, Mapping) and key != "arg_mappings":
            yield from _parts(value, keys)
        elif key in keys:
            yield _letters(key) + _in_name(value)


def _letters(key: str) -> str:
    return "".join(part[0] for part in key.split("_") if part)


def _in_name(value: Any) -> str:
    if isinstance(value, bool):
        return "T" if value else "F"
    if isinstance(value, int | float) and value > 9000:
        return f"{value:.1e}"
    return str(value)


def _without(config: Config, name: str) -> Config:
    if name in config:
        return {key: value for key, value in config.items() if key != name}
    return {k: _without(v, name) if isinstance(v, dict) else v for k, v in config.items()}


def _named(name: str, names: Mapping[str, Any]) -> Any:
    if name.lower() not in names:
        raise AutoscoutError(
            f"the ds_config's ${name} names nothing that is tuned; the tuned names are "
            f"{', '.join(sorted(names)) or 'none'}",
            2,
        )
    return names[name.lower()]
