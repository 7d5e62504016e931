"""The shapes of published models by their names, with the format of their weights."""

import re
from typing import Any

from autoscout.job.presets import preset_names, sizes_of

# The format of stored weights, recognised from names of repositories. Qwen's own 8-bit weights have a scale per block.
_STORED = {
    "fp8": re.compile(r"[-_.]fp8\b"),
    "nvfp4": re.compile(r"[-_.](nv)?fp4\b"),
    "int8": re.compile(r"[-_.]w8a8\b"),
    "w8a16": re.compile(r"[-_.](w8a16|gptq[-_.]int8)\b"),
    "int4": re.compile(r"[-_.](awq|int4|w4a16|w4a8|4bit)\b"),
}
# If a name continues like this, it is another model's.
_ANOTHER = re.compile(r"\.?\d|.*-(distill|draft|eagle|mtp)")


def published(named: str) -> dict[str, Any]:
    """[model] of a model, by its name on the Hub or its folder's name; {} for an unknown one."""
    plain = named.rpartition("/")[2].lower().removeprefix("meta-")
    alike = max((name for name in preset_names() if _is_of(name, plain)), key=len, default="")
    if not alike:
        return {}
    stored = next(({"stored": name} for name, pattern in _STORED.items() if pattern.search(plain)), {})
    if stored == {"stored": "fp8"} and named.startswith("Qwen/"):
        stored = {"stored": "fp8_block"}
    sizes = sizes_of(alike)
    # Fields that only serving needs; those of presets would also apply to training.
    own = {k: sizes[k] for k in ("stored", "window", "windowed_layers", "sinks") if k in sizes}
    usual = {"stored": sizes["as_published"]} if "as_published" in sizes else {}
    return {"preset": preset_names()[alike], **(own or stored or usual)}


def _is_of(name: str, plain: str) -> bool:
    """Whether a model's name begins with that of a preset, and names no other release (v3, v3.2) or model."""
    return plain.startswith(name) and not _ANOTHER.match(plain, len(name))
