"""The shapes of published models by the names that they have there, with how their weights are stored."""

import re
from typing import Any

from autoscout.job.presets import models, sizes_of

_ALIKE = {"llama-3-70b": "llama-3.1-70b", "llama-3.3-70b": "llama-3.1-70b"}  # names of one shape
# The format of stored weights, as names of repositories tell it; Qwen's own in 8 bits have a scale for every block.
_STORED = {
    "fp8": re.compile(r"[-_.]fp8\b"),
    "nvfp4": re.compile(r"[-_.]nvfp4\b"),
    "int8": re.compile(r"[-_.]w8a8\b"),
    "w8a16": re.compile(r"[-_.](w8a16|gptq[-_.]int8)\b"),
    "int4": re.compile(r"[-_.](awq|int4|w4a16|w4a8|4bit)\b"),
}


def published(named: str) -> dict[str, Any]:
    """[model] of a model by its name, a Hub's or a folder's; {} for one that is not known."""
    plain = named.rpartition("/")[2].lower().removeprefix("meta-")
    presets = {name: name for name in models()} | _ALIKE
    alike = max((name for name in presets if plain.startswith(name)), key=len, default="")
    if not alike:
        return {}
    told = next(({"stored": name} for name, said in _STORED.items() if said.search(plain)), {})
    if told == {"stored": "fp8"} and named.startswith("Qwen/"):
        told = {"stored": "fp8_block"}
    sizes = sizes_of(alike)
    own = {k: sizes[k] for k in ("stored", "window", "windowed_layers") if k in sizes}  # presets are for training, too
    return {"preset": presets[alike], **(own or told)}
