"""Parses CUDA_VISIBLE_DEVICES."""

from collections.abc import Mapping


def named(text: str) -> list[str]:
    """Returns the GPUs (indices or UUIDs) in a value of CUDA_VISIBLE_DEVICES."""
    return [name.strip() for name in text.split(",") if name.strip()]


def visible(variables: Mapping[str, str]) -> list[str]:
    """Returns the GPUs in CUDA_VISIBLE_DEVICES; an empty list if it is not set."""
    return [name for name in named(variables.get("CUDA_VISIBLE_DEVICES", "")) if name != "-1"]
