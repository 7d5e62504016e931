"""This machine's devices as job files name them, and what a job on GPUs is given time for."""

import re
from typing import Any

from autoscout.cluster import gpus
from autoscout.job.presets import devices as known_devices
from autoscout.targets.vllm import SERVED_S

# Of an experiment on GPUs, with its start: large models are loaded, compiled and recorded for minutes.
GPU_TIMEOUT_S = 900


def here() -> tuple[str, int]:
    """(kind, count) of this machine's devices, as job files name them."""
    names = [gpu.name.lower() for gpu in gpus.look()]
    kinds = sorted(known_devices(), key=len, reverse=True)
    kind = next((k for k in kinds if names and re.search(rf"\b{re.escape(k.split('-')[0])}\b", names[0])), "")
    return kind or "cpu", len(names)


def times_on_gpus(target: str) -> dict[str, Any]:
    """Of [launch], for a job on GPUs."""
    return {"timeout_s": GPU_TIMEOUT_S} | ({"measure_s": SERVED_S} if target == "vllm" else {})
