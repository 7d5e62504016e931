"""Simulator inputs that the user's ds_config and launch line determine, rather than knobs: fixed settings, precision,
model parallelism, and the kernels of Hugging Face models."""

import math
import re
from collections.abc import Collection, Iterator, Mapping

from autoscout.line.launch_line import Flags
from autoscout.space.knob import KnobEntry
from autoscout.targets.current_launch import command_line, whole_number
from autoscout.targets.deepspeed import ds_config
from autoscout.targets.deepspeed.ds_config import Config
from autoscout.targets.deepspeed.tuning_space import STEPS
from kb.records import Job

_REUSE = "zero_optimization.stage3_max_reuse_distance"
# Values with which a Hugging Face Trainer replaces "auto" (transformers/integrations/deepspeed.py): path → expression.
_FILLED_IN = {
    "zero_optimization.reduce_bucket_size": "hidden * hidden",
    "zero_optimization.stage3_prefetch_bucket_size": "9 * hidden * hidden // 10",
    "zero_optimization.stage3_param_persistence_threshold": "10 * hidden",
}
# Flags with which scripts (of a Trainer, of Megatron-DeepSpeed, and further ones) enable activation recomputation.
_RECOMPUTES = (
    *("--gradient_checkpointing", "--gradient-checkpointing", "--checkpoint-activations"),
    "--deepspeed-activation-checkpointing",
    *("--grad_checkpoint", "--use_grad_checkpoint", "--grad_checkpointing", "--use_gradient_checkpointing"),
    *("--gradient_checkpointing_enable", "--enable-gradient-checkpointing", "--enable_gradient_checkpointing"),
)
_OF_HUB = (
    *("--model_name_or_path", "--model_name", "--config_name", "--pretrained_model_name_or_path"),
    *("--base_model", "--model_id", "--model"),
)
_DEGREES = {"tp": "--tensor-model-parallel-size", "pp": "--pipeline-model-parallel-size"}
_OFF = ("false", "0", "no")
# Hugging Face models implement norms, activations and rotary positions by plain PyTorch operators.
_PLAIN_KERNELS = {"te": "0", "fused_norm": "0", "fused_activation": "0"}
_ATTENTION = "--attn_implementation"
_OFFLOADS = ("offload_optimizer", "offload_param")
_SPLITS = ("--ds-sequence-parallel-size", "--sequence_parallel_size", "--pipe_parallel_size", "--model_parallel_size")
_FUSED = ("--use_liger_kernel", "--use_liger", "--enable_liger_kernel")
_STORED = ("--load_in_4bit", "--load_in_8bit", "--quantization_bit", "--bits")
_ADAMS = re.compile(r"(?:fused|deepspeedcpu|torch)?(?:adamw?|lamb)(?:_(?:torch|hf|apex)(?:_fused)?)?", re.IGNORECASE)
_NOT_MODELLED = (
    *("zero_optimization.zero_quantized_weights", "zero_optimization.zero_quantized_gradients"),
    *("zero_optimization.mics_shard_size", "zero_optimization.zenflow", "torch_autocast.enabled"),
    *("compression_training", "progressive_layer_drop", "sparse_attention", "curriculum_learning"),
    *("tensor_parallel.autotp_size", "compile.deepcompile"),
)


def lacking(job: Job) -> str:
    """Returns a clause that names what the job lacks for predictions; "" if nothing."""
    if not job.model.layers:
        return (
            "the job has no model: write [model] with from = 'its config.json', or its layers, hidden, heads and vocab"
        )
    return "" if job.traffic.seq_len else "the job does not give traffic.seq_len, the tokens of a sample"


def flags_of(job: Job) -> Flags:
    return command_line(job).alike


def standing(job: Job, config: Config, knob: KnobEntry) -> str:
    """Returns the expression for a DeepSpeed knob that is not tuned: its value in the ds_config, or its default."""
    if knob.name == "ckpt":
        return _checkpointing(job)
    value = ds_config.at(config, knob.sets)
    if value == "auto":
        return _FILLED_IN.get(knob.sets, repr(_default(knob)))
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    # the default depends on the stage (runtime/zero/config.py: overlap_comm_valid)
    if value is None and knob.name == "overlap_comm":
        return "stage == 3"
    return repr(value if isinstance(value, bool | int | str) else _default(knob))


