"""The sizes of published models (models.toml): those that job files may name, and all models by any of their names."""

import functools
import re
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

# Keys of models.toml that are no part of a [model].
_FURTHER = ("like", "also", "preset", "context", "stored", "window", "windowed_layers", "sinks")


@functools.cache
def models() -> Mapping[str, dict[str, Any]]:
    """[model] by preset name."""
    return {name: {k: v for k, v in m.items() if k not in _FURTHER} for m in _all().values() for name in m["preset"]}


def sizes_of(name: str) -> dict[str, Any]:
    """Everything known of a published model, however its name is spelt (LLAMA3_70B, meta-llama/Meta-Llama-3-8B), with
    or without a suffix in brackets that tells how the model was run; {} for an unknown model."""
    plain = _plain(name)
    return _by_name().get(plain) or _by_name().get(_plain(re.sub(r"\(.*?\)", "", name)).removeprefix("meta"), {})


@functools.cache
def _by_name() -> dict[str, dict[str, Any]]:
    return {_plain(other): m for name, m in _all().items() for other in (name, *m["also"])}


@functools.cache
def _all() -> dict[str, dict[str, Any]]:
    text = files("autoscout.job.presets").joinpath("models.toml").read_text(encoding="utf-8")
    written = tomllib.loads(text)
    own = {"also": [], "preset": []}  # names belong to one record
    return {name: {**written.get(model.get("like"), {}), **own, **model} for name, model in written.items()}


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.rsplit("/", 1)[-1].lower())
