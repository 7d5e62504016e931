"""Reads a model's shape from a config.json of Hugging Face, for `[model] from = "config.json"`."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from autoscout.job.presets import LATENT
from autoscout.job.words import listed
from kb import door
from kb.records import AutoscoutError
from kb.sizes import ONLY_EXPERTS, STORED

# Field of [model] → alternative keys in config.json; the first one present counts.
_FIELDS = {
    "layers": ("num_hidden_layers", "n_layer"),
    "hidden": ("hidden_size", "n_embd"),
    "heads": ("num_attention_heads", "n_head"),
    "kv_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim",),
    "ffn": ("intermediate_size", "n_inner"),
    "vocab": ("vocab_size",),
    "experts": ("num_experts", "num_local_experts", "n_routed_experts"),
    "topk": ("num_experts_per_tok",),
    "expert_ffn": ("moe_intermediate_size",),
}
_LLAMA = {"gated": True, "norm": "rmsnorm", "bias": False, "position": "rope"}
_GPT2 = {"gated": False, "norm": "layernorm", "bias": True, "position": "learned", "tied": True}
_DEEPSEEK = ("deepseek_v2", "deepseek_v3", "kimi_k2")  # architectures with latent attention
_LIKE_LLAMA = (
    *("llama", "mistral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "mixtral", "gpt_oss", "glm4", "glm4_moe"),
    *("phi3", "olmo2", "olmo3", "minimax_m2", "llama4", "llama4_text", *_DEEPSEEK),
    *("qwen2_vl", "qwen2_5_vl", "qwen2_5_vl_text", "qwen3_vl", "qwen3_vl_text", "qwen3_vl_moe", "qwen3_vl_moe_text"),
)
# model_type → what the architecture implies but config.json does not state.
_KINDS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(_LIKE_LLAMA, _LLAMA),
    "gemma2": {**_LLAMA, "tied": True},
    # Sizes that config.json files of gemma3_text omit (defaults of transformers' Gemma3TextConfig).
    "gemma3_text": {**_LLAMA, "tied": True, "vocab": 262208, "heads": 8, "kv_heads": 4, "head_dim": 256},
    "gpt2": _GPT2,
}
_KINDS["gemma3"] = _KINDS["gemma3_text"]
# model_type → n: every nth layer has full attention, all other layers a sliding window. config.json may state a
# different n under one of the keys `_WHOLE`.
_EVERY_WHOLE = {"gpt_oss": 2, "gemma2": 2, "gemma3_text": 6, "gemma3": 6, "llama4_text": 4, "llama4": 4, "olmo3": 4}
_WHOLE = ("sliding_window_pattern", "_sliding_window_pattern", "no_rope_layer_interval")
_WINDOWED = ("sliding_attention", "chunked_attention")
# model_type → why [model] cannot describe the architecture. Some of these models are available as a preset.
_SPARSE, _LINEAR = "sparse attention over selected tokens", "linear attention in most layers"
_OTHERWISE = {
    **dict.fromkeys(("deepseek_v32", "glm_moe_dsa"), _SPARSE),
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "kimi_linear", "minimax"), _LINEAR),
    **dict.fromkeys(("nemotron_h", "jamba", "bamba", "falcon_h1", "granitemoehybrid"), "state-space layers"),
}
# Patterns of keys and layer types by which an unknown model_type is recognized as not being a plain transformer.
_OF_OTHER_LAYERS = {
    "state-space layers": re.compile("mamba|ssm|state_size|time_step_rank"),
    "linear attention in most layers": re.compile("linear_(attention|attn|num)|lightning|rwkv"),
    "convolutions instead of attention": re.compile("conv_L_cache|short_conv|^conv$"),
}
_INSTEAD = "; preset = 'deepseek-v3-like' can be used instead"
# Keys with a number n: only every nth layer has experts. Training jobs require n = 1.
_EVERY = ("moe_layer_freq", "decoder_sparse_step", "interleave_moe_layer_step")
_ENCODERS = ("vision_config", "audio_config")
_IMAGES = "the encoder of its images"
# model_type → parts of the architecture that [model] cannot express. Serving engines read them from the model's folder;
# training jobs reject the architecture.
_NOT_IN_MODEL = {
    "gpt_oss": "sinks and windows of its attention, and biases of its experts; preset = 'gpt-oss-20b' has its shape",
    "glm4": "the norms after its attention and its feed-forward blocks",
    "qwen2_moe": "the gate of its shared experts; write [model] with shared_ffn and without the gate",
    **dict.fromkeys(("gemma2", "gemma3", "gemma3_text"), "windows in its layers, and the norms after its blocks"),
    **dict.fromkeys(("llama4", "llama4_text"), "attention within chunks"),
    "olmo2": "the norms after its blocks, and those of all queries and keys of a token together",
    "olmo3": "windows in its layers, and the norms after its blocks",
    "minimax_m2": "norms of all queries and keys of a token together",
    **dict.fromkeys(
        (f"{kind}{part}" for kind in ("qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe") for part in ("", "_text")), _IMAGES
    ),
    "qwen2_vl": _IMAGES,
}
_METHODS = {"fp8": "fp8", "fbgemm_fp8": "fp8", "mxfp4": "mxfp4"}  # quant_method → model.stored
_BITS = {("awq", "4"): "int4", ("gptq", "4"): "int4", ("gptq", "8"): "w8a16"}  # quant_method and bits → model.stored
_MODELOPT = {
    "FP8_PB_WO": "fp8_block",
    "FP8": "fp8",
    "NVFP4": "nvfp4",
    "W4A": "int4",
}  # prefix of quant_algo → model.stored
_QUARK = {"fp8_e4m3": "fp8", "int8": "int8"}  # dtype of weights and inputs → model.stored
# Keys that list the modules excluded from quantization, and a pattern for attention projections in these lists.
_LEFT_OUT = ("modules_to_not_convert", "ignore", "exclude_modules", "exclude")
_OF_ATTENTION = re.compile(r"(self_attn|attention)(\*|\.\*|\.?$|.*[qkvo](_[ab])?_proj|.*o_proj|.*qkv)")
_DTYPES = {"bfloat16": "bf16", "float16": "bf16", "float32": "fp32"}  # fp16 models are trained and served in bf16


def architectures() -> Iterator[tuple[str, str, str]]:
    """Yields (model_type, why training jobs reject it, why serving jobs reject it) for each known architecture. The
    reason is what [model] cannot describe; "" if jobs accept the architecture."""
    for kind in sorted(_KINDS | _OTHERWISE):
        lacking = _OTHERWISE.get(kind, "")
        yield kind, lacking or _NOT_IN_MODEL.get(kind, ""), lacking


def is_known(kind: str) -> bool:
    """Whether `model_type` is known, be it supported or not."""
    return kind in _KINDS or kind in _OTHERWISE


def shape_of(path: Path, task: str) -> dict[str, Any]:
    """Returns the fields of [model]. `task`: the job's task. Errors: AutoscoutError (exit 2) if the file cannot be read
    or does not describe a model, or if the architecture is unknown or unsupported for this task."""
    config = _read(path)
    kind = str(config.get("model_type", ""))
    if kind in _OTHERWISE:
        instead = _INSTEAD if _OTHERWISE[kind] == _SPARSE else ""
        raise AutoscoutError(f"{path}: {kind} has {_OTHERWISE[kind]}, which [model] cannot describe{instead}", 2)
    refuse_other_layers(path, config)
    if kind not in _KINDS:
        what = f"the architecture '{kind}' is not known" if kind else "model_type, the architecture, is missing"
        raise AutoscoutError(
            f"{path}: {what}; AutoScout knows {listed(sorted(_KINDS))}; write layers, hidden, heads, … into [model] "
            "instead",
            2,
        )
    lacking = _NOT_IN_MODEL.get(kind) or (_IMAGES if encoders(path) else "")
    if lacking and task != "serve":
        raise AutoscoutError(
            f"{path}: {kind} is supported for serving only: training jobs cannot describe {lacking}", 2
        )
    found = {ours: config[name] for ours, names in _FIELDS.items() for name in names[::-1] if config.get(name)}
    if missing := [name for name in ("layers", "hidden", "heads", "vocab") if name not in _KINDS[kind] | found]:
        names = listed([_FIELDS[name][0] for name in missing])
        raise AutoscoutError(f"{path}: the file has no {names}; write layers, hidden, heads, … into [model] instead", 2)
    if wrong := [name for name, value in found.items() if not isinstance(value, int) or isinstance(value, bool)]:
        raise AutoscoutError(f"{path}: {_FIELDS[wrong[0]][0]} = {found[wrong[0]]!r} must be a whole number", 2)
    latent = _latent(path, config) if kind in _DEEPSEEK else {}
    found = {name: value for name, value in found.items() if not (latent and name in ("kv_heads", "head_dim"))}
    if "experts" in found:
        found |= _around_experts(path, config, found, task)
    else:
        found = {name: value for name, value in found.items() if name not in ("topk", "expert_ffn")}
    tied = {"tied": bool(config["tie_word_embeddings"])} if "tie_word_embeddings" in config else {}
    dtype = _DTYPES.get(str(config.get("torch_dtype") or config.get("dtype")), "bf16")
    more: dict[str, Any] = _stored(config, found["layers"]) if task == "serve" else _attention(kind, config)
    if task == "serve":
        more |= _windows(path, config, kind, found["layers"]) | ({"sinks": True} if kind == "gpt_oss" else {})
    return {**_KINDS[kind], **found, **latent, **tied, **more, "dtype": dtype}


def refuse_other_layers(path: Path, config: dict[str, Any]) -> None:
    """Rejects unknown architectures with non-transformer layers, which are recognized by the names of their settings.
    Errors: AutoscoutError (exit 2)."""
    kind = str(config.get("model_type", ""))
    kinds = [each for name in ("layer_types", "layers_block_type") for each in _listed(path, config, name)]
    named = [*(key for key, value in config.items() if value), *map(str, kinds)] if kind not in _KINDS else []
    for layers, pattern in _OF_OTHER_LAYERS.items():
        if found := next(filter(pattern.search, named), ""):
            raise AutoscoutError(f"{path}: {kind} has {layers} ({found}), which [model] cannot describe", 2)


def encoders(path: Path) -> bool:
    """Whether the model also has an image or audio encoder, which [model] omits. Errors: see shape_of."""
    return any(name in _read(path) for name in _ENCODERS)


def _read(path: Path) -> dict[str, Any]:
    """Returns the file's settings; for a multimodal model, the settings of its language model. Errors: see shape_of."""
    try:
        config = door.parsed_json(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise AutoscoutError(
            f"{path}: cannot be read ({error.strerror}); put the model's own config.json there, or correct "
            "[model] from",
            2,
        ) from error
    except ValueError as error:
        raise AutoscoutError(f"{path}: the file is not JSON ({error}); put the model's own file there", 2) from error
    if not isinstance(config, dict):
        raise AutoscoutError(
            f"{path}: the file is not a model's config.json: it has no fields; put the model's own file there", 2
        )
    return {**config, **part(config, "text_config")}


def _latent(path: Path, config: dict[str, Any]) -> dict[str, Any]:
    if not config.get("kv_lora_rank"):
        raise AutoscoutError(f"{path}: the file has no kv_lora_rank, which this architecture needs; add it", 2)
    return {"latent": {name: config[name] for name in LATENT if config.get(name)}}


def _around_experts(path: Path, config: dict[str, Any], found: dict[str, Any], task: str) -> dict[str, int]:
    """Returns the fields of [model] for the total width of the shared experts and the number of layers without experts.
    In a training job, layers without experts must come first."""
    whole = {name: _number(path, config, name) for name in ("n_shared_experts", "first_k_dense_replace", *_EVERY)}
    width = _number(path, config, "shared_expert_intermediate_size")
    without = _listed(path, config, "mlp_only_layers")
    first = whole["first_k_dense_replace"] or len(without)
    every = next((name for name in _EVERY if whole[name] > 1), "")
    if (every or without != list(range(len(without)))) and task != "serve":
        layers = f"{every} = {whole[every]}" if every else f"mlp_only_layers = {without}"
        raise AutoscoutError(
            f"{path}: the model has experts in some layers only ({layers}), which is not supported for training jobs", 2
        )
    if every:  # in serving, the order of layers does not affect the step time
        first = _without_experts(found["layers"], whole[every], without or range(first), every != "moe_layer_freq")
    sizes = {"dense_layers": first}
    # Llama 4: one shared expert, as wide as the routed experts
    if dense := _number(path, config, "intermediate_size_mlp"):
        sizes |= {"ffn": dense, "expert_ffn": found.get("ffn", 0), "shared_ffn": found.get("ffn", 0)}
    else:
        sizes["shared_ffn"] = width or whole["n_shared_experts"] * found.get("expert_ffn", found.get("ffn", 0))
    return {name: value for name, value in sizes.items() if value}


def _without_experts(layers: int, every: int, without: Sequence[Any], last: bool) -> int:
    """Counts the layers without experts: those in `without`, and all but one of each group of `every` consecutive
    layers. The layer with experts is the last of its group if `last`, else the first."""
    return sum(i in without or i % every != (every - 1 if last else 0) for i in range(layers))


def _stored(config: dict[str, Any], layers: int) -> dict[str, Any]:
    """Returns the fields of [model] for the format of quantized weights, and for unquantized attention. {} for an
    unsupported format: weights are then assumed to have the model's dtype, which overestimates their size."""
    quant = config.get("quantization_config")
    if not isinstance(quant, dict):
        return {}
    method = str(quant.get("quant_method", ""))
    if method == "compressed-tensors":
        found = _compressed(quant)
    elif method.startswith("modelopt"):
        algorithm = str(quant.get("quant_algo", "")).upper()
        found = next((name for start, name in _MODELOPT.items() if algorithm.startswith(start)), "")
    elif method == "quark":
        everywhere = part(quant, "global_quant_config")
        kinds = {str(part(everywhere, of).get("dtype")) for of in ("weight", "input_tensors")}
        found = _QUARK.get(kinds.pop(), "") if len(kinds) == 1 else ""
    else:
        found = _BITS.get((method, str(quant.get("bits"))), "") or _METHODS.get(method, "")
        found = "fp8_block" if found == "fp8" and quant.get("weight_block_size") else found
    plain = (
        {"plain_attention": True} if found and found not in ONLY_EXPERTS and _leaves_attention(quant, layers) else {}
    )
    return {"stored": found, **plain} if found else {}


def _leaves_attention(quant: dict[str, Any], layers: int) -> bool:
    """Whether the attention projections of most layers are excluded from quantization, by a pattern or by their full
    names."""
    left = [str(name) for key in _LEFT_OUT if isinstance(quant.get(key), list) for name in quant[key]]
    found = [name for name in left if _OF_ATTENTION.search(name)]
    named = {number[1] for name in found if (number := re.search(r"layers\.(\d+)\.", name))}
    return 2 * len(named) > layers or any("*" in name for name in found)


def _compressed(quant: dict[str, Any]) -> str:
    """Returns the quantization format in files of LLM Compressor. They have one format per group of layers; the format
    with the most bytes per weight is returned. "" if any format is unknown."""
    groups = part(quant, "config_groups").values()
    found = [_of_group(group) for group in groups if isinstance(group, dict)]
    return max(found, key=STORED.__getitem__) if found and all(found) else ""


def _of_group(group: dict[str, Any]) -> str:
    weights, inputs = part(group, "weights"), part(group, "input_activations")
    kind = weights.get("type"), weights.get("num_bits")
    if kind == ("float", 4):
        return "nvfp4" if weights.get("group_size") == 16 else ""
    if kind == ("int", 4):
        return "int4"
    if kind[1] != 8 or (inputs and inputs.get("num_bits") != 8):
        return ""
    if not inputs:
        return "w8a16"
    return "int8" if kind[0] == "int" else "fp8_block" if weights.get("strategy") == "block" else "fp8"


def part(config: dict[str, Any], name: str) -> dict[str, Any]:
    """Returns a nested table of a config; {} if it is missing or not a table."""
    return found if isinstance(found := config.get(name), dict) else {}


def _attention(kind: str, config: dict[str, Any]) -> dict[str, bool]:
    """Returns the fields of [model] for QK norm and QKV bias, which training arguments need."""
    norm = kind in ("qwen3", "qwen3_moe") or bool(config.get("use_qk_norm"))
    bias = kind == "qwen2" or (kind == "glm4_moe" and bool(config.get("attention_bias")))
    return {name: True for name, there in (("qk_norm", norm), ("qkv_bias", bias)) if there}


def _windows(path: Path, config: dict[str, Any], kind: str, layers: int) -> dict[str, int]:
    """Returns the fields of [model] for the size of sliding windows (or attention chunks) and the number of layers with
    a window; {} without windows. If the file does not list these layers, they are all layers but every nth."""
    if kind not in _EVERY_WHOLE:
        return {}
    window = _number(path, config, "sliding_window") or _number(path, config, "attention_chunk_size")
    every = next((n for name in _WHOLE if (n := _number(path, config, name))), _EVERY_WHOLE[kind])
    kinds = _listed(path, config, "layer_types")[:layers]
    windowed = sum(kinds.count(name) for name in _WINDOWED) if kinds else layers - layers // every
    return {"window": window, "windowed_layers": windowed} if window and windowed else {}


def _listed(path: Path, config: dict[str, Any], name: str) -> list[Any]:
    value = config.get(name) or []
    if not isinstance(value, list):
        raise AutoscoutError(f"{path}: {name} = {value!r} must be a list", 2)
    return value


def _number(path: Path, config: dict[str, Any], name: str) -> int:
    value = config.get(name) or 0
    if not isinstance(value, int) or isinstance(value, bool):
        raise AutoscoutError(f"{path}: {name} = {value!r} must be a whole number", 2)
    return value
