"""Determines the model in a launch line and its tokens per sample, for predictions. The model is given by a Hugging
Face folder or config.json, the name of a known model, or Megatron-DeepSpeed's flags."""

import re
from typing import Any

from autoscout.job.model_folder import of_name
from autoscout.line.launch_line import Flags
from autoscout.targets.current_launch import whole_number
from autoscout.targets.deepspeed.ds_config import Config
from autoscout.targets.deepspeed.modelled import is_on, precision
from autoscout.targets.megatron.from_line import model_of

_NAMED = (
    *("--config_name", "--model_name_or_path", "--model_name", "--model_path", "--pretrained_model_name_or_path"),
    *("--base_model", "--model_id", "--model"),
)
_LENGTHS = (
    *("--block_size", "--max_seq_length", "--max_seq_len", "--model_max_length", "--max_length", "--cutoff_len"),
    *("--seq-length", "--seq_length", "--seq_len", "--sequence_length"),
)
_MEGATRONS = ("--num-layers", "--hidden-size", "--num-attention-heads")
_OF_ADAPTERS = re.compile(
    r"--(?:use_(?:\w+_)?|actor_)?(?:q_?lora|lora|peft)(?P<size>_(?:r|rank|dim))?(?:_enable|_lora)?"
)
_KINDS = ("--finetuning_type", "--tuner_type", "--train_type", "--sft_type")
_OF_PARTS = re.compile(r"--(?:freeze(?:_\w+)?|tune_mm_mlp_adapter|only_optimize_lora)")
_USUAL = 1024  # default tokens per sample: the maximum in Hugging Face's run_clm.py


def described(flags: Flags, config: Config) -> tuple[dict[str, Any], list[str]]:
    """Returns ({"model": …, "seq_len": …}, notes for the user). Keys that the launch line does not determine are
    missing."""
    if adapters := _adapters(flags):
        return {}, [
            f"model: the line trains adapters ({adapters}); to predict it, write task = 'finetune', [model] "
            f"and [model.lora]"
        ]
    if part := next((f for f in flags if _OF_PARTS.fullmatch(_plain(f)) and is_on(flags, f)), ""):
        return {}, [f"model: the line trains only a part of its model ({part}), which cannot be predicted"]
    notes: list[str] = []
    if all(flags.get(flag) for flag in _MEGATRONS):
        model = model_of(flags, notes)
        notes = [note for note in notes if not note.startswith("model.dtype")]
    else:
        name = next((flags[flag][0] for flag in _NAMED if flags.get(flag)), "")
        model = of_name(name, notes, "pretrain") if name else {}
    if not model:
        return {}, notes
    length = next((n for flag in _LENGTHS if (n := whole_number(flags, flag)) is not None), 0)
    if not length:
        length = _USUAL
        notes.append(f"traffic.seq_len: {_USUAL} tokens per sample are assumed, because the line gives no length")
    dtype = precision(config, flags, {}).strip("'")
    return {"model": {**model, "dtype": "fp32" if dtype == "fp32" else "bf16"}, "seq_len": length}, notes


def _adapters(flags: Flags) -> str:
    """Returns the flag that enables adapters; "" if the launch line trains none."""
    kinds = [flag for flag in _KINDS if flags.get(flag, ["full"])[:1] != ["full"]]
    found = {flag: named for flag in flags if (named := _OF_ADAPTERS.fullmatch(_plain(flag)))}
    switches = [flag for flag, named in found.items() if not named["size"]]
    return next((flag for flag in kinds or switches or found if flag in kinds or is_on(flags, flag)), "")


def _plain(flag: str) -> str:
    return "--" + flag.lstrip("-").replace("-", "_")
