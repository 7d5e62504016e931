"""Fine-tuning with Megatron-core: checks of jobs, and settings for the script and the worker.

Megatron-LM trains on conversations (`--sft`). Samples are packed when the data file is created: `packed.jsonl` has
several samples per line, `samples.jsonl` has one. Adapters need Megatron-Bridge (bridge.py)."""

import json
import math
from collections.abc import Iterator
from typing import Any

from autoscout.job.lengths import packed_share
from kb.records import AutoscoutError, Configuration, Job, Value

PACKED, ALONE = "packed.jsonl", "samples.jsonl"
_MODULES = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
_INSTEAD = {"q_proj": "linear_qkv", "k_proj": "linear_qkv", "v_proj": "linear_qkv", "o_proj": "linear_proj"}
_INSTEAD |= {"gate_proj": "linear_fc1", "up_proj": "linear_fc1", "down_proj": "linear_fc2"}


def finetuning_problems(job: Job) -> Iterator[str]:
    """Yields a sentence for each setting that a fine-tuning job lacks or that Megatron-core names differently."""
    if job.task != "finetune":
        return
    if not job.traffic.lengths:
        yield (
            "task = 'finetune' needs traffic.lengths, the samples' lengths in tokens: a file of them, or quantiles "
            "such as [20, 150, 400]"
        )
    if (lora := job.model.lora) is None:
        return
    for name in lora.modules:
        if name not in _MODULES:
            yield (
                f"model.lora.modules names {name}, which is {_INSTEAD[name]} in Megatron-core: write modules = "
                f"{json.dumps(_MODULES)}, or the subset that you adapt"
            )
    if lora.bits != 16:
        yield f"model.lora.bits = {lora.bits}, but Megatron-core keeps frozen weights in 16 bits"


def flags(job: Job, configuration: Configuration) -> dict[str, Value]:
    """Returns the flags in addition to those for pretraining."""
    if not job.traffic.lengths:
        return {}
    packing = bool(configuration.knobs.get("packing"))
    found: dict[str, Value] = {
        "--sft": True,
        "--data-path": PACKED if packing else ALONE,
        # All tokens have equal weight, independent of the sequence; otherwise packing would change what is learned.
        "--calculate-per-token-loss": True,
    }
    if packing:
        found["--global-batch-size"] = _sequences(job, configuration)
    return found


def missing(job: Job, configuration: Configuration) -> list[str]:
    """Returns notes on the data that the user has to provide for an exported launch: file name and batch size."""
    if not job.traffic.lengths:
        return []
    # whether the data is a file of lines; Megatron-Bridge, used for LoRA, has its own data sets
    lines = not job.model.lora
    if not configuration.knobs.get("packing"):
        theirs = "--data-path" in job.launch.current
        return [f"{ALONE}, your conversations, one per line"] if lines and not theirs else []
    batch, where = _sequences(job, configuration), f"{PACKED}, one sequence per line" if lines else "your data set"
    return [
        f"{where}: your conversations, packed into sequences of up to {job.traffic.seq_len} tokens; the {batch} "
        f"sequences of a step hold about {job.traffic.global_batch} samples"
    ]


def worker(job: Job) -> dict[str, Any]:
    """Returns the worker's settings other than flags."""
    found: dict[str, Any] = {}
    if job.traffic.lengths:
        found |= {"lengths": job.traffic.lengths, "samples": job.traffic.global_batch}
    if job.model.lora:
        found["lora"] = {"rank": job.model.lora.rank, "modules": job.model.lora.modules}
    if job.model.frozen_layers:
        found["frozen_layers"] = job.model.frozen_layers
    return found


def exportable(job: Job) -> None:
    """Checks that a job can be exported. Errors: AutoscoutError (exit 2) for settings without a flag."""
    if job.model.frozen_layers:
        raise AutoscoutError(
            f"{job.name} trains with frozen layers, which Megatron-LM's pretrain_gpt.py does not support: set the "
            "knobs' values (`autoscout best --json` prints them) in the script that freezes the layers",
            2,
        )


def _sequences(job: Job, configuration: Configuration) -> int:
    """Returns the number of packed sequences per step for the job's samples, rounded up to whole micro batches on every
    replica."""
    lengths = job.traffic.lengths
    share = packed_share(tuple(lengths), job.traffic.seq_len) if isinstance(lengths, list) else 1.0
    unit = int(configuration.knobs["mbs"]) * int(configuration.knobs.get("dp", 1))
    return unit * math.ceil(job.traffic.global_batch * share / unit)
