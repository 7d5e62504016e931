"""The shapes of published models, by the names they are published under, with the format of their weights."""

import re
from typing import Any

from autoscout.job.presets import models, sizes_of

# The format of stored weights, recognised from names of repositories. Qwen's own 8-bit weights have a scale for every
# block.
_STORED = {
    "fp8": re.compile(r"[-_.]fp8\b"),
    "nvfp4": re.compile(r"[-_.]nvfp4\b"),
    "int8": re.compile(r"[-_.]w8a8\b"),
    "w8a16": re.compile(r"[-_.](w8a16|gptq[-_.]int8)\b"),
    "int4": re.compile(r"[-_.](awq|int4|w4a16|w4a8|4bit)\b"),
}


def published(named: str) -> dict[str, Any]:
    """[model] of a model by its name on the Hub or its folder's name; {} for an unknown one."""
    plain = named.rpartition("/")[2].lower().removeprefix("meta-")
    alike = max((name for name in models() if plain.startswith(name)), key=len, default="")
    if not alike:
        return {}
    stored = next(({"stored": name} for name, pattern in _STORED.items() if pattern.search(plain)), {})
    if stored == {"stored": "fp8"} and named.startswith("Qwen/"):
        stored = {"stored": "fp8_block"}
    sizes = sizes_of(alike)
    # Those of presets would also apply to training.
    own = {k: sizes[k] for k in ("stored", "window", "windowed_layers", "sinks") if k in sizes}
    return {"preset": alike, **(own or stored)}
