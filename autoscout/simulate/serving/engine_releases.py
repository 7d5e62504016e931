"""What releases of the engines do differently: their own work in each step, and how TensorRT-LLM of 2024 reads keys.

Work is said as shares of what vLLM's version 0 of 2023 does (ServingDevice.host, Vidur's measurement) per step, and per
sequence in it. Chosen by public runs (docs/simulators-serving.md says which were in sight), except PERSISTENT.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

# Version 1: 0.65 ms a step (Qwen3-8B and gpt-oss-120b with few users). Its batch is kept and only changes are made
# to it: assumed.
STEP, PERSISTENT = 0.45, 0.1
# vLLM since 0.6 processes outputs beside the next step: of a batch that is answered at once, of which nobody gets
# tokens one by one, this is left per sequence.
_AT_ONCE = 0.55
# TensorRT-LLM's C++ before 0.13: 1.0 ms a step and 0.034 ms a sequence, beside which the device waits.
_TENSORRT_STEP, _TENSORRT_SEQUENCE = 0.7, 0.3
# Since then: by 0.17's throughput at infinite rate, with hundreds of sequences.
_LATER_STEP, _LATER_SEQUENCE = 0.1, 0.01
GROWN = 1.02  # TensorRT-LLM's release (1.2) that launches mixtures at once, and has kernels for GPT-OSS


def of_releases(
    columns: Mapping[str, Any], key_us: float, newer: np.ndarray, python: np.ndarray, offline: np.ndarray
) -> dict[str, np.ndarray]:
    """Columns `step`, `persistent`, `serial_us` and `early` (TensorRT-LLM before 1.2), and `waits`: the device does for
    the host. `newer`: version 1's; `python`: the engine is in Python; a column `release` has 0.07 for 0.7, and none for
    the newest, and `scheduler_steps` the steps that version 0 of vLLM takes before the host sees any
    (`num_scheduler_steps`). `key_us`: of a query head's next key (Kernels.reads_key_us), which counts before 0.13: one
    block of threads went through all keys of a query head (its multi_block_mode was off)."""
    n = newer.shape
    names = np.char.lower(np.broadcast_to(np.asarray(columns.get("framework", "vllm"), dtype=str), n))
    release = np.round(np.broadcast_to(np.asarray(columns.get("release", np.nan), dtype=float), n), 3)
    tensorrt = np.char.find(names, "tensorrt") >= 0
    old, compiled = tensorrt & (release < 0.13), tensorrt & ~python
    at_once = np.maximum(
        np.nan_to_num(np.broadcast_to(np.asarray(columns.get("scheduler_steps", 1), dtype=float), n)), 1
    )
    late = np.char.startswith(names, "vllm") & (release >= 0.06)  # in version 0, which 0.8 to 0.10 have, too
    streamed = np.broadcast_to(np.asarray(columns.get("streamed", ~offline), dtype=bool), n)
    which = [old, compiled, ~python, newer]
    return {
        "step": np.select(which, [_TENSORRT_STEP, _LATER_STEP, 0.0, STEP], 1 / at_once),
        "persistent": np.select(
            which,
            [_TENSORRT_SEQUENCE, _LATER_SEQUENCE, 0.0, PERSISTENT],
            np.where(late & ~streamed, _AT_ONCE, 1.0) / at_once,
        ),
        "waits": tensorrt,
        "early": tensorrt & (release < GROWN),
        "serial_us": np.where(old, key_us, 0.0),
    }
