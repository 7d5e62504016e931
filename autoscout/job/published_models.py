"""Looks up a published model's shape and weight format by its name."""

import re
from typing import Any

from autoscout.job.presets import preset_names, sizes_of

# Format of stored weights, recognized by the repository's name. (Qwen's own fp8 weights have a scale per block.)
_STORED = {
    "fp8": re.compile(r"[-_.]fp8\b"),
    "nvfp4": re.compile(r"[-_.](nv)?fp4\b"),
    "int8": re.compile(r"[-_.]w8a8\b"),
    "w8a16": re.compile(r"[-_.](w8a16|gptq[-_.]int8)\b"),
    "int4": re.compile(r"[-_.](awq|int4|w4a16|w4a8|4bit)\b"),
}
# A name that continues like this after a known name denotes a different model.
_ANOTHER = re.compile(r"\.?\d|.*-(distill|draft|eagle|mtp)")


def published(named: str) -> dict[str, Any]:
    """Returns the [model] table for a model's name on the Hub or its folder's name; {} if it is unknown."""
    plain = named.rpartition("/")[2].lower().removeprefix("meta-")
    alike = max((name for name in preset_names() if _is_of(name, plain)), key=len, default="")
    if not alike:
        return {}
    stored = next(({"stored": name} for name, pattern in _STORED.items() if pattern.search(plain)), {})
    if stored == {"stored": "fp8"} and named.startswith("Qwen/"):
        stored = {"stored": "fp8_block"}
    sizes = sizes_of(alike)
    # The preset supplies all fields except these, which only serving uses.
    own = {k: sizes[k] for k in ("stored", "window", "windowed_layers", "sinks") if k in sizes}
    usual = {"stored": sizes["as_published"]} if "as_published" in sizes else {}
    return {"preset": preset_names()[alike], **(own or stored or usual)}


def _is_of(name: str, plain: str) -> bool:
    """Whether a model's name (`plain`) begins with a preset's `name`, and the rest does not make it the name of a
    different release (v3, v3.2) or model."""
    return plain.startswith(name) and not _ANOTHER.match(plain, len(name))