def simulated(
    job: Job, config: Config, batch: int, mp_size: int, shipped: Mapping[str, str], knobs: Collection[KnobEntry]
) -> dict[str, str]:
    """Returns simulator input → expression: the catalog's expressions, except for inputs that this ds_config and line
    determine. `batch`: samples per step, 0 if this number depends on the configuration."""
    flags, by_path = flags_of(job), {knob.sets.removeprefix("json:"): knob.name for knob in knobs}
    degrees = {name: whole_number(flags, flag) or 1 for name, flag in _DEGREES.items()}
    if degrees == {"tp": 1, "pp": 1}:
        degrees["tp"] = mp_size
    found = {**shipped, "dtype": precision(config, flags, by_path)}
    found |= {name: str(degree) for name, degree in degrees.items() if degree > 1}
    accumulated = ds_config.at(config, "data_types.grad_accum_dtype")
    found["grad_bytes"] = "4" if accumulated in ("fp32", "float32") else f"4 if {found['dtype']} == 'fp32' else 2"
    if "--sequence-parallel" in flags:
        found["sp"] = "1"
    if not job.traffic.global_batch:
        steps = config.get(STEPS)
        ranks = max(job.devices // ranks_of_a_model(job, mp_size), 1)
        found["global_batch"] = str(batch or f"mbs * {steps if isinstance(steps, int) else 1} * {ranks}")
    if any(flags.get(flag) for flag in _OF_HUB):
        found |= _PLAIN_KERNELS
    if kernels := flags.get(_ATTENTION):
        found["attention"] = repr("unfused" if kernels[0] == "eager" else "flash2")
    return found


def ranks_of_a_model(job: Job, mp_size: int) -> int:
    """Returns the number of ranks that together hold one copy of the model and process the same samples, from the
    launch line or autotuning's `mp_size`."""
    return ranks_by_line(flags_of(job), mp_size)


def ranks_by_line(flags: Flags, mp_size: int) -> int:
    return max(math.prod(whole_number(flags, flag) or 1 for flag in (*_DEGREES.values(), *_SPLITS)), mp_size)


def in_half(job: Job, config: Config) -> bool:
    """Whether the job trains in 16 bits."""
    return precision(config, flags_of(job), {}) != "'fp32'"


def max_reuse(config: Config, knobs: Collection[KnobEntry], default: str) -> str:
    """Returns the expression for stage3_max_reuse_distance. For a Trainer, "auto" means the default."""
    value = ds_config.at(config, _REUSE)
    tuned = next((knob.name for knob in knobs if knob.sets == _REUSE), "")
    return tuned or (str(int(value)) if isinstance(value, int | float) else default)


def not_modelled(job: Job, config: Config) -> Iterator[str]:
    """Yields settings of the ds_config that affect speed or memory but are not simulated."""
    flags = flags_of(job)
    for path in _NOT_MODELLED:
        if ds_config.at(config, path):
            yield path.removesuffix(".enabled")
    devices = [ds_config.at(config, f"zero_optimization.{name}.device") for name in _OFFLOADS]
    if any("nvme" in (device if isinstance(device, list) else [device]) for device in devices):
        yield "the disk that 'nvme' offloads to"
    if "--deepspeed-activation-checkpointing" in flags:
        for name in ("partition_activations", "cpu_checkpointing"):
            if ds_config.at(config, f"activation_checkpointing.{name}"):
                yield f"activation_checkpointing.{name}"
    optimizer = ds_config.at(config, "optimizer.type")
    for flag, name in (("optimizer.type", optimizer), ("--optim", " ".join(flags.get("--optim", ())))):
        if isinstance(name, str) and name and not _ADAMS.fullmatch(name):
            yield f"{flag} {name}"
    yield from (flag for flag in _SPLITS if (flags.get(flag) or ["1"])[0] != "1")
    yield from (flag for flag in _FUSED if is_on(flags, flag))
    yield from (flag for flag in _STORED if is_on(flags, flag) and list(flags[flag]) not in (["16"], ["32"]))


def _checkpointing(job: Job) -> str:
    """Returns the expression for activation checkpointing, from the script's flags. A user's knob may set such a
    flag."""
    for knob in job.space.knob:
        if knob.sets in _RECOMPUTES and isinstance(knob.values, list) and all(isinstance(v, bool) for v in knob.values):
            return f"'torch' if {knob.name} else 'none'"
    flags = flags_of(job)
    on = flags.get("--recompute-granularity") == ["full"] or any(is_on(flags, flag) for flag in _RECOMPUTES)
    return repr("torch" if on else "none")


def precision(config: Config, flags: Flags, by_path: Mapping[str, str]) -> str:
    """Returns the expression for the dtype: 16 bits if the ds_config enables them, or if the ds_config has "auto" and
    the launch line enables them."""
    fp16, bf16 = (_enabled(config, flags, by_path, name) for name in ("fp16", "bf16"))
    if fp16 in ("True", "False") and bf16 in ("True", "False"):
        return repr("fp16" if fp16 == "True" else "bf16" if bf16 == "True" else "fp32")
    return f"'fp16' if {fp16} else ('bf16' if {bf16} else 'fp32')"


def _enabled(config: Config, flags: Flags, by_path: Mapping[str, str], name: str) -> str:
    if tuned := by_path.get(f"{name}.enabled"):
        return tuned
    value = ds_config.at(config, f"{name}.enabled")
    if value is None and name == "bf16":  # DeepSpeed also accepts this section under its older name
        value = ds_config.at(config, "bfloat16.enabled")
    if value == "auto":
        return str(is_on(flags, f"--{name}"))
    return str(value is True)


def is_on(flags: Flags, flag: str) -> bool:
    """Whether the launch line enables a switch. A Trainer's switch may be followed by "false"."""
    return flag in flags and (list(flags[flag]) or ["true"])[0].lower() not in _OFF


def _default(knob: KnobEntry) -> object:
    return knob.default if knob.default is not None else knob.off if knob.off is not None else 0
