"""The settings of a fine-tuning job: adapters, frozen layers and sample lengths."""

from collections.abc import Iterable, Iterator
from typing import Any

from autoscout.job.lengths import mean, packed_share
from autoscout.job.words import listed, nearest_name
from kb.records import Job, Lora, Model, shape

# Linear layers that can have adapters. Names with "_proj" are Hugging Face's; each of Megatron's "linear_" layers fuses
# several of these.
_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj", "linear_qkv", "linear_proj")
_FEED_FORWARD = ("gate_proj", "up_proj", "down_proj", "linear_fc1", "linear_fc2")
_MOST_RANK = 4096


def usual_modules(target: str, experts: bool) -> list[str]:
    """Returns the default modules for adapters: PEFT's, or Megatron-Bridge's for Megatron."""
    if target != "megatron":
        return ["q_proj", "v_proj"]
    attention = ["linear_qkv", "linear_proj"]
    return attention if experts else [*attention, "linear_fc1", "linear_fc2"]


def without_estimate(modules: Iterable[str], experts: int) -> list[str]:
    """Returns the modules whose adapters no simulator supports: in a mixture of experts, the modules of feed-forward
    layers."""
    return [name for name in modules if experts and name in _FEED_FORWARD]


def finetune_problems(job: Job) -> Iterator[str]:
    """Yields the problems of a job's fine-tuning settings, one sentence each."""
    model, lengths = job.model, job.traffic.lengths
    if job.task != "finetune":
        given = [("model.lora", model.lora), ("model.frozen_layers", model.frozen_layers), ("traffic.lengths", lengths)]
        for name, value in given:
            if value:
                yield f"{name} applies to fine-tuning only; set task = 'finetune', or remove {name}"
        return
    if model.lora:
        yield from _lora_problems(model, model.lora)
    if model.frozen_layers and model.lora:
        yield "model.lora already freezes all layers; remove model.frozen_layers"
    if not 0 <= model.frozen_layers < max(model.layers, 1):
        most = max(model.layers - 1, 0)
        yield (
            f"model.frozen_layers = {model.frozen_layers}: it must be from 0 to {most}, since the model has "
            f"{model.layers} layers"
        )
    yield from _length_problems(job)


def _lora_problems(model: Model, lora: Lora) -> Iterator[str]:
    known = (*_ATTENTION, *_FEED_FORWARD)
    if not 1 <= lora.rank <= _MOST_RANK:
        yield f"model.lora.rank = {lora.rank} must be from 1 to {_MOST_RANK}"
    if not lora.modules:
        yield f"model.lora.modules is empty; name modules that get adapters, from {listed(known)}"
    for name in lora.modules:
        if name not in known:
            yield f"model.lora.modules: '{name}'{nearest_name(name, known)}"
        if name == "gate_proj" and not model.gated:
            yield (
                "model.lora.modules names gate_proj, but the model has no gate; remove gate_proj, or set "
                "model.gated = true"
            )
        if name in without_estimate([name], model.experts):
            yield (
                f"model.lora.modules names {name}, but adapters of experts are not supported; name modules of "
                "attention instead"
            )


def _length_problems(job: Job) -> Iterator[str]:
    lengths, seq_len = job.traffic.lengths, job.traffic.seq_len
    if not isinstance(lengths, list) or not lengths:
        return
    if min(lengths) < 1:
        yield f"traffic.lengths contains {min(lengths)}, but every sample must have at least 1 token"
    if lengths != sorted(lengths):
        yield f"traffic.lengths must give quantiles from the smallest to the largest: {sorted(lengths)}"
    if seq_len and max(lengths) > seq_len:
        yield (
            f"traffic.lengths goes up to {max(lengths)} tokens, but traffic.seq_len is {seq_len}; raise "
            "traffic.seq_len, or truncate the samples to that length"
        )


def attributes(job: Job) -> dict[str, Any]:
    """Returns the fine-tuning attributes for expressions and simulators. `packable`: whether samples have different
    lengths."""
    lengths, model = job.traffic.lengths, shape(job.model)
    found: dict[str, Any] = {
        "packable": bool(lengths),
        "lora": 0 if not model.lora else 1 if model.lora.bits == 16 else 2,
        "frozen_layers": model.frozen_layers,
    }
    if model.lora:
        widths = [_width(model, name) for name in model.lora.modules]
        found |= {"lora_rank": model.lora.rank, "adapter_width": sum(widths)}
        found["adapters"] = any(name in _FEED_FORWARD for name in model.lora.modules)
    if isinstance(lengths, list) and lengths:
        found |= {
            "length_mean": mean(lengths),
            "packed_share": packed_share(tuple(lengths), job.traffic.seq_len),
            # The token-weighted mean length. Attention costs as much as if all samples had this length.
            "packed_context": sum(n * n for n in lengths) / sum(lengths),
        }
    return found


def _width(m: Model, name: str) -> int:
    """Returns a linear layer's input plus output features: the parameters of its LoRA adapter per unit of rank."""
    attended, kept = m.heads * m.head_dim, m.kv_heads * m.head_dim
    if name in ("k_proj", "v_proj"):
        return m.hidden + kept
    if name == "linear_qkv":
        return m.hidden + attended + 2 * kept
    if name in ("q_proj", "o_proj", "linear_proj"):
        return m.hidden + attended
    return m.hidden + m.ffn * (2 if name == "linear_fc1" and m.gated else 1)
