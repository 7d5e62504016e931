"""This machine's devices with their names in job files, and the default timeout of jobs on GPUs."""

from typing import Any

from autoscout.job.device_names import device_meant
from autoscout.running.cluster import gpus
from autoscout.targets.vllm import SERVED_S

# Timeout in seconds of an experiment on GPUs, including its start: loading and compiling a large model and recording
# CUDA graphs takes minutes. Chosen, not measured.
GPU_TIMEOUT_S = 900
NO_GPU = "cluster: this machine shows no GPU"


def here() -> tuple[str, int]:
    """(kind as in job files, count) of this machine's devices."""
    found = gpus.ours()
    kind = device_meant(found[0].name, found[0].total_gib) if found else ""
    return kind or "cpu", len(found)


def times_on_gpus(target: str) -> dict[str, Any]:
    """Additional keys of [launch] for a job on GPUs."""
    return {"timeout_s": GPU_TIMEOUT_S} | ({"measure_s": SERVED_S} if target == "vllm" else {})
