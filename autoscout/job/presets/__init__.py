"""The sizes of published models (models.toml): presets for job files, and a lookup of models by their published
names."""

import functools
import re
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

# Dimensions of latent attention, named as in config.json.
LATENT = ("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
# Keys of models.toml that are not fields of [model].
_FURTHER = (
    "like", "also", "preset", "context", "stored", "as_published", "window", "windowed_layers", "sinks", "expert_bias",
)  # fmt: skip


@functools.cache
def models() -> Mapping[str, dict[str, Any]]:
    """Returns the [model] table of each preset."""
    return {name: _described(m) for m in _all().values() for name in m["preset"]}


@functools.cache
def preset_names() -> Mapping[str, str]:
    """Returns name of a published model in lower case → its preset, for models that have a preset."""
    listed = ((m["preset"], m["also"]) for m in _all().values() if m["preset"])
    return {
        name: max(filter(name.startswith, own), key=len, default=own[0])
        for own, others in listed
        for name in (*own, *others)
    }


def _described(model: Mapping[str, Any]) -> dict[str, Any]:
    own = {k: v for k, v in model.items() if k not in _FURTHER}
    latent = {k: own.pop(k) for k in LATENT if k in own}
    return {**own, **({"latent": latent} if latent else {})}


def sizes_of(name: str) -> dict[str, Any]:
    """Returns all known data of a published model; {} for an unknown model. Spellings such as LLAMA3_70B or
    meta-llama/Meta-Llama-3-8B are recognized; a suffix in brackets is ignored."""
    plain = _plain(name)
    return _by_name().get(plain) or _by_name().get(_plain(re.sub(r"\(.*?\)", "", name)).removeprefix("meta"), {})


@functools.cache
def _by_name() -> dict[str, dict[str, Any]]:
    return {_plain(other): m for name, m in _all().items() for other in (name, *m["also"])}


@functools.cache
def _all() -> dict[str, dict[str, Any]]:
    text = files("autoscout.job.presets").joinpath("models.toml").read_text(encoding="utf-8")
    written = tomllib.loads(text)
    own = {"also": [], "preset": []}  # `like` must not copy a model's names
    return {name: {**written.get(model.get("like"), {}), **own, **model} for name, model in written.items()}


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.rsplit("/", 1)[-1].lower())
