"""The GPUs that CUDA_VISIBLE_DEVICES makes visible to a program."""

from collections.abc import Mapping


def named(text: str) -> list[str]:
    """The GPUs that a value of CUDA_VISIBLE_DEVICES names, by index or UUID."""
    return [name.strip() for name in text.split(",") if name.strip()]


def visible(variables: Mapping[str, str]) -> list[str]:
    """The GPUs that the variables name; none if CUDA_VISIBLE_DEVICES is not set."""
    return [name for name in named(variables.get("CUDA_VISIBLE_DEVICES", "")) if name != "-1"]
