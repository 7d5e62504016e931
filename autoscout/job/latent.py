"""Multi-head latent attention (MLA) of a job: its problems, and its attributes for expressions and simulators."""

from collections.abc import Iterator
from typing import Any

from autoscout.job.device_names import is_cpu
from kb.records import Job, Latent, Model

_MOST = 2**20
_SIZES = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def latent_problems(job: Job) -> Iterator[str]:
    """Yields the problems of a job's latent attention, one sentence each."""
    model = job.model
    if not model.latent:
        return
    if not (job.target in ("megatron", "command") or job.task == "serve"):
        yield (
            f"model.latent is supported by the targets megatron and command and by servers, not by '{job.target}'; "
            "use preset = 'deepseek-v3-like' instead"
        )
    yield from _size_problems(model.latent)
    if model.kv_heads not in (0, model.heads):
        yield f"model.kv_heads = {model.kv_heads}, but latent attention has keys for every head; remove model.kv_heads"
    if model.head_dim:
        yield f"model.head_dim = {model.head_dim}, but model.latent gives the sizes; remove model.head_dim"
    if model.position != "rope":
        yield f"model.position = '{model.position}', but latent attention has rotary positions; write 'rope'"
    if model.qk_norm or model.qkv_bias:
        yield "model.qk_norm and model.qkv_bias do not apply to model.latent, which has its own norms; remove them"
    if model.lora:
        yield "model.lora and model.latent are not supported together; remove one of them"
    if job.target == "vllm" and any(is_cpu(node.device) for node in job.cluster.nodes):
        yield (
            "model.latent can only be served on GPUs, because no vLLM kernel for latent attention is known to "
            "run on CPUs"
        )
    if job.target == "megatron" and not job.launch.transformer_engine:
        yield (
            "model.latent needs launch.transformer_engine = true: Megatron-core's own attention refuses it "
            "(DotProductAttention has no k_channels)"
        )


def _size_problems(latent: Latent) -> Iterator[str]:
    for name in (*_SIZES, "q_lora_rank"):
        value = getattr(latent, name)
        if not (0 if name == "q_lora_rank" else 1) <= value <= _MOST:
            yield f"model.latent.{name} = {value} must be from {int(name != 'q_lora_rank')} to {_MOST:,}"
    if latent.qk_rope_head_dim % 2:
        yield f"rotary positions need an even model.latent.qk_rope_head_dim; here it is {latent.qk_rope_head_dim}"


def attributes(model: Model) -> dict[str, Any]:
    """Returns `latent` (whether the model has MLA) and, if so, its dimensions."""
    latent = model.latent
    return {
        "latent": latent is not None,
        **({name: getattr(latent, name) for name in (*_SIZES, "q_lora_rank")} if latent else {}),
    }


def kept_of_a_token(model: Model) -> int:
    """Returns the number of elements in the KV cache per token and layer. With MLA, the cache has the latent vector and
    the rotary part of the key; otherwise keys and values."""
    latent = model.latent
    return latent.kv_lora_rank + latent.qk_rope_head_dim if latent else 2 * model.kv_heads * model.head_dim
