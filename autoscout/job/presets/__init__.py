"""Model shapes and devices that job files may name."""

import functools
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

_VARIANT_HAS = 1.1  # times what a driver reports: who says more than that means another variant of the device


def models() -> Mapping[str, dict[str, Any]]:
    return _read("models")


def devices() -> Mapping[str, float]:
    """Memory per device in GiB that drivers report, by the device's name in job files."""
    return _read("devices")


def device_memory_gib(device: str) -> float | None:
    return devices().get(device)


def device_within(name: str) -> str:
    """The known device all of whose words are in a name for it: "A100-80GB-PCIe" → "a100-pcie"; "" if none is."""
    text = "".join(c for c in name.lower() if c.isalnum())
    return max((known for known in devices() if all(part in text for part in known.split("-"))), key=len, default="")


def sold_by(stated: Any, reported: Any) -> Any:
    """Whether a job states the GiB that a device is sold by, of which its driver reports a little less; of arrays, of
    each."""
    return (reported < stated) & (stated < _VARIANT_HAS * reported)


def is_cpu(device: str) -> bool:
    """Whether a job's node, or the knob of a kind of device, is a CPU: "cpu", or a second kind of CPU ("cpu-slow")."""
    return device.replace("_", "-").partition("-")[0] == "cpu"


def is_amd(device: str) -> bool:
    """Whether it is an Instinct ("mi300x"), which runs ROCm."""
    return device[:2] == "mi" and device[2:3].isdecimal()


@functools.cache
def _read(name: str) -> dict[str, Any]:
    return tomllib.loads(files("autoscout.job.presets").joinpath(f"{name}.toml").read_text(encoding="utf-8"))
