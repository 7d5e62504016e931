"""Drafts a training job from the shape of a model, given as a preset or as a config.json of Hugging Face."""

from pathlib import Path
from typing import Any

from autoscout.job.device_names import an_example
from autoscout.job.hf_config import is_known, part, refuse_other_layers, shape_of
from autoscout.job.names import as_name
from autoscout.machine.devices_here import GPU_TIMEOUT_S, NO_GPU, here, times_on_gpus
from kb import door
from kb.records import AutoscoutError

_HF = {
    "num_hidden_layers": "layers",
    "hidden_size": "hidden",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "head_dim": "head_dim",
    "intermediate_size": "ffn",
    "vocab_size": "vocab",
    "tie_word_embeddings": "tied",
}
# For these architectures, the fields above describe the whole shape, unless the config has one of the fields in _MORE
# (experts, latent attention, quantized weights). For other known architectures, the job file refers to the config.json
# instead, because it also determines norms and biases of queries.
_BY_FIELDS = ("", "llama", "mistral")
_MORE = ("num_local_experts", "num_experts", "n_routed_experts", "kv_lora_rank", "quantization_config")


def of_config(path: Path, text: str) -> tuple[dict[str, Any], list[str]]:
    """(job, notes for the user to review). `text`: content of the config.json at `path`. Errors: AutoscoutError (exit
    2) if it does not describe a transformer, or describes one that is not supported."""
    try:
        config = door.parsed_json(text)
    except ValueError as error:
        raise AutoscoutError(f"{path} is not JSON ({error})", 2) from error
    config = config if isinstance(config, dict) else {}
    config = part(config, "text_config") or config
    refuse_other_layers(path, config)
    model = {ours: config[theirs] for theirs, ours in _HF.items() if config.get(theirs) is not None}
    if not {"layers", "hidden", "heads", "vocab"} <= model.keys():
        raise AutoscoutError(f"{path} does not describe a transformer (it lacks num_hidden_layers, hidden_size, …)", 2)
    if "rms_norm_eps" in config:
        model |= {"norm": "rmsnorm", "bias": bool(config.get("attention_bias")), "position": "rope"}
    if config.get("hidden_act") in ("silu", "swish"):
        model["gated"] = True
    kind = str(config.get("model_type") or "")
    if any(config.get(name) for name in _MORE) or (kind not in _BY_FIELDS and is_known(kind)):
        model = {"from": str(path.resolve())}
    made, notes = of_shape(model, path.resolve().parent.name)
    if kind not in _BY_FIELDS and "from" not in model:
        notes.append(
            f"model: the architecture '{kind}' is unknown; check that the sizes, gates, norms and biases "
            "below are right"
        )
    if "from" in model or is_known(kind):
        shape_of(path, "pretrain")  # reports an invalid shape now instead of in every later command
    if flags := _flags_of_megatron(config):
        notes.append(f"export: a launch of Megatron-LM also needs flags that [model] cannot express: {flags}")
    longest = config.get("max_position_embeddings")
    made["traffic"]["seq_len"] = min(4096, longest) if type(longest) is int and longest > 0 else 4096
    return made, notes


def _flags_of_megatron(config: dict[str, Any]) -> str:
    """The flags of Megatron-LM for values of a config.json that are not defaults and that a job file cannot express."""
    positions = {**part(config, "rope_parameters"), **part(config, "rope_scaling")}
    base, epsilon = config.get("rope_theta") or positions.get("rope_theta"), config.get("rms_norm_eps")
    flags = [f"--rotary-base {base:.0f}"] if isinstance(base, int | float) and base != 10000 else []
    flags += [f"--norm-epsilon {epsilon:g}"] if isinstance(epsilon, int | float) and epsilon != 1e-5 else []
    scaled = str(positions.get("rope_type") or positions.get("type") or "default")
    if scaled == "llama3":
        flags.append(f"--use-rope-scaling --rope-scaling-factor {positions.get('factor', 8)}")
    elif scaled != "default":
        flags.append(f"positions scaled by {scaled}")
    return ", ".join(flags)


def of_shape(model: dict[str, Any], name: str) -> tuple[dict[str, Any], list[str]]:
    """(job to train a model on this machine's devices, notes to review). `model`: [model], a shape or {"preset": …}."""
    kind, count = here()
    notes = ["traffic: write your batch size and sequence length; for serving, set task = 'serve' and target = 'vllm'"]
    if kind == "cpu":
        model = {**model, "dtype": "fp32"}
        notes.append("dtype: fp32 is set, because most CPUs only emulate bf16; on GPUs, remove model.dtype")
        notes.append(
            f"{NO_GPU}, so these are CPU ranks; for GPUs write nodes = [{{ device = '{an_example()}', count = 8 }}], "
            f"with your kind of GPU, and under [launch] transformer_engine = true and timeout_s = {GPU_TIMEOUT_S}"
        )
    made = {
        "name": as_name(name, "model"),
        "task": "pretrain",
        "target": "megatron",
        "model": model,
        "traffic": {"seq_len": 4096, "global_batch": 64},
        "cluster": {"nodes": [{"device": kind, "count": count or 1}]},
        "objective": {"minimize": "step_time_s"},
    }
    if kind != "cpu":  # required on GPUs
        made["launch"] = {"transformer_engine": True, **times_on_gpus("megatron")}
    return made, notes
